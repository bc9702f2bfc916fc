//! Holders and waiters, as a table for operators and as JSON for programs.

use std::time::Duration;

use fencelock::{FencingToken, Label, Mode, Participant, Snapshot};
use serde::Serialize;

use crate::output;

const HEAD: [&str; 6] = ["ROLE", "MODE", "SINCE", "TOKEN", "ID", "LABEL"];

/// How many holders, and how many waiters, Redis and ZooKeeper list at least; of more they may list only
/// some, since the answer takes their time.
const MOST_LISTED: usize = 1000;

/// Whether the store cannot have left out any.
pub(super) fn is_complete(seen: &Snapshot) -> bool {
    seen.holders.len().max(seen.waiters.len()) < MOST_LISTED
}

/// All of them, a line each.
pub(super) fn table(seen: &Snapshot) -> String {
    let holders = seen.holders.iter().map(|holder| cells("holder", holder));
    let waiters = seen.waiters.iter().map(|waiter| cells("waiter", waiter));
    let head = std::iter::once(HEAD.map(str::to_owned));
    output::table(&head.chain(holders).chain(waiters).collect::<Vec<_>>())
}

fn cells(role: &str, one: &Participant) -> [String; HEAD.len()] {
    let unknown = || "-".to_owned();
    [
        role.to_owned(),
        one.mode.to_string(),
        one.since.map_or_else(unknown, since),
        one.token.map_or_else(unknown, |token| token.to_string()),
        one.id.to_string(),
        one.label.as_ref().map_or_else(unknown, ToString::to_string),
    ]
}

pub(super) fn since(since: Duration) -> String {
    humantime::format_duration(Duration::from_secs(since.as_secs())).to_string()
}

/// One of them in a sentence: `web-1 pid 4711 backup.sh (id 5c0ffee, exclusive, for 3m 2s)`.
pub(super) fn describe(one: &Participant) -> String {
    let label = one.label.as_ref().map_or("a client without a label", Label::as_str);
    let age = one.since.map(|age| format!(", for {}", since(age))).unwrap_or_default();
    format!("{label} (id {}, {}{age})", one.id, one.mode)
}

/// A holder or waiter in JSON. `null` is what the store does not know.
#[derive(Serialize)]
pub(super) struct Row<'a> {
    id: &'a str,
    mode: &'static str,
    /// Only of a semaphore.
    #[serde(skip_serializing_if = "Option::is_none")]
    permits: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<u32>,
    label: Option<&'a str>,
    since_seconds: Option<f64>,
    /// A string, since a JSON number of this size is rounded by many programs.
    token: Option<String>,
}

/// Those of `list` in JSON.
pub(super) fn rows(list: &[Participant]) -> Vec<Row<'_>> {
    list.iter().map(row).collect()
}

fn row(one: &Participant) -> Row<'_> {
    let permits = match one.mode {
        Mode::Permits(permits) => Some(permits),
        Mode::Exclusive | Mode::Shared => None,
    };
    Row {
        id: one.id.as_str(),
        mode: one.mode.as_str(),
        permits: permits.map(fencelock::Permits::n),
        limit: permits.map(fencelock::Permits::limit),
        label: one.label.as_ref().map(Label::as_str),
        since_seconds: one.since.map(|since| since.as_secs_f64()),
        token: one.token.as_ref().map(FencingToken::to_string),
    }
}

#[cfg(test)]
mod tests {
    use fencelock::{ParticipantId, Permits};

    use super::*;

    fn full() -> Participant {
        let mode = Mode::Permits(Permits::new(2, 5).unwrap());
        Participant::new(ParticipantId::new("a1"), mode)
            .labelled(Label::new("web-1 pid 7 backup.sh"))
            .since(Duration::from_millis(182_400))
            .token(FencingToken::new((1 << 53) + 1))
    }

    fn empty() -> Participant {
        Participant::new(ParticipantId::new("b2"), Mode::Exclusive)
    }

    #[test]
    fn a_table_has_a_line_for_each_and_marks_what_is_unknown() {
        let seen = Snapshot::new(vec![full()], vec![empty()]);
        let expected = "\
ROLE    MODE            SINCE  TOKEN             ID  LABEL
holder  2 of 5 permits  3m 2s  9007199254740993  a1  web-1 pid 7 backup.sh
waiter  exclusive       -      -                 b2  -
";
        assert_eq!(table(&seen), expected);
    }

    #[test]
    fn a_token_is_a_string_that_no_reader_rounds() {
        let json = serde_json::to_value(rows(&[full(), empty()])).unwrap();
        assert_eq!(json[0]["token"], "9007199254740993");
        let holder = &json[0];
        assert_eq!(holder["mode"], "permits");
        assert_eq!((&holder["permits"], &holder["limit"]), (&2.into(), &5.into()));
        assert_eq!(json[0]["since_seconds"], 182.4);
        for unknown in ["label", "since_seconds", "token"] {
            assert!(json[1][unknown].is_null(), "{unknown}");
        }
        assert!(json[1].get("permits").is_none());
    }

    #[test]
    fn a_sentence_names_one_of_them() {
        assert_eq!(describe(&full()), "web-1 pid 7 backup.sh (id a1, 2 of 5 permits, for 3m 2s)");
        assert_eq!(describe(&empty()), "a client without a label (id b2, exclusive)");
    }

    #[test]
    fn a_list_that_reaches_the_bound_may_be_incomplete() {
        let all = |count| Snapshot::new(vec![empty()], vec![empty(); count]);
        assert!(is_complete(&all(999)) && !is_complete(&all(1000)));
    }
}
