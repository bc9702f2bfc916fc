//! Section 1: the decision, on the first screen.

use maud::{Markup, html};

use crate::compare::data::{Comparison, Store};
use crate::compare::report::bands::{Band, Group, groups};
use crate::compare::report::charts::{Axis, Row, RowGroup, rows, rows_height, swatch};
use crate::compare::report::figure::{Figure, missing, not_measured};
use crate::compare::report::numbers::{count, counted, exact, figure};
use crate::compare::report::requirements::{Answer, Requirements};
use crate::compare::report::stores::{Named, Overlaps};
use crate::compare::report::summary::{Choice, can_prefer, choice};
use crate::compare::report::table::{Cell, store, table, text};

pub(crate) fn section(
    comparison: &Comparison,
    stores: &[Named<'_>],
    requirements: Option<&Requirements>,
) -> Markup {
    if stores.is_empty() {
        return html! { p.absent { "No store was compared." } };
    }
    let groups = groups(stores);
    html! {
        @if let Some(requirements) = requirements { (required(requirements, stores)) }
        div.decision {
            div { (chart(comparison, stores, &groups)) (fencing(stores)) }
            (choices(comparison, &groups))
        }
    }
}

/// A column of ticks for each requirement.
fn required(requirements: &Requirements, stores: &[Named<'_>]) -> Markup {
    let tick = |answer: Answer, measured: Option<String>| {
        Cell::markup(html! {
            span.sign aria-label=(answer.word()) title=(answer.word()) { (answer.sign()) }
            @if let Some(measured) = measured { " " (measured) }
        })
        .alarm_if(answer == Answer::Unmet)
    };
    let each = requirements.each();
    let columns: Vec<_> = std::iter::once(text("store"))
        .chain(each.iter().map(|it| text(it.text().to_owned())))
        .chain([text("all")])
        .collect();
    let row = |named: &Named<'_>| {
        let ticks = each.iter().map(|it| tick(it.answer(*named), it.measured(*named)));
        let all = tick(requirements.answer(*named), None);
        std::iter::once(store(*named)).chain(ticks).chain([all]).collect()
    };
    html! {
        (table("What you require", &columns, stores.iter().map(row).collect()))
        @if !stores.iter().any(|named| requirements.answer(*named) == Answer::Met) {
            p.alarm { "No store was seen to meet all requirements." }
        }
        p.note { "✓ met, ✗ not met, – not measured." }
    }
}

fn chart(comparison: &Comparison, stores: &[Named<'_>], groups: &[Group<'_>]) -> Markup {
    let drawn = row_groups(groups, 22);
    if drawn.is_empty() {
        return not_measured("the speed of any store, which this chart compares");
    }
    let axis = axis(&drawn);
    let said: Vec<String> = drawn
        .iter()
        .map(|group| {
            let rows = group.rows.iter().map(|row| format!("{} {}", row.name, row.text));
            format!("{}: {}", group.title, rows.collect::<Vec<_>>().join(", "))
        })
        .collect();
    let absent = stores.iter().filter(|named| named.fastest().is_none());
    let absent: Vec<String> = absent.map(|named| named.short()).collect();
    let height = rows_height(&drawn);
    html! {
        (Figure {
            title: "Speed, by whether two can hold one lock at once".to_owned(),
            alternative: said.join("; "),
            caption: html! {
                (clients(stores)) " clients, each with its own lock; " (comparison.runs())
                ". The axis is logarithmic. Groups follow the stores' profiles and what was seen, in "
                "this order; where nothing was seen, a store is no safer than its profile says."
            },
            sizes: [(560, height), (340, height)],
        }
        .draw(|area, frame| match frame.is_narrow() {
            true => rows(area, frame, &axis, &row_groups(groups, 15)),
            false => rows(area, frame, &axis, &drawn),
        }))
        (missing(&absent))
    }
}

fn clients(stores: &[Named<'_>]) -> u32 {
    let loads = stores.iter().filter_map(|named| named.fastest());
    loads.map(|load| load.clients).max().unwrap_or(0)
}

fn axis(groups: &[RowGroup]) -> Axis {
    let rows = groups.iter().flat_map(|group| &group.rows);
    let values = rows.flat_map(|row| [row.line.0, row.mark, row.line.1]);
    Axis::decades("acquired and released pairs per second", values, exact)
}

fn row_groups(groups: &[Group<'_>], letters: usize) -> Vec<RowGroup> {
    let row = |named: &Named<'_>| {
        let speed = named.fastest()?.pairs_per_s;
        Some(Row {
            place: named.place,
            name: named.within(letters),
            line: (speed.min, speed.max),
            mark: speed.median,
            further: Vec::new(),
            text: format!("{}/s", figure(speed.median)),
            badge: named.badge(),
        })
    };
    let groups = groups.iter().map(|group| RowGroup {
        title: group.title(),
        is_alarm: group.band == Band::Seen,
        rows: group.members.iter().filter_map(row).collect(),
    });
    groups.filter(|group| !group.rows.is_empty()).collect()
}

impl Named<'_> {
    /// For a store that two were seen to hold at once.
    fn badge(self) -> Option<String> {
        match self.overlaps()? {
            Overlaps::Seen(seen) => Some(format!("two holders seen: {} per 1,000", figure(seen))),
            Overlaps::AtMost(_) => None,
        }
    }
}

/// What is true of every store, said once.
fn fencing(stores: &[Named<'_>]) -> Markup {
    let faults = stores.iter().filter_map(|named| named.store.faults.as_ref());
    let faults: Vec<_> = faults.filter(|faults| faults.acquisitions > 0).collect();
    let late = faults.iter().filter(|faults| faults.lost_without_fencing > 0).count();
    let lost = faults.iter().map(|faults| faults.lost_without_fencing).sum::<u64>();
    let in_spite = faults.iter().map(|faults| faults.lost_with_fencing).sum::<u64>();
    html! {
        aside.truth aria-label="Fencing" {
            p {
                strong { "Whichever store you choose: check the fencing token. " }
                "A client that stands still for longer than its lease writes late, and no store can "
                "keep it from that; only a resource that checks the token refuses the write."
                @if !faults.is_empty() {
                    " Here, clients were frozen and did so on " (late) " of "
                    (counted(faults.len() as u64, "store", "stores")) ": a register that takes every "
                    "write lost " (counted(lost, "update", "updates"))
                    ", one that checks the token " (count(in_spite)) "."
                }
            }
        }
    }
}

fn choices(comparison: &Comparison, groups: &[Group<'_>]) -> Markup {
    html! {
        div.choices {
            @if !can_prefer(comparison) {
                p.note {
                    (upper_runs(comparison)) " of each measurement tell orders of magnitude, not which of "
                    "two stores is better: none is preferred here."
                }
            }
            @for group in groups {
                h4 class=[(group.band == Band::Seen).then_some("alarm")] { (group.title()) }
                ul { @for named in &group.members {
                    (line(*named, &choice(*named, group, comparison), can_prefer(comparison)))
                } }
            }
        }
    }
}

fn upper_runs(comparison: &Comparison) -> &'static str {
    if comparison.repeats == 1 { "Single runs" } else { "Two runs" }
}

fn line(named: Named<'_>, choice: &Choice, can_prefer: bool) -> Markup {
    html! {
        li {
            span.swatch { (swatch(named.place)) }
            p {
                strong.store { (named.store.store) }
                @if !choice.broken.is_empty() {
                    ": " strong.alarm { "do not choose it: " (choice.broken.join("; ")) "." }
                } @else if let Some(when) = &choice.when {
                    ": choose it when " (when) "."
                } @else if !choice.as_good_as.is_empty() {
                    ": as good as " (choice.as_good_as.join(" and ")) " in all that was measured."
                } @else if can_prefer {
                    ": no advantage measured here; sensible if you already run it."
                }
                @if let Some(badge) = named.badge() { " " span.badge { (badge) } }
                @for but in &choice.but { " " (but) }
            }
            p.seen { (facts(named.store, choice)) }
        }
    }
}

fn facts(store: &Store, choice: &Choice) -> String {
    let to_run = store.to_run.as_ref().map(|to_run| format!("you run: {to_run}"));
    choice.seen.iter().cloned().chain(to_run).collect::<Vec<_>>().join(" · ")
}
