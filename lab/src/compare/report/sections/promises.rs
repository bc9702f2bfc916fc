//! Section 2: what each store guarantees, beside what was seen of it.

use maud::{Markup, html};

use crate::compare::report::bands::{Group, groups};
use crate::compare::report::numbers::count;
use crate::compare::report::stores::Named;
use crate::compare::report::table::{Cell, cards, number, store, text};

/// Texts that several stores share, each once, by their numbers.
#[derive(Default)]
struct Notes(Vec<String>);

impl Notes {
    /// The number of each of these texts.
    fn refer(&mut self, texts: &[String]) -> Markup {
        let numbers: Vec<usize> = texts.iter().map(|text| self.number(text)).collect();
        html! {
            @for (at, number) in numbers.into_iter().enumerate() {
                @if at > 0 { ", " }
                a href=(format!("#promise-{number}")) { (number) }
            }
        }
    }

    fn number(&mut self, text: &str) -> usize {
        let known = self.0.iter().position(|note| note == text);
        known.unwrap_or_else(|| {
            self.0.push(text.to_owned());
            self.0.len() - 1
        }) + 1
    }

    fn list(&self) -> Markup {
        html! {
            ol.notes { @for (at, text) in self.0.iter().enumerate() {
                li id=(format!("promise-{}", at + 1)) { (text) }
            } }
        }
    }
}

pub(crate) fn section(stores: &[Named<'_>]) -> Markup {
    if stores.is_empty() {
        return html! { p.absent { "No store was compared." } };
    }
    let columns = [
        text("store"),
        text("order"),
        text("freed after a crash"),
        text("fencing tokens rise"),
        text("two holders when"),
        number("overlaps seen", "of acquisitions"),
        number("lost without fencing", "updates"),
        number("slowest return", "after the TTL"),
    ];
    let mut dangers = Notes::default();
    let mut scopes: Vec<(String, Vec<Vec<Cell>>)> = Vec::new();
    for Group { members, .. } in groups(stores) {
        let title = members[0].store.promises.excludes.clone();
        let rows = members.into_iter().map(|named| row(named, &mut dangers));
        let rows: Vec<Vec<Cell>> = rows.collect();
        match scopes.iter_mut().find(|(known, _)| *known == title) {
            Some((_, known)) => known.extend(rows),
            None => scopes.push((title, rows)),
        }
    }
    html! {
        (cards("Guarantees of the stores, and what was observed", &columns, &scopes))
        @if !dangers.0.is_empty() {
            h3 { "Two clients may hold one lock when" }
            (dangers.list())
        }
    }
}

fn row(named: Named<'_>, dangers: &mut Notes) -> Vec<Cell> {
    let promises = &named.store.promises;
    let faults = named.store.faults.as_ref();
    let overlaps = match faults {
        None => Cell::figure(None),
        Some(faults) => Cell::markup(html! {
            (count(faults.overlaps)) " of " (count(faults.acquisitions))
        })
        .sorted_by(faults.overlaps as f64)
        .alarm_if(faults.overlaps > 0),
    };
    let slowest = match named.store.timelines.iter().all(|timeline| timeline.came_back) {
        true => Cell::time_s(named.beyond_ttl_s()),
        false => Cell::text("did not come back").alarm_if(true),
    };
    vec![
        store(named),
        Cell::text(&promises.order),
        Cell::text(&promises.dead_holder),
        Cell::text(&promises.tokens),
        match &*promises.exclusion_fails_when {
            [] => Cell::text("never"),
            when => Cell::markup(html! { span { "see " (dangers.refer(when)) } }),
        },
        overlaps,
        Cell::counted(faults.map(|faults| faults.lost_without_fencing)),
        slowest,
    ]
}
