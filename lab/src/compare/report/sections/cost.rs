//! Section 7: what a lock costs its servers, its clients and the network.

use maud::{Markup, html};

use crate::compare::data::Cost;
use crate::compare::report::figure::{missing, not_measured};
use crate::compare::report::numbers::{bytes_per_minute, exact};
use crate::compare::report::stores::{Named, USUAL_TTL_S, at_the_usual_ttl, without};
use crate::compare::report::table::{Cell, number, store, table, text};

pub(crate) fn section(stores: &[Named<'_>]) -> Markup {
    let shown: Vec<(Named<'_>, &Cost)> =
        stores.iter().filter_map(|named| Some((*named, named.store.cost.as_ref()?))).collect();
    if shown.is_empty() {
        return not_measured("every store");
    }
    html! {
        p { "Of one acquisition with its release. A dash: the store has no such figure, or does "
            "not report it." }
        (pairs(&shown))
        h3 { "Idle cost of a held lock" }
        p { "At a TTL, or a session's timeout, of " (exact(USUAL_TTL_S)) " s. Measured with shorter ones, "
            "since renewals and heartbeats come in each third of it." }
        (idle(&shown))
        (missing(&without(stores, |store| store.cost.is_some())))
    }
}

fn pairs(shown: &[(Named<'_>, &Cost)]) -> Markup {
    let columns = [
        text("store"),
        number("requests", "per pair"),
        number("commands in servers", "per pair"),
        number("bytes to servers", "B/pair"),
        number("bytes from servers", "B/pair"),
        number("servers' CPU", "µs/pair"),
        number("clients' CPU", "µs/pair"),
    ];
    let row = |(named, cost): &(Named<'_>, &Cost)| {
        let figures = [
            cost.requests_per_pair,
            cost.commands_per_pair,
            cost.bytes_to_servers_per_pair,
            cost.bytes_from_servers_per_pair,
            cost.server_cpu_us_per_pair,
            cost.client_cpu_us_per_pair,
        ];
        [store(*named)].into_iter().chain(figures.map(Cell::figure)).collect()
    };
    table("What one pair costs", &columns, shown.iter().map(row).collect())
}

fn idle(shown: &[(Named<'_>, &Cost)]) -> Markup {
    let columns = [
        text("store"),
        number("locks held", ""),
        number("requests", "per minute"),
        number("traffic", "of a lock"),
        number("servers' memory", "B/lock"),
        number("client's memory", "B/lock"),
    ];
    let row = |(named, cost): &(Named<'_>, &Cost)| {
        let idle = cost.idle.as_ref()?;
        let requests = idle.requests_per_minute.map(|it| at_the_usual_ttl(idle, it));
        Some(vec![
            store(*named),
            Cell::count(idle.locks.into()),
            Cell::figure(requests),
            Cell::shown(named.idle_bytes(), bytes_per_minute),
            Cell::figure(idle.server_memory_bytes),
            Cell::figure(idle.client_memory_bytes),
        ])
    };
    let rows: Vec<Vec<Cell>> = shown.iter().filter_map(row).collect();
    match rows.is_empty() {
        true => not_measured("every store"),
        false => table("What a held lock costs", &columns, rows),
    }
}
