//! The matrix as text: docs/faults.md.

use crate::faults::Fault;
use crate::store::{ALL, Store};
use crate::verdict::{Cell, Judged};

const BEGINNING: &str = "\
# Faults

How every store handles every fault. Generated from the tests' output: `./test` fails when a cell is
empty, when a test that is named here did not run or did not pass, or when this page differs from the
results of that run.

**S** is a lock's TTL, or ZooKeeper's session timeout; **t** is ZooKeeper's tick. Required
everywhere: no two validities overlap where the profile promises exclusion, a stale guarded write is
rejected, a holder is notified by its deadline, work continues after healing, and nothing is left
behind.

| mark | meaning |
|---|---|
| ✓ | shown by the tests below the table |
| ⚠ | permitted by the store's profile: a test makes it happen, counts it, and shows what holds nevertheless |
| – | nothing to test; the reason is below the table |

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
        "| # | fault | required | {} |\n|---|---|---|{}\n",
        titles.join(" | "),
        ":-:|".repeat(titles.len())
    );
    for Judged { fault, cells, .. } in rows {
        let marks: Vec<&str> = cells.iter().map(mark).collect();
        let marks = marks.join(" | ");
        let Fault { number, fault, required, .. } = fault;
        table += &format!("| {number} | {fault} | {required} | {marks} |\n");
    }
    table
}

fn mark(cell: &Cell) -> &'static str {
    match cell {
        Cell::Proved => "✓",
        Cell::Permitted => "⚠",
        Cell::Untestable => "–",
    }
}

fn notes(row: &Judged<'_>) -> String {
    let mut notes = format!("- **{}** {}\n", row.fault.number, row.fault.fault);
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
