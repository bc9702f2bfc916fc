//! The table and a run, joined: what each cell is, and what is wrong.

use crate::log::{Log, Outcome};
use crate::table::{ALL, Entry, Group, Row, Store};

/// How a machine without what a test needs begins to say so: the only reason for which a named
/// test may be ignored.
const THIS_MACHINE: &str = "this machine ";

/// What stands in a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Proved,
    /// Proved, as far as anybody can promise it: the rest is counted.
    Allowed,
    Ignored,
}

/// A row with its cells, and what was said for them: of which stores, in words.
pub(crate) struct Judged<'a> {
    pub(crate) row: &'a Row,
    pub(crate) cells: Vec<Cell>,
    pub(crate) notes: Vec<(Vec<Store>, String)>,
}

pub(crate) struct Judgement<'a> {
    /// With the title of the group.
    pub(crate) rows: Vec<(&'static str, Vec<Judged<'a>>)>,
    pub(crate) errors: Vec<String>,
    /// Tests that this machine cannot run.
    pub(crate) not_shown: Vec<String>,
}

pub(crate) fn verdict<'a>(groups: &'a [Group], log: &Log) -> Judgement<'a> {
    let mut judge = Judge { log, errors: Vec::new(), not_shown: Vec::new() };
    let rows = groups
        .iter()
        .map(|group| (group.title, group.rows.iter().map(|row| judge.row(row)).collect()));
    let rows = rows.collect();
    let Judge { errors, not_shown, .. } = judge;
    Judgement { rows, errors, not_shown }
}

struct Judge<'a> {
    log: &'a Log,
    errors: Vec<String>,
    not_shown: Vec<String>,
}

/// What the entries of a row say of one store.
#[derive(Default)]
struct Said {
    proved: bool,
    allowed: bool,
    ignored: bool,
    /// Why the suite does not test it.
    reason: Option<String>,
}

impl Judge<'_> {
    fn row<'r>(&mut self, row: &'r Row) -> Judged<'r> {
        let mut said: Vec<Said> = ALL.iter().map(|_| Said::default()).collect();
        let mut notes: Vec<(Vec<Store>, String)> = Vec::new();
        for entry in row.entries {
            let stores = match *entry {
                Entry::Suite(_) => ALL,
                Entry::Test { stores, .. }
                | Entry::Allowed { stores, .. }
                | Entry::Ignored { stores, .. } => stores,
            };
            if let Entry::Test { target, name, .. } | Entry::Allowed { target, name, .. } = *entry {
                self.passed(row, target, name);
            }
            let mut counts = Vec::new();
            for store in stores {
                let said = &mut said[*store as usize];
                let counted = match *entry {
                    Entry::Suite(name) => self.suite(row, *store, name, said),
                    _ => true,
                };
                said.proved |= matches!(entry, Entry::Test { .. } | Entry::Allowed { .. })
                    || matches!(entry, Entry::Suite(_)) && counted;
                said.allowed |= matches!(entry, Entry::Allowed { .. });
                said.ignored |= matches!(entry, Entry::Ignored { .. });
                if counted {
                    counts.push(*store);
                }
            }
            let note = match *entry {
                Entry::Suite(name) => format!("suite `{name}`"),
                Entry::Test { target, name, .. } => format!("`{target}` `{name}`"),
                Entry::Allowed { what, target, name, .. } => {
                    format!("allowed and counted: {what}: `{target}` `{name}`")
                }
                Entry::Ignored { why, .. } => format!("nothing to test: {why}"),
            };
            if !counts.is_empty() {
                notes.push((counts, note));
            }
        }
        let cells = ALL.iter().zip(said).map(|(store, said)| {
            let at = format!("row {}, {}", row.number, store.title());
            if said.proved && said.ignored {
                self.errors.push(format!("{at}: proved, and said to have nothing to test"));
            }
            if said.proved {
                return if said.allowed { Cell::Allowed } else { Cell::Proved };
            }
            match said.reason {
                _ if said.ignored => {}
                Some(reason) => {
                    let note = format!("nothing to test: {reason}");
                    match notes.iter_mut().find(|(_, known)| *known == note) {
                        Some((stores, _)) => stores.push(*store),
                        None => notes.push((vec![*store], note)),
                    }
                }
                None => self.errors.push(format!("{at}: nothing is said")),
            }
            Cell::Ignored
        });
        let cells = cells.collect();
        Judged { row, cells, notes }
    }

    /// A test that was named.
    fn passed(&mut self, row: &Row, target: &str, name: &str) {
        let at = format!("row {}: {target} {name}", row.number);
        match self.log.outcome(target, name) {
            Some(Outcome::Passed) => {}
            Some(Outcome::Ignored(why)) if why.starts_with(THIS_MACHINE) => {
                self.not_shown.push(format!("{at}: {why}"));
            }
            Some(Outcome::Ignored(why)) => self.errors.push(format!("{at}: ignored, {why}")),
            Some(Outcome::Failed) => self.errors.push(format!("{at}: failed")),
            None => self.errors.push(format!("{at}: did not run")),
        }
    }

    /// Whether a store has shown a behaviour. One that its harness cannot run says why not.
    fn suite(&mut self, row: &Row, store: Store, name: &str, said: &mut Said) -> bool {
        let (target, harnesses) = store.suite();
        let (mut passed, mut ignored) = (0, 0);
        for harness in harnesses {
            let name = format!("{harness}::{name}");
            match self.log.outcome(target, &name) {
                Some(Outcome::Ignored(why)) => {
                    ignored += 1;
                    said.reason.get_or_insert_with(|| why.clone());
                }
                _ => {
                    passed += 1;
                    self.passed(row, target, &name);
                }
            }
        }
        if passed > 0 && ignored > 0 {
            self.errors.push(format!("row {}: {name}: not by every {}", row.number, store.title()));
        }
        passed > 0 && ignored == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{FILE, LOCAL, MEMORY, ZK, allowed, ignored, row, suite, test};

    /// What is wrong with a table of one row.
    fn errors(entries: &'static [Entry], log: &str) -> Vec<String> {
        judged(entries, log).0
    }

    fn judged(entries: &'static [Entry], log: &str) -> (Vec<String>, Vec<String>, Vec<Cell>) {
        let rows = Box::leak(Box::new([row("1", "a fault", "a demand", entries)]));
        let groups: &'static [Group] = Box::leak(Box::new([Group { title: "all", rows }]));
        let log = Log::parse(log, |program| Some(program.to_owned()));
        let judgement = verdict(groups, &log);
        let [(_, rows)] = &judgement.rows[..] else { panic!("one group") };
        (judgement.errors, judgement.not_shown, rows[0].cells.clone())
    }

    const PROOF: &[Entry] = &[test(ALL, "t", "proves")];

    #[test]
    fn a_test_that_passed_proves_its_cells() {
        assert!(errors(PROOF, "Running t (t)\ntest proves ... ok").is_empty());
    }

    #[test]
    fn a_missing_an_ignored_and_a_failed_test_are_errors() {
        for (log, why) in [
            ("Running t (t)\ntest other ... ok", "row 1: t proves: did not run"),
            ("Running u (u)\ntest proves ... ok", "row 1: t proves: did not run"),
            ("Running t (t)\ntest proves ... ignored, slow", "row 1: t proves: ignored, slow"),
            ("Running t (t)\ntest proves ... ignored", "row 1: t proves: ignored, "),
            ("Running t (t)\ntest proves ... FAILED", "row 1: t proves: failed"),
        ] {
            assert_eq!(errors(PROOF, log), [why]);
        }
    }

    #[test]
    fn what_this_machine_cannot_run_is_told_and_no_error() {
        let log = "Running t (t)\ntest proves ... ignored, this machine has no nft";
        let (errors, not_shown, _) = judged(PROOF, log);
        assert!(errors.is_empty());
        assert_eq!(not_shown, ["row 1: t proves: this machine has no nft"]);
    }

    #[test]
    fn an_empty_cell_is_an_error() {
        const NO_ZOOKEEPER: &[Entry] = &[ignored(
            &[
                Store::Memory,
                Store::File,
                Store::Redis,
                Store::Sentinel,
                Store::Cluster,
                Store::Redlock,
            ],
            "no",
        )];
        assert_eq!(
            errors(NO_ZOOKEEPER, ""),
            ["row 1, zookeeper: nothing is said", "row 1, zookeeper-3: nothing is said"]
        );
    }

    #[test]
    fn a_cell_is_not_both_proved_and_left_out() {
        const BOTH: &[Entry] =
            &[test(ALL, "t", "proves"), ignored(FILE, "?"), ignored(MEMORY, "-")];
        assert_eq!(
            errors(BOTH, "Running t (t)\ntest proves ... ok"),
            [
                "row 1, memory: proved, and said to have nothing to test",
                "row 1, file: proved, and said to have nothing to test"
            ]
        );
    }

    #[test]
    fn the_suite_proves_what_it_can_and_says_what_it_cannot() {
        const OF_BOTH: &[Entry] = &[
            suite("group::works"),
            allowed(ZK, "an overlap", "t", "counts"),
            ignored(&[Store::Redis, Store::Sentinel, Store::Cluster, Store::Redlock], "-"),
        ];
        let suite = |memory: &str, file: &str, redlock: &str| {
            let mut log = "Running t (t)\ntest counts ... ok\n".to_owned();
            for store in ALL {
                let (target, harnesses) = store.suite();
                log += &format!("Running {target} ({target})\n");
                for harness in harnesses {
                    let outcome = match *store {
                        Store::Memory => memory,
                        Store::File => file,
                        Store::Redlock if harness.ends_with("1dead") => redlock,
                        _ => "ignored, no door",
                    };
                    log += &format!("test {harness}::group::works ... {outcome}\n");
                }
            }
            log
        };
        let (errors, _, cells) =
            judged(OF_BOTH, &suite("ok", "ignored, no door", "ignored, no door"));
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(cells[..3], [Cell::Proved, Cell::Ignored, Cell::Ignored]);
        assert_eq!(cells[6..], [Cell::Allowed, Cell::Allowed]);
        let (errors, ..) = judged(OF_BOTH, &suite("FAILED", "ok", "ok"));
        assert_eq!(
            errors,
            [
                "row 1: conformance-tests/tests/memory memory::group::works: failed",
                "row 1: group::works: not by every redlock",
            ]
        );
        let gone = errors_without(OF_BOTH, &suite("ok", "ok", "ignored, no door"), "file::");
        assert_eq!(gone, ["row 1: backend-file/tests/conformance file::group::works: did not run"]);
        assert_eq!(LOCAL.len(), 2);
    }

    fn errors_without(entries: &'static [Entry], log: &str, word: &str) -> Vec<String> {
        let kept: Vec<&str> = log.lines().filter(|line| !line.contains(word)).collect();
        errors(entries, &kept.join("\n"))
    }
}
