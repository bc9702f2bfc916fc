//! The matrix in words: docs/faults.md.

use crate::table::{ALL, Store};
use crate::verdict::{Cell, Judged};

const BEGINNING: &str = "\
# Faults

What every store does about every fault. Made by the tests' own run: `./test` fails when a cell is
empty, when a test that is named here did not run or did not pass, or when this page says anything
else than that run has shown.

**S** is a lock's TTL, or ZooKeeper's session timeout; **t** is ZooKeeper's tick. Demanded
everywhere: no two validities overlap where the profile promises exclusion, a stale guarded write is
rejected, a holder is told by its deadline, work goes on after healing, and nothing is left behind.

| mark | meaning |
|---|---|
| ✓ | shown by the tests below the table |
| ⚠ | allowed to happen, as the store's profile says: a test makes it happen, counts it, and shows what holds nevertheless |
| – | nothing to test, and why, below the table |

A *suite* test is one of `conformance-tests/src/behaviours/`, run on every store; the others are
named by their target and their name there.
";

pub(crate) fn page(groups: &[(&str, Vec<Judged<'_>>)]) -> String {
    let mut page = BEGINNING.to_owned();
    for (title, rows) in groups {
        page += &format!("\n## {title}\n\n{}\n", table(rows));
        for row in rows {
            page += &notes(row);
        }
    }
    page
}

fn table(rows: &[Judged<'_>]) -> String {
    let titles: Vec<&str> = ALL.iter().map(|store| store.title()).collect();
    let mut table = format!(
        "| # | fault | demanded | {} |\n|---|---|---|{}\n",
        titles.join(" | "),
        ":-:|".repeat(titles.len())
    );
    for Judged { row, cells, .. } in rows {
        let marks: Vec<&str> = cells.iter().map(mark).collect();
        let marks = marks.join(" | ");
        table += &format!("| {} | {} | {} | {marks} |\n", row.number, row.fault, row.demand);
    }
    table
}

fn mark(cell: &Cell) -> &'static str {
    match cell {
        Cell::Proved => "✓",
        Cell::Allowed => "⚠",
        Cell::Ignored => "–",
    }
}

fn notes(row: &Judged<'_>) -> String {
    let mut notes = format!("- **{}** {}\n", row.row.number, row.row.fault);
    for (stores, note) in &row.notes {
        notes += &format!("  - {}: {note}\n", names(stores));
    }
    notes
}

fn names(stores: &[Store]) -> String {
    if stores.len() == ALL.len() {
        return "all".to_owned();
    }
    stores.iter().map(|store| store.title()).collect::<Vec<_>>().join(", ")
}
