//! The page around the sections.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};

use super::charts;
use super::numbers::{counted, time_s};
use super::requirements::Requirements;
use super::sections::{
    cost, faults, hand_off, overview, promises, sale, settings, speed, timelines,
};
use super::stores::{Named, named};
use crate::compare::data::Comparison;

const SCRIPT: &str = include_str!("page/sort.js");

/// A part of the page: its anchor, its title and what is in it.
struct Section {
    anchor: &'static str,
    title: &'static str,
    content: Markup,
}

pub(super) fn page(comparison: &Comparison, requirements: Option<&Requirements>) -> Markup {
    let stores = named(comparison);
    let style = charts::style() + include_str!("page/style.css");
    let sections = sections(comparison, &stores, requirements);
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy(&style));
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "fencelock compare: " (comparison.began) }
                style { (PreEscaped(&style)) }
            }
            body {
                a.skip href="#summary" { "To the summary" }
                nav aria-label="Sections" {
                    ol { @for section in &sections {
                        li { a href=(format!("#{}", section.anchor)) { (section.title) } }
                    } }
                }
                main {
                    (header(comparison))
                    (notices(comparison, &stores))
                    @for section in &sections {
                        section id=(section.anchor) {
                            h2 { (section.title) }
                            (section.content)
                        }
                    }
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    }
}

/// Nothing is fetched from anywhere, and only the page's own style and script are used.
fn policy(style: &str) -> String {
    let hash = |text: &str| STANDARD.encode(Sha256::digest(text.as_bytes()));
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'; \
         form-action 'none'",
        hash(style),
        hash(SCRIPT)
    )
}

fn sections(
    comparison: &Comparison,
    stores: &[Named<'_>],
    requirements: Option<&Requirements>,
) -> Vec<Section> {
    let section = |anchor, title, content| Section { anchor, title, content };
    let mut sections = vec![
        section("summary", "Summary", overview::section(comparison, stores, requirements)),
        section("guarantees", "Guarantees", promises::section(stores)),
        section("failures", "Failures", timelines::section(stores)),
        section("faults", "Two holders at once", faults::section(stores)),
        section("speed", "Speed", speed::section(comparison, stores)),
        section("hand-off", "Hand-off", hand_off::section(stores)),
        section("cost", "Cost of a lock", cost::section(stores)),
    ];
    if stores.iter().any(|named| !named.store.flash_sales.is_empty()) {
        sections.push(section("flash-sale", "Flash sale", sale::section(stores)));
    }
    sections.push(section("settings", "Settings", settings::section(comparison, stores)));
    sections
}

fn header(comparison: &Comparison) -> Markup {
    let machine = &comparison.machine;
    html! {
        header {
            h1 { "Which store for your locks?" }
            p.lead {
                (counted(comparison.stores.len() as u64, "store", "stores"))
                " measured, with and without faults, on this machine ("
                (counted(machine.threads as u64, "hardware thread", "hardware threads")) ", "
                (machine.processor) ") by fencelock " (comparison.fencelock) ", "
                time datetime=(comparison.began) { (comparison.began.replace('T', " ").replace('Z', " UTC")) }
                ", in " (time_s(comparison.took_s)) ": " code { (comparison.command) }
            }
            p.network { strong { (comparison.between()) "." }
                @if comparison.network.is_none() {
                    " Each request that a lock needs takes one round trip of yours longer." }
            }
        }
    }
}

/// What is missing, before the sections that lack it.
fn notices(comparison: &Comparison, stores: &[Named<'_>]) -> Markup {
    let failures: Vec<_> = stores
        .iter()
        .flat_map(|named| named.store.failures.iter().map(|failure| (*named, failure)))
        .collect();
    let is_complete =
        !comparison.was_stopped && failures.is_empty() && comparison.left_out.is_empty();
    html! {
        @if !is_complete {
            aside.notice aria-label="What is missing" {
                @if comparison.was_stopped {
                    p { strong { "Stopped early. " } "What is here was complete by then; the rest is missing." }
                }
                @if !(comparison.left_out.is_empty() && failures.is_empty()) {
                    ul {
                        @for left in &comparison.left_out {
                            li { strong { (left.store) } " was left out: " (left.why) }
                        }
                        @for (named, failure) in failures {
                            li {
                                strong { (named.store.store) ", " (failure.stage) }
                                " was not completed: " (failure.why)
                            }
                        }
                    }
                }
            }
        }
    }
}
