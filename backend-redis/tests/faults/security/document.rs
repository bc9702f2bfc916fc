//! The access rules, read from docs/redis.md, so that the documented rules are the tested ones.

const DOCUMENT: &str = include_str!("../../../../docs/redis.md");

/// The words after the password in the document's `ACL SETUSER` line: the rules for one server.
pub(crate) fn rules() -> Vec<&'static str> {
    const START: &str = "ACL SETUSER jobs on >PASSWORD ";
    let mut lines = DOCUMENT.lines().filter_map(|line| line.trim().strip_prefix(START));
    let line = lines.next().expect("docs/redis.md has the line");
    assert!(lines.next().is_none(), "docs/redis.md has the line once");
    line.split_whitespace().collect()
}

/// The words that the document's list adds for `topic`.
pub(crate) fn more_for(topic: &str) -> Vec<&'static str> {
    let start = format!("- {topic}: `");
    let line = DOCUMENT.lines().find_map(|line| line.strip_prefix(&start));
    let line = line.unwrap_or_else(|| panic!("docs/redis.md has a line {start:?}"));
    line.split('`').next().unwrap_or_default().split_whitespace().collect()
}
