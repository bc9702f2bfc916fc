//! What the nodes said, as a table for people and as one line for programs.

use std::fmt::Write as _;
use std::time::Duration;

use fencelock::redlock::{Deployment, LockSeen, Membership, NodeSeen, NodeStatus};
use fencelock::{FencingToken, Label, Participant, Snapshot};
use serde::Serialize;

/// Aligned columns; the last may be of any length, since errors are.
pub(super) fn table(nodes: &[NodeStatus], with_lock: bool) -> String {
    let mut rows = vec![head(with_lock)];
    rows.extend(nodes.iter().map(|node| row(node, with_lock)));
    let columns = rows[0].len();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut table = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a text cannot fail.
            let _ = write!(line, "{cell:width$}  ");
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

fn head(with_lock: bool) -> Vec<String> {
    let lock: &[&str] = if with_lock { &["FENCE", "WAITERS", "HOLDERS"] } else { &[] };
    [&["NODE", "AGE", "CLOCK"], lock, &["STATE"]].concat().into_iter().map(str::to_owned).collect()
}

fn row(node: &NodeStatus, with_lock: bool) -> Vec<String> {
    let none = || "-".to_owned();
    let mut cells = vec![node.address.clone()];
    match &node.seen {
        Ok(seen) => {
            cells.push(seen.age.map_or_else(none, age));
            cells.push(format!("{:+.3} s", ahead(seen)));
            if with_lock {
                cells.extend(lock_cells(seen));
            }
            cells.push(state(seen));
        }
        Err(error) => {
            cells.extend([none(), none()]);
            if with_lock {
                cells.extend([none(), none(), none()]);
            }
            cells.push(error.message().replace(['\n', '\r'], " "));
        }
    }
    cells
}

fn lock_cells(seen: &NodeSeen) -> [String; 3] {
    let none = || "-".to_owned();
    match &seen.lock {
        Some(Ok(LockSeen { fence, snapshot, .. })) => {
            let holders: Vec<String> = snapshot.holders.iter().map(holder).collect();
            [
                fence.map_or_else(none, |fence| fence.to_string()),
                snapshot.waiters.len().to_string(),
                if holders.is_empty() { none() } else { holders.join(", ") },
            ]
        }
        Some(Err(error)) => [none(), none(), error.message().replace(['\n', '\r'], " ")],
        None => [none(), none(), none()],
    }
}

fn holder(holder: &Participant) -> String {
    let id = holder.id.as_str();
    match &holder.label {
        Some(label) => format!("{id} ({})", label.as_str()),
        None => id.to_owned(),
    }
}

fn state(seen: &NodeSeen) -> String {
    match (seen.clock_agrees, seen.membership.is_open()) {
        (true, _) => seen.membership.to_string(),
        (false, true) => "is left out: its clock does not agree with a majority's".to_owned(),
        (false, false) => {
            format!("{}; its clock does not agree with a majority's", seen.membership)
        }
    }
}

fn age(age: Duration) -> String {
    humantime::format_duration(Duration::from_secs(age.as_secs())).to_string()
}

/// In seconds, in the middle of what the way to the node leaves open.
fn ahead(seen: &NodeSeen) -> f64 {
    let (at_least, at_most) = seen.clock_ahead_us;
    (at_least as f64 + at_most as f64) / 2e6
}

#[derive(Serialize)]
struct Line<'a> {
    nodes: Vec<Row<'a>>,
    /// How many take part, and how many must.
    taking_part: usize,
    majority: usize,
}

#[derive(Serialize)]
struct Row<'a> {
    address: &'a str,
    takes_part: bool,
    /// `unreachable`, or a word of the node's part.
    state: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// Of a young node.
    #[serde(skip_serializing_if = "Option::is_none")]
    takes_part_in_seconds: Option<f64>,
    /// Of a node that is closed or of another set.
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
    Seen { fence: Option<u64>, holders: Vec<HolderRow<'a>>, waiters: usize },
    Failed { error: &'a str },
}

#[derive(Serialize)]
struct HolderRow<'a> {
    id: &'a str,
    label: Option<&'a str>,
    token: Option<u64>,
}

/// One line.
pub(super) fn json(nodes: &[NodeStatus]) -> String {
    let line = Line {
        nodes: nodes.iter().map(row_of).collect(),
        taking_part: nodes.iter().filter(|node| node.takes_part()).count(),
        majority: nodes.len() / 2 + 1,
    };
    serde_json::to_string(&line).unwrap_or_else(|_| unreachable!("plain numbers and words"))
}

fn row_of(node: &NodeStatus) -> Row<'_> {
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
            clock_agrees: Some(seen.clock_agrees),
            lock: seen.lock.as_ref().map(|lock| match lock {
                Ok(LockSeen { fence, snapshot, .. }) => LockRow::Seen {
                    fence: fence.map(FencingToken::get),
                    holders: holders(snapshot),
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

fn holders(snapshot: &Snapshot) -> Vec<HolderRow<'_>> {
    snapshot.holders.iter().map(holder_row).collect()
}

fn holder_row(holder: &Participant) -> HolderRow<'_> {
    HolderRow {
        id: holder.id.as_str(),
        label: holder.label.as_ref().map(Label::as_str),
        token: holder.token.map(FencingToken::get),
    }
}
