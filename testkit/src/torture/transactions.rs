//! Registers in the lock's own database, for a store that is in one: holders add to them in transactions that
//! check the lock, and in others that do not.
//!
//! Every transaction also writes a row of its own, so that what was committed and survived is known: an update
//! is lost if a register has less than it has rows, whatever a failover took away of both together. A commit
//! that a client was told of and whose row is gone is counted apart.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io;

use fencelock_conformance::history::{Event, What};
use fencelock_conformance::workload::lock_name;
use serde::Serialize;

use super::counted::counted;
use crate::deployments::Deployment;

/// Reads a register: its name, and whether what it counts was checked.
pub const READ: &str = "SELECT value FROM torture.registers WHERE name = $1 AND checked = $2";

/// Writes a register and the row of the transaction: the same, the value, and the transaction's id.
pub const WRITE: &str =
    "WITH written AS (UPDATE torture.registers SET value = $3 WHERE name = $1 AND checked = $2)
     INSERT INTO torture.commits (name, checked, id) VALUES ($1, $2, $4)";

/// What became of transactions on the lock's own database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct TransactionFigures {
    /// Of those that checked the lock first.
    pub checked: Commits,
    /// Of those that did not.
    pub unchecked: Commits,
    /// Refused by the check: the lock was another client's by then, or nobody's.
    pub refused: u64,
    /// Whose commit a client was told of, and which a failover lost. In no figure above.
    pub lost_commits: u64,
}

/// Transactions that were committed and survived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Commits {
    /// How many.
    pub commits: u64,
    /// How many of them are missing in the registers.
    pub lost_updates: u64,
}

/// Makes the registers, or sets them to zero; `false` where the store is not in a database of this run.
pub(super) async fn prepare(deployment: &dyn Deployment, locks: u32) -> io::Result<bool> {
    let names: Vec<String> = (0..locks).map(lock_name).collect();
    let statements = format!(
        "CREATE SCHEMA IF NOT EXISTS torture;
         CREATE TABLE IF NOT EXISTS torture.registers (
           name text, checked boolean, value bigint NOT NULL, PRIMARY KEY (name, checked));
         CREATE TABLE IF NOT EXISTS torture.commits (
           id bigint PRIMARY KEY, name text NOT NULL, checked boolean NOT NULL);
         GRANT USAGE ON SCHEMA torture TO PUBLIC;
         GRANT ALL ON ALL TABLES IN SCHEMA torture TO PUBLIC;
         TRUNCATE torture.registers, torture.commits;
         INSERT INTO torture.registers SELECT name, checked, 0
           FROM unnest('{{{}}}'::text[]) AS name, unnest('{{t,f}}'::boolean[]) AS checked",
        names.join(",")
    );
    Ok(deployment.sql(&statements).await?.is_some())
}

/// What became of the transactions in this round's history.
pub(super) async fn seen(
    deployment: &dyn Deployment,
    events: &[Event],
) -> io::Result<TransactionFigures> {
    // One statement, so that a commit of a killed client, which may still be on its way, is in both or in none.
    let rows = "SELECT name, checked, 'register', value FROM torture.registers UNION ALL
                SELECT name, checked, 'commit', id FROM torture.commits";
    let rows = deployment.sql(rows).await?.unwrap_or_default();
    let rows: Option<Vec<Row<'_>>> = rows.lines().map(Row::of).collect();
    let rows = rows.ok_or_else(|| io::Error::other("unknown rows in the registers"))?;
    Ok(TransactionFigures::of(&rows, events))
}

struct Row<'a> {
    name: &'a str,
    checked: bool,
    is_commit: bool,
    /// A register's value, or a transaction's id.
    number: i64,
}

impl Row<'_> {
    fn of(line: &str) -> Option<Row<'_>> {
        let mut columns = line.split('|');
        let (name, checked) = (columns.next()?, columns.next()? == "t");
        let is_commit = columns.next()? == "commit";
        Some(Row { name, checked, is_commit, number: columns.next()?.parse().ok()? })
    }
}

impl TransactionFigures {
    fn of(rows: &[Row<'_>], events: &[Event]) -> TransactionFigures {
        let mut figures = TransactionFigures::default();
        let mut missing: BTreeMap<(&str, bool), i64> = BTreeMap::new();
        let mut ids = HashSet::new();
        for row in rows {
            *missing.entry((row.name, row.checked)).or_default() +=
                if row.is_commit { 1 } else { -row.number };
            if row.is_commit {
                figures.of_kind(row.checked).commits += 1;
                ids.insert(row.number);
            }
        }
        for ((_, checked), missing) in missing {
            // More than there were would be as wrong.
            figures.of_kind(checked).lost_updates += missing.unsigned_abs();
        }
        for event in events {
            match event.what {
                What::Committed { id, .. } => {
                    figures.lost_commits += u64::from(!ids.contains(&id));
                }
                What::CheckRefused => figures.refused += 1,
                _ => {}
            }
        }
        figures
    }

    fn of_kind(&mut self, checked: bool) -> &mut Commits {
        if checked { &mut self.checked } else { &mut self.unchecked }
    }

    /// What must not be. `may_lose_commits`: the store's profile says that the fault may have.
    pub(super) fn violations(&self, may_lose_commits: bool) -> Vec<String> {
        let mut violations = Vec::new();
        if self.checked.lost_updates > 0 {
            let updates = counted(self.checked.lost_updates, "update", "updates");
            violations.push(format!("{updates} lost in transactions that checked their lock"));
        }
        if self.lost_commits > 0 && !may_lose_commits {
            let commits = counted(self.lost_commits, "commit", "commits");
            violations.push(format!("{commits} lost that clients had been told of"));
        }
        violations
    }
}

impl std::ops::Add for TransactionFigures {
    type Output = TransactionFigures;

    fn add(self, other: TransactionFigures) -> TransactionFigures {
        let sum = |one: Commits, other: Commits| Commits {
            commits: one.commits + other.commits,
            lost_updates: one.lost_updates + other.lost_updates,
        };
        TransactionFigures {
            checked: sum(self.checked, other.checked),
            unchecked: sum(self.unchecked, other.unchecked),
            refused: self.refused + other.refused,
            lost_commits: self.lost_commits + other.lost_commits,
        }
    }
}

/// In one line.
impl fmt::Display for TransactionFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TransactionFigures { checked, unchecked, refused, lost_commits } = self;
        let transactions = counted(checked.commits, "transaction", "transactions");
        write!(
            f,
            "of {transactions} that checked the lock {} lost, of {} that did not {} lost, {refused} refused",
            counted(checked.lost_updates, "update", "updates"),
            unchecked.commits,
            unchecked.lost_updates
        )?;
        if *lost_commits > 0 {
            let commits = counted(*lost_commits, "commit", "commits");
            write!(f, ", {commits} lost by a failover")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn committed(id: i64) -> Event {
        let what = What::Committed { id, checked: true };
        Event { at: 0, worker: 1, claim: 1, lock: "lock-0".to_owned(), what }
    }

    fn figures(rows: &str, told: &[i64]) -> TransactionFigures {
        let rows: Vec<Row<'_>> = rows.lines().map(|line| Row::of(line).unwrap()).collect();
        let events: Vec<Event> = told.iter().map(|id| committed(*id)).collect();
        TransactionFigures::of(&rows, &events)
    }

    #[test]
    fn an_update_that_a_register_lacks_is_lost() {
        let rows = "lock-0|t|register|2\nlock-0|t|commit|7\nlock-0|t|commit|-8\n\
                    lock-0|f|register|1\nlock-0|f|commit|9\nlock-0|f|commit|10";
        let figures = figures(rows, &[7, -8]);
        assert_eq!(figures.checked, Commits { commits: 2, lost_updates: 0 });
        assert_eq!(figures.unchecked, Commits { commits: 2, lost_updates: 1 });
        assert_eq!(figures.violations(false), Vec::<String>::new());
    }

    /// One register has too much, the other too little.
    #[test]
    fn registers_do_not_make_up_for_each_other() {
        let rows = "lock-0|t|register|0\nlock-0|t|commit|7\naccount-1|t|register|1";
        let figures = figures(rows, &[]);
        assert_eq!(figures.checked, Commits { commits: 1, lost_updates: 2 });
        assert_eq!(figures.violations(true).len(), 1, "{figures}");
    }

    /// The row and the update went together.
    #[test]
    fn a_commit_that_a_failover_took_back_is_no_lost_update() {
        let figures = figures("lock-0|t|register|1\nlock-0|t|commit|7", &[7, 8]);
        assert_eq!((figures.checked.lost_updates, figures.lost_commits), (0, 1));
        assert_eq!(figures.violations(true), Vec::<String>::new());
        assert_eq!(figures.violations(false).len(), 1, "{figures}");
    }
}
