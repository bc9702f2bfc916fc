//! The marks in the sources of the tests, which say what faults a test shows at what stores:
//!
//! ```text
//! /// Fault 26: cluster (permitted: the new master grants a lock that is still believed in)
//! async fn a_test() {
//! ```
//!
//! Several faults are `Faults 20, 21: cluster`. A comment `// Fault 26: …` marks the next name in
//! a list of tests. A behaviour of the suite is marked in the list of its group, without stores:
//! it counts for each store on which it ran.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::store::Store;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) faults: Vec<String>,
    pub(crate) shown: Shown,
}

/// What shows a fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// A behaviour of the suite, by its full name.
    Suite(String),
    /// A test of a backend or of the core. What a profile permits, the test makes happen.
    Test { test: Test, stores: Vec<Store>, permitted: Option<String> },
}

/// A test in its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Test {
    pub(crate) target: String,
    /// The path of its file within the target, of which its module's is the end.
    pub(crate) file: Vec<String>,
    pub(crate) name: String,
}

/// The marks of all integration tests and behaviours below `root`, the behaviours first.
pub(crate) fn read(root: &Path) -> Result<Vec<Mark>, String> {
    let (mut suite, mut tests) = (Vec::new(), Vec::new());
    for file in sources(root).map_err(|error| format!("{}: {error}", root.display()))? {
        let relative = file.strip_prefix(root).unwrap_or(&file).with_extension("");
        let path: Vec<&str> = relative.iter().filter_map(|part| part.to_str()).collect();
        let marks = match path[..] {
            ["conformance-tests", "src", "behaviours", .., _] => &mut suite,
            [_, "tests", ..] => &mut tests,
            _ => continue,
        };
        let text = fs::read_to_string(&file);
        let found = text.map_err(|error| error.to_string()).and_then(|text| parse(&path, &text));
        marks.extend(found.map_err(|why| format!("{}: {why}", file.display()))?);
    }
    suite.append(&mut tests);
    Ok(suite)
}

/// The Rust files of each package's `src` and `tests`, sorted.
fn sources(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = Vec::new();
    for package in fs::read_dir(root)? {
        let package = package?.path();
        folders.extend(
            ["src", "tests"].map(|part| package.join(part)).into_iter().filter(|p| p.is_dir()),
        );
    }
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The marks of one file. `path` has no extension.
pub(crate) fn parse(path: &[&str], text: &str) -> Result<Vec<Mark>, String> {
    let mut marks = Vec::new();
    let mut pending: Vec<String> = Vec::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        if let Some(mark) = comment(line).filter(|comment| is_mark(comment)) {
            let mut mark = mark.to_owned();
            // The reason of a permission may need several lines.
            while mark.contains('(') && !mark.ends_with(')') {
                let more = lines.next().and_then(comment).ok_or(format!("{mark:?} has no end"))?;
                mark = format!("{mark} {more}");
            }
            pending.push(mark);
        } else if !pending.is_empty() && !line.starts_with("//") && !line.starts_with("#[") {
            if line.is_empty() {
                return Err(format!("{:?} marks no test", pending[0]));
            }
            if let Some(name) = name(line) {
                for mark in pending.drain(..) {
                    marks.push(
                        mark_of(path, name, &mark).map_err(|why| format!("{mark:?}: {why}"))?,
                    );
                }
            }
        }
    }
    Ok(marks)
}

fn comment(line: &str) -> Option<&str> {
    line.strip_prefix("/// ").or_else(|| line.strip_prefix("// "))
}

fn is_mark(comment: &str) -> bool {
    let number = comment.strip_prefix("Faults ").or_else(|| comment.strip_prefix("Fault "));
    number.is_some_and(|number| number.starts_with(|first: char| first.is_ascii_digit()))
}

/// Of `async fn NAME(`, or of a row of a list, `name: "NAME"`.
fn name(line: &str) -> Option<&str> {
    let function = line.split_once("fn ").and_then(|(_, rest)| rest.split_once('('));
    let row = || line.split_once('"')?.1.split_once('"');
    Some(function.or_else(row)?.0)
}

fn mark_of(path: &[&str], name: &str, mark: &str) -> Result<Mark, String> {
    let (_, mark) = mark.split_once(' ').ok_or("expected a number")?;
    let (mark, permitted) = match mark.split_once(" (permitted: ") {
        Some((mark, what)) => (mark, Some(what.trim_end_matches(')').to_owned())),
        None => (mark, None),
    };
    let (faults, stores) = match mark.split_once(": ") {
        Some((faults, stores)) => (faults, Store::list(stores)?),
        None => (mark, Vec::new()),
    };
    let faults = faults.split(", ").map(str::to_owned).collect();
    let shown = match path {
        [_, "tests", target, file @ ..] if !stores.is_empty() => {
            let target = format!("{}/tests/{target}", path[0]);
            let file = file.iter().filter(|part| **part != "main").map(|part| (*part).to_owned());
            let test = Test { target, file: file.collect(), name: name.to_owned() };
            Shown::Test { test, stores, permitted }
        }
        [_, "src", .., group] if stores.is_empty() => Shown::Suite(format!("{group}::{name}")),
        [_, "src", ..] => return Err("the log says at which stores a behaviour ran".to_owned()),
        _ => return Err("a test needs stores".to_owned()),
    };
    Ok(Mark { faults, shown })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS: &[&str] = &["redis", "tests", "faults", "cluster"];
    const SUITE: &[&str] = &["suite", "src", "behaviours", "loss", "validity"];

    #[test]
    fn marks_of_functions_and_of_rows_are_found() {
        let text = "
    /// Some words.
    /// Faults 20, 31b: cluster, zookeeper-3
    /// Fault 26: redis (permitted: it grants
    /// a lock)
    #[tokio::test(flavor = \"multi_thread\")]
    async fn shows() {
        // Fault 7: memory
        Test { needs: NOTHING, name: \"row\" };
";
        let test = |name: &str| Test {
            target: "redis/tests/faults".to_owned(),
            file: vec!["cluster".to_owned()],
            name: name.to_owned(),
        };
        let mark = |faults: &[&str], name, stores: &[Store], permitted: Option<&str>| Mark {
            faults: faults.iter().map(|number| (*number).to_owned()).collect(),
            shown: Shown::Test {
                test: test(name),
                stores: stores.to_vec(),
                permitted: permitted.map(str::to_owned),
            },
        };
        let expected = [
            mark(&["20", "31b"], "shows", &[Store::Cluster, Store::Ensemble], None),
            mark(&["26"], "shows", &[Store::Redis], Some("it grants a lock")),
            mark(&["7"], "row", &[Store::Memory], None),
        ];
        assert_eq!(parse(TESTS, text).unwrap(), expected);
        let behaviour = Shown::Suite("validity::holds".to_owned());
        let rows = "// Fault 3\nbehaviour(\n    GROUP,\n    \"holds\",\n";
        let expected = Mark { faults: vec!["3".to_owned()], shown: behaviour };
        assert_eq!(parse(SUITE, rows).unwrap(), [expected]);
    }

    #[test]
    fn wrong_marks_are_errors() {
        for (path, text, why) in [
            (TESTS, "/// Fault 1: etcd\nfn shows() {", "\"Fault 1: etcd\": unknown store \"etcd\""),
            (TESTS, "/// Fault 1\nfn shows() {", "\"Fault 1\": a test needs stores"),
            (TESTS, "/// Fault 1: file\n\nfn shows() {", "\"Fault 1: file\" marks no test"),
            (TESTS, "/// Fault 1: file (permitted:\n", "\"Fault 1: file (permitted:\" has no end"),
            (
                SUITE,
                "// Fault 1: file\n\"holds\"",
                "\"Fault 1: file\": the log says at which stores a behaviour ran",
            ),
        ] {
            assert_eq!(parse(path, text).unwrap_err(), why);
        }
    }
}
