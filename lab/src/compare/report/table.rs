//! Tables that can be sorted by each column, by pointer and by keyboard.

use std::borrow::Cow;

use maud::{Markup, PreEscaped, html};

use super::charts;
use super::numbers::{count, figure, time_s, time_us, upper};
use super::stores::Named;
use crate::compare::data::Spread;

/// The head of a column.
pub(super) struct Column {
    name: Cow<'static, str>,
    unit: &'static str,
    is_number: bool,
}

impl Column {
    /// Beside its cell, in a card.
    fn label(&self) -> String {
        match self.unit {
            "" => self.name.to_string(),
            unit => format!("{}, {unit}", self.name),
        }
    }
}

/// A column of figures in `unit`.
pub(super) fn number(name: impl Into<Cow<'static, str>>, unit: &'static str) -> Column {
    Column { name: name.into(), unit, is_number: true }
}

/// A column of text.
pub(super) fn text(name: impl Into<Cow<'static, str>>) -> Column {
    Column { name: name.into(), unit: "", is_number: false }
}

/// What stands in a row, and what it is sorted by.
pub(super) struct Cell {
    content: Markup,
    value: Option<f64>,
    class: &'static str,
}

impl Cell {
    pub(super) fn text(text: &str) -> Cell {
        Cell { content: html! { (text) }, value: None, class: "" }
    }

    pub(super) fn markup(content: Markup) -> Cell {
        Cell { content, value: None, class: "" }
    }

    /// Absent figures are a dash, and come last however they are sorted.
    pub(super) fn figure(value: Option<f64>) -> Cell {
        Cell::shown(value, figure)
    }

    pub(super) fn count(value: u64) -> Cell {
        Cell { content: html! { (count(value)) }, value: Some(value as f64), class: "" }
    }

    /// Of what may not have been measured.
    pub(super) fn counted(value: Option<u64>) -> Cell {
        Cell::shown(value.map(|value| value as f64), |value| count(value as u64))
    }

    pub(super) fn shown(value: Option<f64>, show: fn(f64) -> String) -> Cell {
        let content = match value {
            Some(value) => html! { (show(value)) },
            None => html! { span.none title="not measured" { "–" } },
        };
        Cell { content, value, class: "" }
    }

    /// Seconds, in the unit that suits them.
    pub(super) fn time_s(value: Option<f64>) -> Cell {
        Cell::shown(value, time_s)
    }

    /// Microseconds, in the unit that suits them.
    pub(super) fn time_us(value: Option<f64>) -> Cell {
        Cell::shown(value, time_us)
    }

    /// The median, with the least and the most.
    pub(super) fn spread(spread: Spread) -> Cell {
        let Spread { median, min, max } = spread;
        let content = html! {
            (figure(median)) " " span.spread { (figure(min)) "–" (figure(max)) }
        };
        Cell { content, value: Some(median), class: "" }
    }

    /// The same, among figures.
    pub(super) fn sorted_by(mut self, value: f64) -> Cell {
        self.value = Some(value);
        self
    }

    /// A figure that should have been 0.
    pub(super) fn alarm_if(mut self, alarm: bool) -> Cell {
        self.class = if alarm { "alarm" } else { self.class };
        self
    }
}

/// A row's store, in its colour.
pub(super) fn store(named: Named<'_>) -> Cell {
    Cell::markup(html! {
        span.swatch { (charts::swatch(named.place)) } span.store { (named.store.store) }
    })
}

/// A table that scrolls in its own box where it is too wide.
pub(super) fn table(caption: &str, columns: &[Column], rows: Vec<Vec<Cell>>) -> Markup {
    draw(caption, columns, &[(String::new(), rows)], "")
}

/// Rows under titles of their own; where it would be too wide, each row is a card.
pub(super) fn cards(
    caption: &str,
    columns: &[Column],
    groups: &[(String, Vec<Vec<Cell>>)],
) -> Markup {
    draw(caption, columns, groups, "cards")
}

fn draw(
    caption: &str,
    columns: &[Column],
    groups: &[(String, Vec<Vec<Cell>>)],
    class: &str,
) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(caption) {
            table class=[(!class.is_empty()).then_some(class)] {
                caption { (caption) }
                thead { tr { @for column in columns { (head(column)) } } }
                @for (title, rows) in groups {
                    tbody {
                        @if !title.is_empty() {
                            tr.group { th scope="rowgroup" colspan=(columns.len()) { (title) } }
                        }
                        @for row in rows {
                            tr { @for (at, cell) in row.iter().enumerate() {
                                (body(at, cell, &columns[at]))
                            } }
                        }
                    }
                }
            }
        }
    }
}

/// The same, closed until it is asked for.
pub(super) fn folded(caption: &str, columns: &[Column], rows: Vec<Vec<Cell>>) -> Markup {
    html! {
        details {
            summary { (upper(caption)) }
            (table(&upper(caption), columns, rows))
        }
    }
}

fn head(column: &Column) -> Markup {
    html! {
        th scope="col" aria-sort="none" class=[column.is_number.then_some("number")] {
            button type="button" {
                (column.name)
                @if !column.unit.is_empty() { " " span.unit { (column.unit) } }
                span.arrow aria-hidden="true" { (PreEscaped("&#8597;")) }
            }
        }
    }
}

fn body(at: usize, cell: &Cell, column: &Column) -> Markup {
    let class = [if column.is_number { "number" } else { "" }, cell.class].join(" ");
    let class = class.trim();
    let class = (!class.is_empty()).then_some(class);
    let value = cell.value.filter(|value| value.is_finite());
    html! {
        @if at == 0 {
            th scope="row" class=[class] data-value=[value] { (cell.content) }
        } @else {
            td class=[class] data-value=[value] data-label=(column.label()) { (cell.content) }
        }
    }
}
