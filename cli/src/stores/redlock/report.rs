//! The nodes' status, as a table for operators and as one line of JSON for programs.

use std::time::Duration;

use fencelock::redlock::{Deployment, LockSeen, Membership, NodeSeen, NodeStatus};
use fencelock::{Label, Participant};
use fencelock_cli::one_line;
use serde::Serialize;

use crate::output;

const HEAD: [&str; 7] = ["NODE", "AGE", "CLOCK", "TOKEN", "WAITERS", "HOLDERS", "STATE"];

/// A table with aligned columns.
pub(super) fn table(nodes: &[NodeStatus], with_lock: bool) -> String {
    let compared = are_compared(nodes);
    let cells = nodes.iter().map(|node| cells(node, compared));
    let rows = std::iter::once(HEAD.map(str::to_owned)).chain(cells);
    match with_lock {
        true => output::table(&rows.collect::<Vec<_>>()),
        false => output::table(&rows.map(without_lock).collect::<Vec<_>>()),
    }
}

/// Whether enough nodes answered to say which clock is wrong.
fn are_compared(nodes: &[NodeStatus]) -> bool {
    nodes.iter().filter(|node| node.seen.is_ok()).count() > nodes.len() / 2
}

fn cells(node: &NodeStatus, compared: bool) -> [String; HEAD.len()] {
    let address = Some(node.address.clone());
    let row = match &node.seen {
        Ok(seen) => {
            let [token, waiters, holders] = lock_cells(seen);
            let clock = format!("{:+.3} s", ahead(seen));
            [
                address,
                seen.age.map(age),
                Some(clock),
                token,
                waiters,
                holders,
                Some(state(seen, compared)),
            ]
        }
        Err(error) => [address, None, None, None, None, None, Some(one_line(error.message()))],
    };
    row.map(|cell| cell.unwrap_or_else(|| "-".to_owned()))
}

/// The row of a status without a lock.
fn without_lock([node, age, clock, _, _, _, state]: [String; HEAD.len()]) -> [String; 4] {
    [node, age, clock, state]
}

fn lock_cells(seen: &NodeSeen) -> [Option<String>; 3] {
    match &seen.lock {
        Some(Ok(LockSeen { last_token, snapshot, .. })) => {
            let holders: Vec<String> = snapshot.holders.iter().map(holder).collect();
            [
                last_token.map(|token| token.to_string()),
                Some(snapshot.waiters.len().to_string()),
                (!holders.is_empty()).then(|| holders.join(", ")),
            ]
        }
        Some(Err(error)) => [None, None, Some(one_line(error.message()))],
        None => [None, None, None],
    }
}

fn holder(holder: &Participant) -> String {
    let id = holder.id.as_str();
    match &holder.label {
        Some(label) => format!("{id} ({})", label.as_str()),
        None => id.to_owned(),
    }
}

fn state(seen: &NodeSeen, compared: bool) -> String {
    match (seen.clock_agrees, seen.membership.is_open()) {
        (false, true) if !compared => "answers, but too few nodes do".to_owned(),
        _ if !compared => seen.membership.to_string(),
        (true, _) => seen.membership.to_string(),
        (false, true) => "is excluded: its clock does not agree with a majority's".to_owned(),
        (false, false) => {
            format!("{}; its clock does not agree with a majority's", seen.membership)
        }
    }
}

fn age(age: Duration) -> String {
    humantime::format_duration(Duration::from_secs(age.as_secs())).to_string()
}

/// The clock's offset in seconds: the middle of the range that the round trip leaves open.
fn ahead(seen: &NodeSeen) -> f64 {
    let (at_least, at_most) = seen.clock_ahead_us;
    (at_least as f64 + at_most as f64) / 2e6
}

#[derive(Serialize)]
struct Line<'a> {
    nodes: Vec<Row<'a>>,
    /// How many nodes take part, and how many must.
    taking_part: usize,
    majority: usize,
}

#[derive(Serialize)]
struct Row<'a> {
    address: &'a str,
    takes_part: bool,
    /// `unreachable`, `refused`, or the name of the node's membership.
    state: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// For a quarantined node.
    #[serde(skip_serializing_if = "Option::is_none")]
    takes_part_in_seconds: Option<f64>,
    /// For a node that is closed or belongs to another set.
    #[serde(skip_serializing_if = "Option::is_none")]
    set: Option<Set>,
    marker_age_seconds: Option<f64>,
    clock_ahead_seconds: Option<f64>,
    clock_agrees: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lock: Option<LockRow<'a>>,
}

#[derive(Serialize)]
struct Set {
    nodes: usize,
    set_epoch: u32,
    restart_delay_seconds: f64,
}

#[derive(Serialize)]
#[serde(untagged)]
enum LockRow<'a> {
    Seen {
        /// A string, like every token: programs that read JSON numbers as floating point round
        /// large ones.
        #[serde(rename = "fence")]
        last_token: Option<String>,
        holders: Vec<HolderRow<'a>>,
        waiters: usize,
    },
    Failed {
        error: &'a str,
    },
}

#[derive(Serialize)]
struct HolderRow<'a> {
    id: &'a str,
    label: Option<&'a str>,
    token: Option<String>,
}

/// One line of JSON.
pub(super) fn json(nodes: &[NodeStatus]) -> String {
    let line = Line {
        nodes: nodes.iter().map(|node| row_of(node, are_compared(nodes))).collect(),
        taking_part: nodes.iter().filter(|node| node.takes_part()).count(),
        majority: nodes.len() / 2 + 1,
    };
    serde_json::to_string(&line).unwrap_or_else(|_| unreachable!("plain numbers and strings"))
}

fn row_of(node: &NodeStatus, compared: bool) -> Row<'_> {
    let row = Row {
        address: &node.address,
        takes_part: node.takes_part(),
        state: "unreachable",
        error: None,
        takes_part_in_seconds: None,
        set: None,
        marker_age_seconds: None,
        clock_ahead_seconds: None,
        clock_agrees: None,
        lock: None,
    };
    match &node.seen {
        Err(error) => {
            let state = if error.is_retryable() { "unreachable" } else { "refused" };
            Row { state, error: Some(error.message()), ..row }
        }
        Ok(seen) => Row {
            state: seen.membership.as_str(),
            takes_part_in_seconds: match seen.membership {
                Membership::Quarantined(rest) => Some(rest.as_secs_f64()),
                _ => None,
            },
            set: match seen.membership {
                Membership::Closed(set) | Membership::OfAnotherSet(set) => Some(set_of(set)),
                _ => None,
            },
            marker_age_seconds: seen.age.map(|age| age.as_secs_f64()),
            clock_ahead_seconds: Some(ahead(seen)),
            clock_agrees: compared.then_some(seen.clock_agrees),
            lock: seen.lock.as_ref().map(|lock| match lock {
                Ok(LockSeen { last_token, snapshot, .. }) => LockRow::Seen {
                    last_token: last_token.map(|token| token.to_string()),
                    holders: snapshot.holders.iter().map(holder_row).collect(),
                    waiters: snapshot.waiters.len(),
                },
                Err(error) => LockRow::Failed { error: error.message() },
            }),
            ..row
        },
    }
}

fn set_of(set: Deployment) -> Set {
    Set { nodes: set.nodes, set_epoch: set.epoch, restart_delay_seconds: set.delay.as_secs_f64() }
}

fn holder_row(holder: &Participant) -> HolderRow<'_> {
    HolderRow {
        id: holder.id.as_str(),
        label: holder.label.as_ref().map(Label::as_str),
        token: holder.token.map(|token| token.to_string()),
    }
}
