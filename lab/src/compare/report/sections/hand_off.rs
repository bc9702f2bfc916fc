//! Section 6: hand-off latency and fairness.

use maud::{Markup, html};

use crate::compare::data::HandOff;
use crate::compare::report::charts::{Axis, Row, RowGroup, rows, rows_height};
use crate::compare::report::figure::{Figure, missing, not_measured};
use crate::compare::report::numbers::{exact_us, time_us};
use crate::compare::report::stores::{Named, without};
use crate::compare::report::table::{Cell, number, store, table, text};

pub(crate) fn section(stores: &[Named<'_>]) -> Markup {
    let mut shown: Vec<(Named<'_>, &HandOff)> =
        stores.iter().filter_map(|named| Some((*named, named.store.hand_off.as_ref()?))).collect();
    if shown.is_empty() {
        return not_measured("every store");
    }
    shown.sort_by(|(_, one), (_, other)| one.p50_us.total_cmp(&other.p50_us));
    html! {
        p { "From the call of a release to the grant of the next waiter, after holds of 2 ms." }
        (chart(&shown))
        (figures(&shown))
        p.note { "Fairness is Jain's index over the clients' grants: 1 when all got the same, "
            "1/clients when one got all. Overtaken: grants to a client that had asked over a "
            "millisecond later than one that was still waiting. Asking is not yet queueing: requests "
            "of clients that ask at almost the same time reach the store in any order, so a few of "
            "these break no promise of an order." }
        (missing(&without(stores, |store| store.hand_off.is_some())))
    }
}

fn chart(shown: &[(Named<'_>, &HandOff)]) -> Markup {
    let group = |letters: usize| {
        let row = |(named, it): &(Named<'_>, &HandOff)| Row {
            place: named.place,
            name: named.within(letters),
            line: (it.p50_us, it.max_us),
            mark: it.p50_us,
            further: vec![it.p99_us],
            text: time_us(it.p50_us),
            badge: None,
        };
        let rows = shown.iter().map(row).collect();
        [RowGroup { title: String::new(), is_alarm: false, rows }]
    };
    let times = shown.iter().flat_map(|(_, it)| [it.p50_us, it.p99_us, it.max_us]);
    let axis = Axis::decades("from release to next grant", times, exact_us);
    let said = shown.iter().map(|(named, it)| {
        let (half, most) = (time_us(it.p50_us), time_us(it.p99_us));
        format!("{}: half within {half}, 99 % within {most}", named.short())
    });
    let clients = shown.iter().map(|(_, it)| it.clients).max().unwrap_or(0);
    let height = rows_height(&group(1));
    Figure {
        title: "Hand-off latency".to_owned(),
        alternative: said.collect::<Vec<_>>().join("; "),
        caption: html! {
            (clients) " clients hold or wait for one lock. Full mark and figure: half of the hand-offs "
            "completed within this time; hollow mark: 99 % of them; end of the line: the slowest. The "
            "axis is logarithmic."
        },
        sizes: [(860, height), (340, height)],
    }
    .draw(|area, frame| {
        rows(area, frame, &axis, &group(if frame.is_narrow() { 15 } else { 30 }))
    })
}

fn figures(shown: &[(Named<'_>, &HandOff)]) -> Markup {
    let columns = [
        text("store"),
        number("clients", ""),
        number("grants", ""),
        number("p50", ""),
        number("p90", ""),
        number("p99", ""),
        number("max", ""),
        number("fairness", "0 to 1"),
        number("overtaken", "grants"),
    ];
    let row = |(named, it): &(Named<'_>, &HandOff)| {
        let times = [it.p50_us, it.p90_us, it.p99_us, it.max_us].map(|us| Cell::time_us(Some(us)));
        let mut row = vec![store(*named), Cell::count(it.clients.into()), Cell::count(it.grants)];
        row.extend(times);
        row.extend([
            Cell::shown(Some(it.fairness), |value| format!("{value:.2}")),
            Cell::count(it.overtaken),
        ]);
        row
    };
    table("Hand-off latency and fairness", &columns, shown.iter().map(row).collect())
}
