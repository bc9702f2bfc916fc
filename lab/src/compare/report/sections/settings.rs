//! Section 8: what was measured, on what, and how to do it again.

use maud::{Markup, html};

use crate::compare::data::Comparison;
use crate::compare::report::numbers::{bytes, figure, time_s};
use crate::compare::report::stores::Named;
use crate::compare::report::table::{Cell, store, table, text};

pub(crate) fn section(comparison: &Comparison, stores: &[Named<'_>]) -> Markup {
    let columns = [text("store"), text("settings"), text("servers"), text("you run")];
    let row = |named: &Named<'_>| {
        let servers = named.store.servers.join(", ");
        let servers = if servers.is_empty() { "–" } else { &servers };
        let to_run = named.store.to_run.as_deref().unwrap_or("–");
        vec![
            store(*named),
            Cell::text(&named.store.settings),
            Cell::text(servers),
            Cell::text(to_run),
        ]
    };
    let machine = &comparison.machine;
    let facts = [
        ("Command", html! { code { (comparison.command) } }),
        ("Seed", html! { (comparison.seed) }),
        ("Began", html! { (comparison.began) }),
        ("Took", html! { (time_s(comparison.took_s)) }),
        (
            "Each measurement of speed",
            html! {
                (figure(comparison.seconds)) " s, " (comparison.repeats) " times"
            },
        ),
        ("Faults injected at the same time", html! { (comparison.broken_together) " stores" }),
        ("fencelock", html! { (comparison.fencelock) }),
        ("Processor", html! { (machine.processor) ", " (machine.threads) " hardware threads" }),
        ("Memory", html! { (bytes(machine.memory_bytes as f64)) }),
        ("System", html! { (machine.system) ", " (machine.file_system) " for temporary files" }),
        ("Load at the start", html! { (figure(machine.load_at_start)) " (average of a minute)" }),
    ];
    html! {
        @if !stores.is_empty() {
            (table("Server settings", &columns, stores.iter().map(row).collect()))
        }
        dl { @for (name, value) in facts { div { dt { (name) } dd { (value) } } } }
        h3 { "How to read this" }
        ul {
            li { (comparison.between()) ", and clients, servers and this program share one machine. "
                @if comparison.network.is_none() {
                    "Add your network's round trips to what a lock costs, or measure with, for example, "
                    code { "--rtt 0.5ms" } "." } }
            li { "Differences within the spread of repeated runs mean nothing." }
            li { "A store in which no overlap was seen may still have some: the bound says how rare "
                "they are at least. Its guarantees say what must fail first." }
            li { "The seed decides which faults come in which order; times are those of real "
                "processes and differ from run to run." }
            @if !stores.iter().any(|named| named.store.store.starts_with("redis-cluster")) {
                li { "redis-cluster was not measured. It is three masters of the same server, with a "
                    "replica each: " code { "fencelock-lab compare redis-cluster" } " measures it." }
            }
        }
    }
}
