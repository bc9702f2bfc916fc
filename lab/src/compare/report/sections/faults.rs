//! Section 4: violations under faults, as recorded by independent registers.

use maud::{Markup, html};

use crate::compare::data::{FaultRound, UnderFaults};
use crate::compare::report::figure::{missing, not_measured};
use crate::compare::report::numbers::figure;
use crate::compare::report::stores::{Named, Overlaps, without};
use crate::compare::report::table::{Cell, folded, number, store, table, text};

pub(crate) fn section(stores: &[Named<'_>]) -> Markup {
    let shown: Vec<(Named<'_>, &UnderFaults)> =
        stores.iter().filter_map(|named| Some((*named, named.store.faults.as_ref()?))).collect();
    if shown.is_empty() {
        return not_measured("every store");
    }
    html! {
        p { "Stores and clients were frozen, killed, cut off and healed, while a process that no "
            "fault hits kept two registers: one that refuses stale fencing tokens, and one that takes "
            "every write. An overlap: two clients held one lock at the same time, each within its validity. "
            "Admitted: the store's own profile says that this fault can cause it." }
        (figures(&shown))
        p.note { "Where no overlap was seen, the run's length still allows for some: at most as many "
            "per 1,000 acquisitions as the bound says, at a confidence of 95 %." }
        (missing(&without(stores, |store| store.faults.is_some())))
        @for (named, faults) in &shown { (violations(*named, faults)) }
        (rounds(&shown))
        (commands(&shown))
    }
}

fn figures(shown: &[(Named<'_>, &UnderFaults)]) -> Markup {
    let columns = [
        text("store"),
        number("lasted", ""),
        number("acquisitions", ""),
        number("overlaps", ""),
        number("admitted", "overlaps"),
        number("overlaps", "per 1,000"),
        number("stale refused", "accesses"),
        number("lost with fencing", "updates"),
        number("lost without fencing", "updates"),
        number("other violations", ""),
    ];
    let row = |(named, faults): &(Named<'_>, &UnderFaults)| {
        let per_1000 = match named.overlaps() {
            Some(Overlaps::AtMost(bound)) => {
                Cell::markup(html! { "≤ " (figure(bound)) }).sorted_by(bound)
            }
            Some(Overlaps::Seen(seen)) => Cell::figure(Some(seen)),
            None => Cell::figure(None),
        };
        vec![
            store(*named),
            Cell::time_s(Some(faults.seconds)),
            Cell::count(faults.acquisitions),
            Cell::count(faults.overlaps).alarm_if(faults.overlaps > faults.admitted_overlaps),
            Cell::count(faults.admitted_overlaps),
            per_1000,
            Cell::count(faults.stale_refused),
            Cell::count(faults.lost_with_fencing).alarm_if(faults.lost_with_fencing > 0),
            Cell::count(faults.lost_without_fencing),
            Cell::count(faults.violations.len() as u64).alarm_if(!faults.violations.is_empty()),
        ]
    };
    table("Overlaps and lost updates under faults", &columns, shown.iter().map(row).collect())
}

fn violations(named: Named<'_>, faults: &UnderFaults) -> Markup {
    html! {
        @if !faults.violations.is_empty() {
            div.notice {
                p {
                    strong { (named.store.store) }
                    ": a promise was broken. This is a bug; please report it."
                }
                ul { @for violation in &faults.violations { li { (violation) } } }
            }
        }
    }
}

fn rounds(shown: &[(Named<'_>, &UnderFaults)]) -> Markup {
    let columns = [
        text("store"),
        text("faults"),
        number("acquisitions", ""),
        number("overlaps", ""),
        number("stale refused", "accesses"),
        number("lost without fencing", "updates"),
        number("all granted again after", ""),
    ];
    let row = |named: Named<'_>, round: &FaultRound| {
        vec![
            store(named),
            Cell::text(&round.faults.join(", ")),
            Cell::count(round.acquisitions),
            Cell::count(round.overlaps),
            Cell::count(round.stale_refused),
            Cell::count(round.lost_without_fencing),
            Cell::time_s(round.recovered_ms.map(|ms| ms as f64 / 1000.0)),
        ]
    };
    let rows: Vec<Vec<Cell>> = shown
        .iter()
        .flat_map(|(named, faults)| faults.rounds.iter().map(|round| row(*named, round)))
        .collect();
    match rows.is_empty() {
        true => not_measured("any single round"),
        false => folded("each round, one fault after the other", &columns, rows),
    }
}

fn commands(shown: &[(Named<'_>, &UnderFaults)]) -> Markup {
    let row = |(named, faults): &(Named<'_>, &UnderFaults)| {
        vec![store(*named), Cell::markup(html! { code { (faults.again) } })]
    };
    let rows = shown.iter().map(row).collect();
    folded("the commands that do it again, longer", &[text("store"), text("command")], rows)
}
