//! Section 3: hand-off latency and fairness.

use maud::{Markup, html};

use super::settings;
use crate::compare::report::charts::{Axis, Curve, Point, lines};
use crate::compare::report::figure::{Figure, HALF, missing, not_measured};
use crate::compare::report::numbers::{exact_us, time_us};
use crate::compare::report::stores::{Named, without};
use crate::compare::report::table::{Cell, number, store, table, text};

pub(crate) fn section(stores: &[Named<'_>]) -> Markup {
    let shown: Vec<Named<'_>> =
        stores.iter().copied().filter(|named| named.store.hand_off.is_some()).collect();
    if shown.is_empty() {
        return not_measured("every store");
    }
    html! {
        p { "From the call of a release to the grant of the next waiter, after holds of 2 ms." }
        (chart(&shown))
        (figures(&shown))
        p.note { "Fairness is Jain's index over the clients' grants: 1 when all got the same, "
            "1/clients when one got all. Overtaken: grants to a client that had asked over a "
            "millisecond later than one that was still waiting." }
        (missing(&without(stores, |store| store.hand_off.is_some())))
    }
}

fn chart(shown: &[Named<'_>]) -> Markup {
    let drawable: Vec<Named<'_>> = shown
        .iter()
        .copied()
        .filter(|named| named.store.hand_off.as_ref().is_some_and(|it| it.distribution.len() > 1))
        .collect();
    if drawable.is_empty() {
        return not_measured("the distribution of hand-offs");
    }
    let hand_offs = || drawable.iter().filter_map(|named| named.store.hand_off.as_ref());
    let times = hand_offs().flat_map(|it| it.distribution.iter().map(|(us, _)| *us));
    let x = Axis::decades("from release to next grant", times, exact_us);
    let y = Axis::even("hand-offs completed within this time", (0.0, 100.0), 25.0, |percent| {
        format!("{percent:.0} %")
    });
    let curves: Vec<Curve> = drawable
        .iter()
        .filter_map(|named| {
            let distribution = &named.store.hand_off.as_ref()?.distribution;
            let point = |(us, share): &(f64, f64)| Point { x: *us, y: 100.0 * share, spread: None };
            let points = distribution.iter().map(point).collect();
            Some(Curve { place: named.place, points, has_marks: false })
        })
        .collect();
    let said: Vec<String> = drawable
        .iter()
        .filter_map(|named| {
            let it = named.store.hand_off.as_ref()?;
            Some(format!(
                "{}: half within {}, 99 % within {}",
                named.short(),
                time_us(it.p50_us),
                time_us(it.p99_us)
            ))
        })
        .collect();
    let clients = hand_offs().map(|it| it.clients).max().unwrap_or(0);
    Figure {
        title: "Hand-off latency, cumulative".to_owned(),
        alternative: said.join("; "),
        caption: html! {
            (clients) " clients hold or wait for one lock. The axis of time is logarithmic."
            (settings::note(&drawable))
        },
        legend: &drawable,
        sizes: [(1000, 380), HALF[1]],
    }
    .draw(|area, frame| lines(area, frame, (&x, &y), &curves))
}

fn figures(shown: &[Named<'_>]) -> Markup {
    let columns = [
        text("store"),
        number("clients", ""),
        number("grants", ""),
        number("p50", "µs"),
        number("p90", "µs"),
        number("p99", "µs"),
        number("max", "µs"),
        number("fairness", "0 to 1"),
        number("overtaken", "grants"),
    ];
    let row = |named: &Named<'_>| {
        let it = named.store.hand_off.as_ref()?;
        let times = [it.p50_us, it.p90_us, it.p99_us, it.max_us].map(|us| Cell::figure(Some(us)));
        let mut row = vec![store(*named), Cell::count(it.clients.into()), Cell::count(it.grants)];
        row.extend(times);
        row.extend([
            Cell::shown(Some(it.fairness), |value| format!("{value:.3}")),
            Cell::count(it.overtaken),
        ]);
        Some(row)
    };
    table("Hand-off latency and fairness", &columns, shown.iter().filter_map(row).collect())
}
