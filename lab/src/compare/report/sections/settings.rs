//! Section 7: what was measured, on what, and how to do it again.

use maud::{Markup, html};

use crate::compare::data::Comparison;
use crate::compare::report::numbers::{bytes, figure};
use crate::compare::report::stores::Named;
use crate::compare::report::table::{Cell, store, table, text};

pub(crate) fn section(comparison: &Comparison, stores: &[Named<'_>]) -> Markup {
    let columns = [text("store"), text("settings"), text("servers")];
    let row = |named: &Named<'_>| {
        let servers = named.store.servers.join(", ");
        let servers = if servers.is_empty() { "–" } else { &servers };
        vec![store(*named), Cell::text(&named.store.settings), Cell::text(servers)]
    };
    let machine = &comparison.machine;
    let facts = [
        ("Command", html! { code { (comparison.command) } }),
        ("Seed", html! { (comparison.seed) }),
        ("Began", html! { (comparison.began) }),
        ("Took", html! { (figure(comparison.took_s)) " s" }),
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
            li { "Clients, servers and this program share one machine: there is no network between "
                "them. Add your network's round trips to what a lock costs." }
            li { "Differences within the spread of repeated runs mean nothing." }
            li { "A store in which no overlap was seen may still have some: the bound says how rare "
                "they are at least. Its guarantees say what must fail first." }
            li { "The seed decides which faults come in which order; times are those of real "
                "processes and differ from run to run." }
        }
    }
}

/// The settings of a chart's stores, in its caption.
pub(crate) fn note(stores: &[Named<'_>]) -> Markup {
    html! {
        details.note {
            summary { "Settings and versions" }
            @for named in stores {
                p {
                    strong { (named.short()) } ": " (named.store.settings)
                    @if let Some(version) = named.store.servers.first() { " (" (version) ")" }
                }
            }
        }
    }
}
