//! A node's incarnation record and clock, as they are read and written.

use std::time::Duration;

use fencelock_core::{Error, ErrorKind, Result};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value};

use crate::connection::SupervisedConnection;
use crate::protocol::error::{explain, protocol_error};
use crate::redlock::rules::incarnation::{self, Deployment, IncarnationRecord, RecordState};

/// How often a compare-and-swap of the record is tried: other clients may write at the same time.
pub(crate) const MAX_WRITES: usize = 5;

/// The commands that read the record and the clock.
pub(super) fn read_commands() -> Pipeline {
    let mut commands = Pipeline::with_capacity(2);
    commands.cmd("GET").arg(incarnation::KEY).cmd("TIME");
    commands
}

/// The record's text, if there is one, and the node's clock, in µs.
pub(crate) async fn record_and_clock(
    connection: &mut MultiplexedConnection,
) -> Result<(Option<String>, u64)> {
    let commands = read_commands();
    let replies = connection.send_packed_commands(&commands, 0, commands.len()).await;
    read_replies(replies.map_err(|error| explain(&error))?)
}

pub(super) fn read_replies(replies: Vec<Value>) -> Result<(Option<String>, u64)> {
    let replies: Result<Vec<Value>, _> = replies.into_iter().map(Value::extract_error).collect();
    let replies = replies.map_err(|error| explain(&error))?;
    read(&replies).ok_or_else(|| protocol_error("GET and TIME"))
}

pub(crate) fn read(replies: &[Value]) -> Option<(Option<String>, u64)> {
    let [text, Value::Array(time)] = replies else { return None };
    let text = match text {
        Value::Nil => None,
        // A text that is not UTF-8 is not a record either.
        Value::BulkString(text) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => return None,
    };
    let [Value::BulkString(seconds), Value::BulkString(micros)] = time.as_slice() else {
        return None;
    };
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u64>().ok();
    Some((text, number(seconds)?.checked_mul(1_000_000)?.checked_add(number(micros)?)?))
}

/// The command that replaces `old` by `new`, if `old` is still there.
pub(crate) fn write_command(old: Option<&str>, new: &IncarnationRecord) -> Cmd {
    const SWAP: &str = "-- Changes the record only if it is still the one that was read.
        if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
        -- A client that was paused since it read the clock must not write that time as the birth.
        if ARGV[3] ~= '' and redis.call('TIME')[1] - ARGV[3] > 1 then return 0 end
        redis.call('SET', KEYS[1], ARGV[2])
        return 1";
    let born = match new.state {
        RecordState::Born => (new.born_us / 1_000_000).to_string(),
        RecordState::Open | RecordState::Closed => String::new(),
    };
    let mut swap = redis::cmd("EVAL");
    swap.arg(SWAP).arg(1).arg(incarnation::KEY).arg(old.unwrap_or_default()).arg(new.to_string());
    swap.arg(born);
    swap
}

pub(super) async fn write(
    connection: &SupervisedConnection,
    old: Option<&str>,
    new: &IncarnationRecord,
) -> Result<()> {
    let reply = connection.send(&write_command(old, new)).await?;
    reply.map(drop).map_err(|error| explain(&error))
}

pub(crate) fn keeps_changing() -> Error {
    Error::new(ErrorKind::Unreachable, "its incarnation record keeps changing")
}

/// Whole seconds, rounded up.
pub(crate) fn whole_seconds(rest: Duration) -> u128 {
    rest.as_millis().div_ceil(1000)
}

pub(super) fn quarantined(rest: Duration) -> Error {
    let message = format!(
        "it has lost its data or is new, and takes part in {} s; nodes that never held a lock are \
         declared new by `fencelock redlock init`",
        whole_seconds(rest)
    );
    Error::new(ErrorKind::Unreachable, message)
}

/// The error for a node whose record names another deployment, or is closed.
pub(super) fn other_set(record: &IncarnationRecord, ours: Deployment) -> Error {
    let theirs = record.deployment;
    let message = match record.state {
        RecordState::Closed => format!("its set of nodes was changed: it is closed ({theirs})"),
        _ => format!("it belongs to a set of {theirs}; the URL says {ours}"),
    };
    Error::new(ErrorKind::Refused, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remaining_time_is_rounded_up() {
        assert_eq!(whole_seconds(Duration::from_millis(1001)), 2);
        assert_eq!(whole_seconds(Duration::from_secs(1)), 1);
    }
}
