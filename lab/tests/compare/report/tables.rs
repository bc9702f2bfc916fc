//! Every table sorts by each of its columns, by pointer and by keyboard.

use std::cmp::Ordering;

use serde::Deserialize;

use super::browser::{Chromium, Mode, Page};
use super::{Report, sample};

#[derive(Deserialize, Clone, Debug, PartialEq)]
struct Row {
    /// Its place before anything was sorted.
    place: usize,
    value: Option<f64>,
    text: String,
    /// How its text and the one below compare, by the browser's rules, which are not ours for marks and
    /// spaces.
    order: Option<i32>,
}

/// A column, and its table sorted by it or not.
#[derive(Deserialize, Debug)]
struct Column {
    is_number: bool,
    sorted: String,
    rows: Vec<Row>,
    /// The columns that say that the table is sorted by them.
    sorted_by: usize,
}

/// What the tests share in the page. Each row remembers its place. What is sorted is the rows of a
/// body: those of a group stay together.
const PREPARE: &str = r#"(() => {
  for (const details of document.querySelectorAll("details")) details.open = true;
  const tables = [...document.querySelectorAll("tbody")];
  const heads = (table) => [...tables[table].closest("table").tHead.rows[0].cells];
  const rows = (table) => [...tables[table].querySelectorAll("tr:not(.group)")];
  tables.forEach((_, table) => rows(table).forEach((row, place) => { row.dataset.place = place; }));
  window.button = (table, at) => heads(table)[at].querySelector("button");
  window.column = (table, at) => {
    const texts = rows(table).map((row) => row.cells[at].textContent.trim());
    return {
      is_number: heads(table)[at].classList.contains("number"),
      sorted: heads(table)[at].ariaSort,
      sorted_by: heads(table).filter((head) => head.ariaSort !== "none").length,
      rows: rows(table).map((row, index) => ({
        place: Number(row.dataset.place),
        value: row.cells[at].dataset.value === undefined ? null : Number(row.cells[at].dataset.value),
        text: texts[index],
        order: index + 1 < texts.length
          ? Math.sign(texts[index].localeCompare(texts[index + 1])) : null,
      })),
    };
  };
  window.sort = (table, at) => {
    const before = column(table, at);
    return [before, ...[1, 2].map(() => (button(table, at).click(), column(table, at)))];
  };
  return tables.map((_, table) => heads(table).length);
})()"#;

fn open(chromium: &Chromium, report: &Report) -> (Page, Vec<usize>) {
    let page = chromium.open(&report.page(), (1360, 900), Mode::Light);
    let columns: Vec<usize> = page.ask(PREPARE);
    assert_eq!(columns.len(), 17, "tables, or groups of rows in one");
    (page, columns)
}

fn button(table: usize, column: usize) -> String {
    format!("button({table}, {column})")
}

fn column(page: &Page, table: usize, column: usize) -> Column {
    page.ask(&format!("column({table}, {column})"))
}

/// Rows in the order that a reader expects; equal ones keep theirs.
fn expected(rows: &[Row], upwards: bool) -> Vec<usize> {
    let mut rows = rows.to_vec();
    let turned = |order: Ordering| if upwards { order } else { order.reverse() };
    rows.sort_by(|one, other| match (one.value, other.value) {
        (Some(one), Some(other)) => turned(one.total_cmp(&other)),
        (one, other) => one.is_none().cmp(&other.is_none()),
    });
    places(&rows)
}

fn places(rows: &[Row]) -> Vec<usize> {
    rows.iter().map(|row| row.place).collect()
}

fn assert_sorted(what: &str, before: &Column, now: &Column, upwards: bool) {
    let direction = if upwards { "ascending" } else { "descending" };
    assert_eq!((now.sorted.as_str(), now.sorted_by), (direction, 1), "{what}");
    if before.is_number {
        let expected = expected(&before.rows, upwards);
        assert_eq!(places(&now.rows), expected, "{what}, {direction}: {now:?}");
        return;
    }
    let wrong = if upwards { 1 } else { -1 };
    let is_wrong = now.rows.iter().any(|row| row.order == Some(wrong));
    assert!(!is_wrong, "{what}, {direction}: {now:?}");
    let mut places = places(&now.rows);
    places.sort_unstable();
    assert!(places.into_iter().eq(0..before.rows.len()), "{what}: every row is still there");
}

#[test]
fn every_table_sorts_by_each_of_its_columns() {
    let (chromium, report) = (Chromium::start(), Report::of(&sample()));
    let (page, columns) = open(&chromium, &report);
    let mut numbers = 0;
    for (table, columns) in columns.into_iter().enumerate() {
        let sorted: Vec<[Column; 3]> =
            page.ask(&format!("Array.from({{ length: {columns} }}, (_, at) => sort({table}, at))"));
        for (at, [before, first, second]) in sorted.iter().enumerate() {
            let what = format!("table {table}, column {at}");
            assert_sorted(&what, before, first, true);
            assert_sorted(&what, first, second, false);
            numbers += usize::from(before.is_number);
        }
    }
    assert!(numbers > 40, "{numbers} columns of numbers");
    assert_eq!(page.complaints(), [""; 0]);
}

#[test]
fn tables_sort_by_pointer_and_by_keyboard() {
    let (chromium, report) = (Chromium::start(), Report::of(&sample()));
    let (page, columns) = open(&chromium, &report);
    for (table, at) in [(0, 0), (16, columns[16] - 1)] {
        for upwards in [true, false] {
            let before = column(&page, table, at);
            page.click(&button(table, at));
            assert_sorted("by pointer", &before, &column(&page, table, at), upwards);
        }
    }
    let (table, at) = (3, columns[3] - 1);
    let () = page.ask(&format!("({}.focus(), null)", button(table, 0)));
    for _ in 0..at {
        page.press("Tab");
    }
    let has_focus = format!("document.activeElement === {}", button(table, at));
    assert!(page.ask::<bool>(&has_focus), "Tab goes from head to head");
    let outlined: bool =
        page.ask("getComputedStyle(document.activeElement).outlineStyle !== 'none'");
    assert!(outlined, "one sees where one is");
    for (key, upwards) in [("Enter", true), (" ", false)] {
        let before = column(&page, table, at);
        page.press(key);
        assert_sorted("by keyboard", &before, &column(&page, table, at), upwards);
        assert!(page.ask::<bool>(&has_focus), "the focus stays");
    }
    assert_eq!(page.complaints(), [""; 0]);
}
