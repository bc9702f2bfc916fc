//! What `cargo test` printed: which tests ran in which target, and how they went.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::marks::Test;

/// How a test went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    Ignored(String),
}

/// All tests of a run, by their target and name.
#[derive(Debug, Default)]
pub(crate) struct Log(BTreeMap<(String, String), Outcome>);

impl Log {
    /// Cargo names a target by its path in its package, which several packages may have; the file
    /// beside the program says which it is.
    pub(crate) fn read(path: &Path) -> io::Result<Log> {
        Ok(Log::parse(&std::fs::read_to_string(path)?, |program| {
            let rules = std::fs::read_to_string(format!("{program}.d")).ok()?;
            Some(rules.split_once(": ")?.1.split_whitespace().next()?.to_owned())
        }))
    }

    /// `source` returns the main file of the program at a path.
    pub(crate) fn parse(text: &str, source: impl Fn(&str) -> Option<String>) -> Log {
        let mut log = Log::default();
        let mut target = None;
        for line in text.lines() {
            let line = line.trim();
            if let Some(rest) = line.strip_prefix("Running ") {
                target = program(rest).and_then(&source).map(|main| name_of(&main));
            } else if line.starts_with("Doc-tests ") {
                target = None;
            } else if let (Some(target), Some((name, outcome))) = (&target, test(line)) {
                log.0.insert((target.clone(), name), outcome);
            }
        }
        log
    }

    /// The full name of a test in a source, and its outcome.
    pub(crate) fn find(&self, test: &Test) -> (String, Option<&Outcome>) {
        let is_it = |((target, name), _): &(&(String, String), &Outcome)| {
            *target == test.target && is_named(name, test)
        };
        match self.0.iter().find(is_it) {
            Some(((_, name), outcome)) => (name.clone(), Some(outcome)),
            None => ([&test.file[..], std::slice::from_ref(&test.name)].concat().join("::"), None),
        }
    }

    pub(crate) fn outcome(&self, target: &str, name: &str) -> Option<&Outcome> {
        self.0.get(&(target.to_owned(), name.to_owned()))
    }
}

/// Of `tests/faults/main.rs (target/debug/deps/faults-0123)`.
fn program(running: &str) -> Option<&str> {
    running.rsplit_once(" (")?.1.strip_suffix(')')
}

/// Whether a name in the log is that of a test in a source. A module's path is its file's, or only
/// the end of it where the target's main file says which file a module is.
fn is_named(name: &str, test: &Test) -> bool {
    let mut parts: Vec<&str> = name.split("::").collect();
    parts.pop() == Some(&*test.name)
        && parts.is_empty() == test.file.is_empty()
        && parts.iter().rev().eq(test.file.iter().rev().take(parts.len()))
}

/// `backend-redis/tests/faults` for its `main.rs`.
fn name_of(main: &str) -> String {
    let name = main.strip_suffix(".rs").unwrap_or(main);
    name.strip_suffix("/main").unwrap_or(name).to_owned()
}

/// Of `test NAME ... OUTCOME`, as libtest and libtest-mimic print it.
fn test(line: &str) -> Option<(String, Outcome)> {
    let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let outcome = match outcome {
        "ok" => Outcome::Passed,
        "FAILED" => Outcome::Failed,
        other => {
            let rest = other.strip_prefix("ignored")?;
            let mimic = rest.strip_prefix(" (").and_then(|rest| rest.strip_suffix(')'));
            Outcome::Ignored(mimic.unwrap_or(rest.trim_start_matches(", ")).to_owned())
        }
    };
    let name = name.trim().trim_end_matches(" - should panic");
    Some((name.to_owned(), outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_one_path_are_distinguished_by_their_sources() {
        let log = "
     Running tests/faults/main.rs (target/debug/deps/faults-a)
running 2 tests
test one::works ... ok
test two::works ... ignored, no server
test three::works ... ignored (no server (yet))
test result: ok. 1 passed; 0 failed; 1 ignored
     Running tests/faults/main.rs (target/debug/deps/faults-b)
test one::works   ... FAILED
     Running unittests src/lib.rs (target/debug/deps/core-c)
test deep::works - should panic ... ok
   Doc-tests core
test core/src/lib.rs - (line 3) ... ok
";
        let source = |program: &str| {
            let main = match program.rsplit_once('-')?.1 {
                "a" => "redis/tests/faults/main.rs",
                "b" => "zk/tests/faults/main.rs",
                _ => "core/src/lib.rs",
            };
            Some(main.to_owned())
        };
        let log = Log::parse(log, source);
        let ignored = Outcome::Ignored("no server".to_owned());
        assert_eq!(log.outcome("redis/tests/faults", "one::works"), Some(&Outcome::Passed));
        assert_eq!(log.outcome("redis/tests/faults", "two::works"), Some(&ignored));
        let in_brackets = Outcome::Ignored("no server (yet)".to_owned());
        assert_eq!(log.outcome("redis/tests/faults", "three::works"), Some(&in_brackets));
        assert_eq!(log.outcome("zk/tests/faults", "one::works"), Some(&Outcome::Failed));
        assert_eq!(log.outcome("core/src/lib", "deep::works"), Some(&Outcome::Passed));
        assert_eq!(log.0.len(), 5);
    }
}
