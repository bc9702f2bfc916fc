//! Section 5: throughput and latency against clients and against locks.

use maud::{Markup, html};

use crate::compare::data::{Comparison, Load, Spread, Store};
use crate::compare::report::charts::{Axis, Curve, Point, lines, lines_height};
use crate::compare::report::figure::{Figure, half, missing, not_measured};
use crate::compare::report::numbers::{exact, exact_us, figure, time_us, upper};
use crate::compare::report::stores::{Named, without};
use crate::compare::report::summary::can_prefer;
use crate::compare::report::table::{Cell, folded, number, store, table, text};

/// One way to load the stores.
struct Workload {
    title: &'static str,
    what: &'static str,
    of: fn(&Store) -> &[Load],
    /// What grows from figure to figure.
    axis: &'static str,
    grows: fn(&Load) -> u32,
}

const WORKLOADS: [Workload; 3] = [
    Workload {
        title: "Own locks",
        what: "Each client loops over a lock of its own: no client waits for another.",
        of: |store| &store.own_locks,
        axis: "clients",
        grows: |load| load.clients,
    },
    Workload {
        title: "One hot lock",
        what: "All clients loop over one lock: each pair is a hand-off.",
        of: |store| &store.one_lock,
        axis: "clients",
        grows: |load| load.clients,
    },
    Workload {
        title: "Shared locks",
        what: "A fixed number of clients share more and more locks, each client always the same one.",
        of: |store| &store.shared_locks,
        axis: "locks",
        grows: |load| load.locks,
    },
];

/// What is drawn of a load.
struct Measure {
    name: &'static str,
    of: fn(&Load) -> Spread,
    axis: &'static str,
    label: fn(f64) -> String,
    show: fn(f64) -> String,
}

const MEASURES: [Measure; 2] = [
    Measure {
        name: "throughput",
        of: |load| load.pairs_per_s,
        axis: "acquired and released pairs per second",
        label: exact,
        show: figure,
    },
    Measure {
        name: "time to acquire, p99",
        of: |load| load.acquire_p99_us,
        axis: "from the request to the grant, 99th percentile",
        label: exact_us,
        show: time_us,
    },
];

pub(crate) fn section(comparison: &Comparison, stores: &[Named<'_>]) -> Markup {
    html! {
        p { "An acquisition and its release are a pair. Clients are tasks of one process that share "
            "its connections. Both axes are logarithmic. Runs of " (figure(comparison.seconds)) " s; "
            (comparison.runs()) "." }
        @for workload in &WORKLOADS {
            h3 { (workload.title) }
            p { (workload.what) }
            (drawn(workload, stores, comparison))
        }
        h3 { "A fixed rate" }
        (fixed_rate(stores, can_prefer(comparison)))
    }
}

fn drawn(workload: &Workload, stores: &[Named<'_>], comparison: &Comparison) -> Markup {
    let shown: Vec<Named<'_>> =
        stores.iter().copied().filter(|named| !(workload.of)(named.store).is_empty()).collect();
    if shown.is_empty() {
        return not_measured("every store");
    }
    let absent = without(stores, |store| !(workload.of)(store).is_empty());
    html! {
        div.pair { @for measure in &MEASURES { (chart(workload, measure, &shown, comparison)) } }
        (missing(&absent))
        (figures(workload, &shown))
    }
}

fn chart(
    workload: &Workload,
    measure: &Measure,
    shown: &[Named<'_>],
    comparison: &Comparison,
) -> Markup {
    let loads = || shown.iter().flat_map(|named| (workload.of)(named.store));
    let x = Axis::steps(workload.axis, loads().map(workload.grows));
    // With the ends of the whiskers: what was measured lies inside.
    let values = loads().map(measure.of).flat_map(|of| [of.min, of.median, of.max]);
    let y = Axis::decades(measure.axis, values, measure.label);
    let curves = |letters: usize| -> Vec<Curve> {
        let curve = |named: &Named<'_>| {
            let point = |load: &Load| {
                let Spread { median, min, max } = (measure.of)(load);
                Point { x: (workload.grows)(load).into(), y: median, spread: (min, max) }
            };
            let mut points: Vec<Point> = (workload.of)(named.store).iter().map(point).collect();
            points.sort_by(|one, other| one.x.total_cmp(&other.x));
            Curve { place: named.place, name: named.within(letters), points }
        };
        shown.iter().map(curve).collect()
    };
    let last = |named: &Named<'_>| {
        let load = (workload.of)(named.store).iter().max_by_key(|load| (workload.grows)(load))?;
        let value = (measure.show)((measure.of)(load).median);
        Some(format!("{} {value} at {} {}", named.short(), (workload.grows)(load), workload.axis))
    };
    let at_most: Vec<String> = shown.iter().filter_map(last).collect();
    let clients = loads().map(|load| load.clients).max().unwrap_or(0);
    Figure {
        title: format!("{}: {}", workload.title, measure.name),
        alternative: at_most.join("; "),
        caption: html! {
            @if workload.axis == "locks" { (clients) " clients. " }
            (upper(&comparison.runs())) "."
        },
        sizes: half([360, 300].map(|height| lines_height(shown.len(), height))),
    }
    .draw(|area, frame| {
        lines(area, frame, (&x, &y), &curves(if frame.is_narrow() { 14 } else { 22 }))
    })
}

fn figures(workload: &Workload, shown: &[Named<'_>]) -> Markup {
    let columns = [
        text("store"),
        number("clients", ""),
        number("locks", ""),
        number("throughput", "pairs/s, least–most"),
        number("time to acquire p50", "µs, least–most"),
        number("time to acquire p99", "µs, least–most"),
    ];
    let rows = shown.iter().flat_map(|named| {
        (workload.of)(named.store).iter().map(|load| {
            vec![
                store(*named),
                Cell::count(load.clients.into()),
                Cell::count(load.locks.into()),
                Cell::spread(load.pairs_per_s),
                Cell::spread(load.acquire_p50_us),
                Cell::spread(load.acquire_p99_us),
            ]
        })
    });
    folded(&format!("{}: the figures", workload.title), &columns, rows.collect())
}

/// The last column teaches something only where there is enough to correct.
fn fixed_rate(stores: &[Named<'_>], with_uncorrected: bool) -> Markup {
    let mut columns = vec![
        text("store"),
        number("asked", "pairs/s"),
        number("done", "pairs/s"),
        number("p50", ""),
        number("p99", ""),
        number("p99.9", ""),
        number("max", ""),
    ];
    if with_uncorrected {
        columns.push(number("p99, uncorrected", ""));
    }
    let row = |named: &Named<'_>| {
        let rate = named.store.fixed_rate.as_ref()?;
        let rates = [rate.asked_per_s, rate.done_per_s].map(|value| Cell::figure(Some(value)));
        let times =
            [rate.acquire_p50_us, rate.acquire_p99_us, rate.acquire_p999_us, rate.acquire_max_us];
        let times = times.into_iter().chain(with_uncorrected.then_some(rate.uncorrected_p99_us));
        let times = times.map(|us| Cell::time_us(Some(us)));
        Some([store(*named)].into_iter().chain(rates).chain(times).collect())
    };
    let rows: Vec<Vec<Cell>> = stores.iter().filter_map(row).collect();
    if rows.is_empty() {
        return not_measured("every store");
    }
    html! {
        p { "Clients ask at fixed times, at half of the highest throughput, whether or not others still "
            "wait. A stall counts for every client that it delayed: HdrHistogram adds the latencies of "
            "the requests that could not be sent (coordinated omission)."
            @if with_uncorrected { " The last column is without that correction." } }
        (table("Time to acquire at a fixed rate", &columns, rows))
        (missing(&without(stores, |store| store.fixed_rate.is_some())))
    }
}
