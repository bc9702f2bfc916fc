//! The faults, the marks and a run, joined: what each cell is, and what is wrong.

use crate::faults::{Fault, Group};
use crate::log::{Log, Outcome};
use crate::marks::{Mark, Shown};
use crate::store::{ALL, Store};

/// How the reason begins when this machine lacks what a test needs: the only reason for which a
/// marked test may be ignored.
const THIS_MACHINE: &str = "this machine ";

/// What stands in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cell {
    Untestable,
    Proved,
    /// Proved, as far as the store can promise it: the rest is counted.
    Permitted,
}

/// A fault with its cells, and the notes about them: of which stores, and the text.
pub(crate) struct Judged<'a> {
    pub(crate) fault: &'a Fault,
    pub(crate) cells: Vec<Cell>,
    pub(crate) notes: Vec<(Vec<Store>, String)>,
}

#[derive(Default)]
pub(crate) struct Judgement<'a> {
    /// With the title of the group.
    pub(crate) rows: Vec<(&'static str, Vec<Judged<'a>>)>,
    pub(crate) errors: Vec<String>,
    /// Tests that this machine cannot run.
    pub(crate) not_shown: Vec<String>,
}

pub(crate) fn verdict<'a>(groups: &'a [Group], marks: &[Mark], log: &Log) -> Judgement<'a> {
    let mut judge = Judge { log, errors: Vec::new(), not_shown: Vec::new() };
    let known = |number: &str| {
        groups.iter().flat_map(|group| &group.faults).any(|fault| fault.number == number)
    };
    for mark in marks {
        let unknown = mark.faults.iter().filter(|number| !known(number));
        judge
            .errors
            .extend(unknown.map(|number| format!("row {number}: unknown, {:?}", mark.shown)));
    }
    let of_group = |group: &'a Group| {
        let rows = group.faults.iter().map(|fault| judge.row(fault, marks)).collect();
        (group.title, rows)
    };
    let rows = groups.iter().map(of_group).collect();
    Judgement { rows, errors: judge.errors, not_shown: judge.not_shown }
}

struct Judge<'a> {
    log: &'a Log,
    errors: Vec<String>,
    not_shown: Vec<String>,
}

/// What is known of one store.
#[derive(Clone, Default)]
struct Known {
    shown: Option<Cell>,
    /// Why the suite does not test it.
    reason: Option<String>,
}

impl Judge<'_> {
    fn row<'f>(&mut self, fault: &'f Fault, marks: &[Mark]) -> Judged<'f> {
        let mut known = vec![Known::default(); ALL.len()];
        let mut notes: Vec<(Vec<Store>, String)> = Vec::new();
        let of_fault = |mark: &&Mark| mark.faults.iter().any(|number| number == fault.number);
        for Mark { shown, .. } in marks.iter().filter(of_fault) {
            let (stores, note, cell) = match shown {
                Shown::Suite(name) => {
                    let ran = |store: &Store| {
                        self.suite(fault, *store, name, &mut known[*store as usize].reason)
                    };
                    let stores = ALL.iter().copied().filter(ran).collect();
                    (stores, format!("suite `{name}`"), Cell::Proved)
                }
                Shown::Test { test, stores, permitted } => {
                    let (name, outcome) = self.log.find(test);
                    self.passed(fault, &test.target, &name, outcome);
                    let note = format!("`{}` `{name}`", test.target);
                    match permitted {
                        Some(what) => {
                            let note = format!("allowed and counted: {what}: {note}");
                            (stores.clone(), note, Cell::Permitted)
                        }
                        None => (stores.clone(), note, Cell::Proved),
                    }
                }
            };
            for store in &stores {
                let shown = &mut known[*store as usize].shown;
                *shown = (*shown).max(Some(cell));
            }
            if !stores.is_empty() {
                notes.push((stores, note));
            }
        }
        // The suite's stay first.
        notes.sort_by_key(|(stores, note)| (!note.starts_with("suite"), stores[0]));
        let cells = ALL.iter().zip(known).map(|(store, known)| {
            let at = format!("row {}, {}", fault.number, store.title());
            let listed = fault.untestable.iter().find(|(stores, _)| stores.contains(store));
            if let Some(cell) = known.shown {
                if listed.is_some() {
                    self.errors.push(format!("{at}: proved, and said to have nothing to test"));
                }
                return cell;
            }
            match listed.map(|(_, why)| (*why).to_owned()).or(known.reason) {
                Some(reason) => {
                    let note = format!("nothing to test: {reason}");
                    match notes.iter_mut().find(|(_, known)| *known == note) {
                        Some((stores, _)) => stores.push(*store),
                        None => notes.push((vec![*store], note)),
                    }
                }
                None => self.errors.push(format!("{at}: no test and no reason")),
            }
            Cell::Untestable
        });
        let cells = cells.collect();
        Judged { fault, cells, notes }
    }

    /// Records a marked test that has not passed.
    fn passed(&mut self, fault: &Fault, target: &str, name: &str, outcome: Option<&Outcome>) {
        let at = format!("row {}: {target} {name}", fault.number);
        match outcome {
            Some(Outcome::Passed) => {}
            Some(Outcome::Ignored(why)) if why.starts_with(THIS_MACHINE) => {
                self.not_shown.push(format!("{at}: {why}"));
            }
            Some(Outcome::Ignored(why)) => self.errors.push(format!("{at}: ignored, {why}")),
            Some(Outcome::Failed) => self.errors.push(format!("{at}: failed")),
            None => self.errors.push(format!("{at}: did not run")),
        }
    }

    /// Whether a store has shown a behaviour; otherwise `reason` is why its harness cannot run it.
    fn suite(
        &mut self,
        fault: &Fault,
        store: Store,
        name: &str,
        reason: &mut Option<String>,
    ) -> bool {
        let (target, harnesses) = store.suite();
        let (mut passed, mut ignored) = (0, 0);
        for harness in harnesses {
            let name = format!("{harness}::{name}");
            match self.log.outcome(target, &name) {
                Some(Outcome::Ignored(why)) => {
                    ignored += 1;
                    reason.get_or_insert_with(|| why.clone());
                }
                outcome => {
                    passed += 1;
                    self.passed(fault, target, &name, outcome);
                }
            }
        }
        if passed > 0 && ignored > 0 {
            let at = format!("row {}: {name}", fault.number);
            self.errors.push(format!("{at}: not by every {}", store.title()));
        }
        passed > 0 && ignored == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{faults, marks};

    const EVERYWHERE: &str = "memory, file, redis, sentinel, cluster, redlock, zookeeper, zookeeper-3, postgres, \
         postgres-sync, pgbouncer";

    /// The verdict on one fault with the reasons `untestable`.
    fn judged(
        untestable: &str,
        marks: &[Mark],
        log: &str,
    ) -> (Vec<String>, Vec<String>, Vec<Cell>) {
        let list = format!("# all\n1 | a fault | required\n{untestable}");
        let groups = faults::parse(list.leak()).unwrap();
        let log = Log::parse(log, |program| Some(program.to_owned()));
        let judgement = verdict(&groups, marks, &log);
        let [(_, rows)] = &judgement.rows[..] else { panic!("one group") };
        (judgement.errors, judgement.not_shown, rows[0].cells.clone())
    }

    fn test(mark: &str) -> Vec<Mark> {
        marks::parse(&["p", "tests", "t"], &format!("/// {mark}\nfn proves()")).unwrap()
    }

    fn everywhere() -> Vec<Mark> {
        test(&format!("Fault 1: {EVERYWHERE}"))
    }

    const PROVED: &str = "Running t (p/tests/t)\ntest proves ... ok";

    #[test]
    fn a_test_that_passed_proves_its_cells() {
        let (errors, _, cells) = judged("", &everywhere(), PROVED);
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(cells, [Cell::Proved; 11]);
    }

    #[test]
    fn a_missing_an_ignored_and_a_failed_test_are_errors() {
        for (log, why) in [
            ("Running t (p/tests/t)\ntest other ... ok", "did not run"),
            ("Running u (p/tests/u)\ntest proves ... ok", "did not run"),
            ("Running t (p/tests/t)\ntest proves ... ignored, slow", "ignored, slow"),
            ("Running t (p/tests/t)\ntest proves ... ignored", "ignored, "),
            ("Running t (p/tests/t)\ntest proves ... FAILED", "failed"),
        ] {
            let (errors, ..) = judged("", &everywhere(), log);
            assert_eq!(errors, [format!("row 1: p/tests/t proves: {why}")]);
        }
    }

    #[test]
    fn what_this_machine_cannot_run_is_reported_and_is_not_an_error() {
        let log = "Running t (p/tests/t)\ntest proves ... ignored, this machine has no nft";
        let (errors, not_shown, _) = judged("", &everywhere(), log);
        assert!(errors.is_empty());
        assert_eq!(not_shown, ["row 1: p/tests/t proves: this machine has no nft"]);
    }

    #[test]
    fn an_unknown_fault_is_an_error() {
        let mut marks = everywhere();
        marks.extend(test("Fault 2: file"));
        let (errors, ..) = judged("", &marks, PROVED);
        assert_eq!(errors.len(), 1);
        assert!(errors[0].starts_with("row 2: unknown"), "{errors:?}");
    }

    #[test]
    fn an_empty_cell_is_an_error() {
        let no_zookeeper = "    memory, file, redis, sentinel, cluster, redlock, postgres, postgres-sync, pgbouncer: no";
        assert_eq!(
            judged(no_zookeeper, &[], "").0,
            [
                "row 1, zookeeper: no test and no reason",
                "row 1, zookeeper-3: no test and no reason"
            ]
        );
    }

    #[test]
    fn a_cell_is_not_both_proved_and_left_out() {
        assert_eq!(
            judged("    file: ?\n    memory: -", &everywhere(), PROVED).0,
            [
                "row 1, memory: proved, and said to have nothing to test",
                "row 1, file: proved, and said to have nothing to test"
            ]
        );
    }

    #[test]
    fn the_suite_proves_what_it_can_and_says_what_it_cannot() {
        let untestable =
            "    redis, sentinel, cluster, redlock, postgres, postgres-sync, pgbouncer: -";
        let path = &["conformance-tests", "src", "behaviours", "group"];
        let mut of_both = marks::parse(path, "// Fault 1\n\"works\"").unwrap();
        of_both.extend(test("Fault 1: zookeeper, zookeeper-3 (permitted: an overlap)"));
        let suite = |memory: &str, file: &str, redlock: &str| {
            let mut log = format!("{PROVED}\n");
            for store in ALL {
                let (target, harnesses) = store.suite();
                log += &format!("Running {target} ({target})\n");
                for harness in harnesses {
                    let outcome = match *store {
                        Store::Memory => memory,
                        Store::File => file,
                        Store::Redlock if harness.ends_with("1dead") => redlock,
                        _ => "ignored, no backdoor",
                    };
                    log += &format!("test {harness}::group::works ... {outcome}\n");
                }
            }
            log
        };
        let log = suite("ok", "ignored, no backdoor", "ignored, no backdoor");
        let (errors, _, cells) = judged(untestable, &of_both, &log);
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(cells[..3], [Cell::Proved, Cell::Untestable, Cell::Untestable]);
        assert_eq!(cells[6..8], [Cell::Permitted, Cell::Permitted]);
        let (errors, ..) = judged(untestable, &of_both, &suite("FAILED", "ok", "ok"));
        assert_eq!(
            errors,
            [
                "row 1: conformance-tests/tests/memory memory::group::works: failed",
                "row 1: group::works: not by every redlock",
            ]
        );
        let log = suite("ok", "ok", "ignored, no backdoor");
        let kept: Vec<&str> = log.lines().filter(|line| !line.contains("file::")).collect();
        assert_eq!(
            judged(untestable, &of_both, &kept.join("\n")).0,
            ["row 1: backend-file/tests/conformance file::group::works: did not run"]
        );
    }
}
