//! Section 1: the decision, on the first screen.

use maud::{Markup, html};

use super::settings;
use crate::compare::data::Comparison;
use crate::compare::report::charts::{MOST_LABELS, scatter, swatch};
use crate::compare::report::figure::{Figure, missing, not_measured};
use crate::compare::report::numbers::{count, figure};
use crate::compare::report::stores::{Named, Overlaps};
use crate::compare::report::summary::{Choice, Kind, choice};
use crate::compare::report::table::{Cell, number, store, table, text};

pub(crate) fn section(comparison: &Comparison, stores: &[Named<'_>]) -> Markup {
    if stores.is_empty() {
        return html! { p.absent { "No store was compared." } };
    }
    html! {
        div.decision {
            (chart(comparison, stores))
            (choices(stores))
        }
        h3 { "Guarantees and observations" }
        (promises(stores))
    }
}

fn chart(comparison: &Comparison, stores: &[Named<'_>]) -> Markup {
    let (drawn, left): (Vec<Named<'_>>, Vec<Named<'_>>) =
        stores.iter().partition(|named| named.fastest().is_some() && named.overlaps().is_some());
    if drawn.is_empty() {
        return not_measured("speed and faults of any one store, which this chart compares");
    }
    let said: Vec<String> = drawn
        .iter()
        .filter_map(|named| {
            let pairs = figure(named.fastest()?.pairs_per_s.median);
            let overlaps = match named.overlaps()? {
                Overlaps::Seen(seen) => format!("{} overlaps per 1,000", figure(seen)),
                Overlaps::AtMost(bound) => {
                    format!("none seen, at most {} per 1,000", figure(bound))
                }
            };
            Some(format!("{}: {pairs} pairs/s, {overlaps}", named.short()))
        })
        .collect();
    let clients = drawn.iter().filter_map(|named| named.fastest()).map(|load| load.clients).max();
    let absent: Vec<String> =
        left.iter().chain(drawn.iter().skip(MOST_LABELS)).map(|named| named.short()).collect();
    html! {
        div {
            (Figure {
                title: "Speed against two holders at once".to_owned(),
                alternative: said.join("; "),
                caption: html! {
                    "Up is faster, left is safer. " strong { "Hollow with an arrow: no overlap was seen" }
                    "; the mark shows the 95 % upper bound for a run of this length. "
                    "Throughput of " (clients.unwrap_or(0)) " clients, each with its own lock, medians of "
                    (comparison.repeats) "; overlaps while stores and clients were frozen, killed and cut "
                    "off. Both axes are logarithmic." (settings::note(&drawn))
                },
                legend: &[],
                sizes: [(600, 430), (340, 420)],
            }
            .draw(|area, frame| scatter(area, frame, stores)))
            (missing(&absent))
        }
    }
}

fn choices(stores: &[Named<'_>]) -> Markup {
    let of = |kind: Kind| {
        let members = stores.iter().filter(move |named| Kind::of(named.store) == kind);
        members.map(|named| (*named, choice(*named, stores))).collect::<Vec<_>>()
    };
    html! {
        div.choices {
            @for (kind, members) in Kind::ALL.map(|kind| (kind, of(kind))) {
                @if !members.is_empty() {
                    h4 { (kind.title()) }
                    ul { @for (named, choice) in &members { (line(*named, choice)) } }
                }
            }
        }
    }
}

fn line(named: Named<'_>, choice: &Choice) -> Markup {
    html! {
        li {
            span.swatch { (swatch(named.place)) }
            p {
                strong.store { (named.store.store) }
                @if choice.broken.is_empty() { ": choose it when " (choice.when) "." }
                @else { ": " strong.alarm { "do not choose it: " (choice.broken.join("; ")) "." } }
                @for but in &choice.but { " " strong { (but) } }
            }
            @if !choice.seen.is_empty() { p.seen { (choice.seen.join(" · ")) } }
        }
    }
}

fn promises(stores: &[Named<'_>]) -> Markup {
    let columns = [
        text("store"),
        text("scope"),
        text("order"),
        text("freed after a crash"),
        text("fencing tokens"),
        text("exclusion fails when"),
        number("overlaps seen", "of acquisitions"),
        number("lost with fencing", "updates"),
        number("lost without", "updates"),
        number("slowest return", "s"),
    ];
    let row = |named: &Named<'_>| {
        let promises = &named.store.promises;
        let faults = named.store.faults.as_ref();
        let fails = &promises.exclusion_fails_when;
        let overlaps = match faults {
            None => Cell::figure(None),
            Some(faults) => Cell::markup(html! {
                (count(faults.overlaps)) " of " (count(faults.acquisitions))
            })
            .sorted_by(faults.overlaps as f64)
            .alarm_if(faults.overlaps > faults.admitted_overlaps),
        };
        let lost_with = faults.map(|faults| faults.lost_with_fencing);
        vec![
            store(*named),
            Cell::text(&promises.excludes),
            Cell::text(&promises.order),
            Cell::text(&promises.dead_holder),
            Cell::text(&promises.tokens),
            Cell::text(&if fails.is_empty() { "never".to_owned() } else { fails.join("; ") }),
            overlaps,
            Cell::counted(lost_with).alarm_if(lost_with > Some(0)),
            Cell::counted(faults.map(|faults| faults.lost_without_fencing)),
            Cell::figure(named.slowest_return().map(|timeline| timeline.without_progress_s)),
        ]
    };
    table(
        "Guarantees of the stores, and what was observed",
        &columns,
        stores.iter().map(row).collect(),
    )
}
