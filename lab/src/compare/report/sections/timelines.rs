//! Section 3: grants around each kind of failure.

use maud::{Markup, html};

use crate::compare::data::Timeline;
use crate::compare::report::charts::{Panel, panel_height, panels};
use crate::compare::report::figure::{Figure, missing, not_measured};
use crate::compare::report::numbers::{time_s, upper};
use crate::compare::report::stores::{Named, without};
use crate::compare::report::table::{Cell, Column, folded, number, store, table, text};

pub(crate) fn section(stores: &[Named<'_>]) -> Markup {
    let mut failures: Vec<&str> = Vec::new();
    for timeline in stores.iter().flat_map(|named| &named.store.timelines) {
        if !failures.contains(&&*timeline.failure) {
            failures.push(&timeline.failure);
        }
    }
    if failures.is_empty() {
        return not_measured("every store");
    }
    html! {
        p { "Grants of one lock in each tenth of a second. Red line: the failure; shaded: from the "
            "failure until the repair. Each panel's axis begins at 0 and names its maximum. No lock of a "
            "dead holder is free before its TTL, here " (ttls(stores)) "." }
        div.pair { @for failure in &failures { (chart(failure, stores)) } }
        (standstills(&failures, stores))
        (figures(stores))
    }
}

fn ttls(stores: &[Named<'_>]) -> String {
    let timelines = stores.iter().flat_map(|named| &named.store.timelines);
    let mut ttls: Vec<String> = timelines.map(|timeline| time_s(timeline.ttl_s)).collect();
    ttls.sort();
    ttls.dedup();
    ttls.join(" or ")
}

fn chart(failure: &str, stores: &[Named<'_>]) -> Markup {
    let hit: Vec<(Named<'_>, &Timeline)> = stores
        .iter()
        .flat_map(|named| named.store.timelines.iter().map(|timeline| (*named, timeline)))
        .filter(|(_, timeline)| timeline.failure == failure)
        .collect();
    let shown: Vec<Panel> = hit.iter().map(|(named, timeline)| panel(*named, timeline)).collect();
    let said: Vec<String> = hit
        .iter()
        .map(|(named, timeline)| format!("{}: {}", named.short(), standstill(timeline)))
        .collect();
    let clients = hit.iter().map(|(_, timeline)| timeline.clients).max().unwrap_or(0);
    let height = panel_height(shown.len());
    Figure {
        title: format!("{}: grants per 100 ms", upper(failure)),
        alternative: said.join("; "),
        caption: html! {
            (clients) " clients loop over one lock, with holds of a few milliseconds."
        },
        sizes: [(560, height), (340, height)],
    }
    .draw(|area, frame| panels(area, frame, &shown))
}

fn panel(named: Named<'_>, timeline: &Timeline) -> Panel {
    let seconds = |ms: f64| (ms - timeline.failed_at_ms as f64) / 1000.0;
    let step = |(at, grants): (usize, &u32)| (seconds(100.0 * at as f64), f64::from(*grants));
    Panel {
        place: named.place,
        name: named.short(),
        steps: timeline.grants_per_100_ms.iter().enumerate().map(step).collect(),
        healed: seconds(timeline.healed_at_ms as f64),
        note: standstill(timeline),
    }
}

fn standstill(timeline: &Timeline) -> String {
    match timeline.came_back {
        true => format!("{} stall", time_s(timeline.without_progress_s)),
        false => "did not come back".to_owned(),
    }
}

/// A store's row has a figure for each failure.
fn standstills(failures: &[&str], stores: &[Named<'_>]) -> Markup {
    let columns: Vec<Column> = [text("store")]
        .into_iter()
        .chain(failures.iter().map(|failure| number((*failure).to_owned(), "")))
        .collect();
    let cell = |named: &Named<'_>, failure: &str| {
        let timelines = &named.store.timelines;
        let Some(timeline) = timelines.iter().find(|timeline| timeline.failure == failure) else {
            return Cell::figure(None);
        };
        let seconds = timeline.without_progress_s;
        match timeline.came_back {
            true => Cell::time_s(Some(seconds)),
            false => {
                Cell::markup(html! { "over " (time_s(seconds)) }).sorted_by(seconds).alarm_if(true)
            }
        }
    };
    let rows = stores.iter().filter(|named| !named.store.timelines.is_empty()).map(|named| {
        [store(*named)].into_iter().chain(failures.iter().map(|it| cell(named, it))).collect()
    });
    html! {
        (table("Longest gap between grants around the failure", &columns, rows.collect()))
        (missing(&without(stores, |store| !store.timelines.is_empty())))
    }
}

fn figures(stores: &[Named<'_>]) -> Markup {
    let columns = [
        text("store"),
        text("failure"),
        number("without progress", ""),
        number("failure lasted", ""),
        number("errors returned", "errors"),
        text("came back"),
    ];
    let rows = stores.iter().flat_map(|named| {
        named.store.timelines.iter().map(|timeline| {
            let lasted = timeline.healed_at_ms.saturating_sub(timeline.failed_at_ms);
            vec![
                store(*named),
                Cell::text(&timeline.failure),
                Cell::time_s(Some(timeline.without_progress_s)),
                Cell::time_s(Some(lasted as f64 / 1000.0)),
                Cell::count(timeline.errors),
                Cell::text(if timeline.came_back { "yes" } else { "no" })
                    .alarm_if(!timeline.came_back),
            ]
        })
    });
    folded("each failure, with errors", &columns, rows.collect())
}
