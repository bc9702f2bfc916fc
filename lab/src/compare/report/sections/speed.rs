//! Section 2: throughput and latency against clients and against locks.

use maud::{Markup, html};

use super::settings;
use crate::compare::data::{Comparison, Load, Spread, Store};
use crate::compare::report::charts::{Axis, Curve, Point, lines};
use crate::compare::report::figure::{Figure, HALF, missing, not_measured};
use crate::compare::report::numbers::{exact, exact_us, figure, time_us};
use crate::compare::report::stores::{Named, without};
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
            "its connections. Both axes are logarithmic; whiskers reach from the least to the most of "
            (comparison.repeats) " runs of " (figure(comparison.seconds)) " s each, the line goes "
            "through their medians." }
        @for workload in &WORKLOADS {
            h3 { (workload.title) }
            p { (workload.what) }
            (drawn(workload, stores))
        }
        h3 { "A fixed rate" }
        (fixed_rate(stores))
    }
}

fn drawn(workload: &Workload, stores: &[Named<'_>]) -> Markup {
    let shown: Vec<Named<'_>> =
        stores.iter().copied().filter(|named| !(workload.of)(named.store).is_empty()).collect();
    if shown.is_empty() {
        return not_measured("every store");
    }
    let absent = without(stores, |store| !(workload.of)(store).is_empty());
    html! {
        div.pair { @for measure in &MEASURES { (chart(workload, measure, &shown)) } }
        (missing(&absent))
        (figures(workload, &shown))
    }
}

fn chart(workload: &Workload, measure: &Measure, shown: &[Named<'_>]) -> Markup {
    let loads = || shown.iter().flat_map(|named| (workload.of)(named.store));
    let x = Axis::steps(workload.axis, loads().map(workload.grows));
    let y =
        Axis::decades(measure.axis, loads().map(|load| (measure.of)(load).median), measure.label);
    let curve = |named: &Named<'_>| {
        let point = |load: &Load| {
            let Spread { median, min, max } = (measure.of)(load);
            Point { x: (workload.grows)(load).into(), y: median, spread: Some((min, max)) }
        };
        let points = (workload.of)(named.store).iter().map(point).collect();
        Curve { place: named.place, points, has_marks: true }
    };
    let curves: Vec<Curve> = shown.iter().map(curve).collect();
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
            "Medians; whiskers from the least to the most." (settings::note(shown))
        },
        legend: shown,
        sizes: HALF,
    }
    .draw(|area, frame| lines(area, frame, (&x, &y), &curves))
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

fn fixed_rate(stores: &[Named<'_>]) -> Markup {
    let columns = [
        text("store"),
        number("asked", "pairs/s"),
        number("done", "pairs/s"),
        number("p50", "µs"),
        number("p99", "µs"),
        number("p99.9", "µs"),
        number("max", "µs"),
        number("p99, uncorrected", "µs"),
    ];
    let row = |named: &Named<'_>| {
        let rate = named.store.fixed_rate.as_ref()?;
        let figures = [
            rate.asked_per_s,
            rate.done_per_s,
            rate.acquire_p50_us,
            rate.acquire_p99_us,
            rate.acquire_p999_us,
            rate.acquire_max_us,
            rate.uncorrected_p99_us,
        ];
        let figures = figures.map(|value| Cell::figure(Some(value)));
        Some([store(*named)].into_iter().chain(figures).collect())
    };
    let rows: Vec<Vec<Cell>> = stores.iter().filter_map(row).collect();
    if rows.is_empty() {
        return not_measured("every store");
    }
    html! {
        p { "Clients ask at fixed times, at half of the highest throughput, whether or not others still "
            "wait. A stall counts for every client that it delayed: HdrHistogram adds the latencies of "
            "the requests that could not be sent (coordinated omission). The last column is without "
            "that correction." }
        (table("Time to acquire at a fixed rate", &columns, rows))
        (missing(&without(stores, |store| store.fixed_rate.is_some())))
    }
}
