//! The periodic check of one lock's waiters: one request to each node, whatever their number.

use std::time::Duration;

use fencelock_core::{Look, Result};
use redis::Value;

use super::acquisition::RedlockAcquisition;
use crate::error::strange_answer;
use crate::identity::Process;
use crate::node::Step;
use crate::redlock::node::member::Member;
use crate::redlock::node::quorum::{Electorate, Quorum};
use crate::redlock::rules::rejections::{CHECK_INTERVAL, nth_change};
use crate::redlock::scripts::QUORUM;
use crate::seats::in_turn;

/// One result for each of `waiting`, which all wait for the same lock.
pub(crate) async fn check(
    quorum: &Quorum,
    process: &Process,
    waiting: &[&RedlockAcquisition],
) -> Result<Vec<Look>> {
    let Some(keys) = waiting.first().map(|first| first.keys()) else { return Ok(Vec::new()) };
    let mut values = vec![process.as_str().as_bytes()];
    values.extend(in_turn(waiting).map(|waiter| waiter.waiter().as_bytes()));
    let step = Step { script: &QUORUM.look, keys: &keys.all(), values: &values };
    let Electorate { eligible, reports, .. } = quorum.electorate(quorum.now())?;
    let request = async |member: &Member| {
        let reply = member.batches.step(step).await?;
        read_look(&reply).ok_or_else(|| strange_answer("look"))
    };
    let asked = eligible.iter().map(|(node, _)| node);
    let replies = quorum.ask(asked, reports, request).await?;
    let missing = replies.iter().filter(|reply| reply.missing).count();
    // One waiter is enough to continue with what nodes had to leave undone.
    let unfinished = replies.iter().filter(|reply| reply.is_unfinished());
    let sweep_in = unfinished.map(|reply| reply.look_in).min().unwrap_or(CHECK_INTERVAL);
    let result_for = |(index, waiter): (usize, &&RedlockAcquisition)| {
        if missing >= quorum.majority() {
            return Look::Attempt;
        }
        let waiter = waiter.waiter().as_bytes();
        let at_latest = if index == 0 { sweep_in } else { CHECK_INTERVAL };
        if !replies.iter().any(|reply| reply.mentions(waiter)) {
            return Look::Again(at_latest);
        }
        let changes = replies.iter().map(|reply| reply.change_for(waiter));
        match nth_change(changes.collect(), quorum.majority()) {
            Duration::ZERO => Look::Attempt,
            again => Look::Again(again.min(at_latest)),
        }
    };
    Ok(waiting.iter().enumerate().map(result_for).collect())
}

/// One node's reply.
pub(crate) struct WaiterCheckReply {
    look_in: Duration,
    missing: bool,
    /// Empty if it is another client's.
    first: Vec<u8>,
    /// This client's waiters whose turn it is: the first, or readers.
    turns: Vec<Vec<u8>>,
}

impl WaiterCheckReply {
    fn is_turn_of(&self, waiter: &[u8]) -> bool {
        self.turns.iter().any(|turn| turn == waiter)
    }

    fn mentions(&self, waiter: &[u8]) -> bool {
        self.first == waiter || self.is_turn_of(waiter)
    }

    /// Whether more dead waiters come first than one check may pass over: the live ones are not
    /// known yet.
    fn is_unfinished(&self) -> bool {
        self.first.is_empty() && self.look_in < CHECK_INTERVAL
    }

    /// When the node's reply for `waiter` may change.
    fn change_for(&self, waiter: &[u8]) -> Duration {
        if self.is_turn_of(waiter) {
            Duration::ZERO
        } else if self.first == waiter || self.is_unfinished() {
            self.look_in
        } else if self.missing {
            // It may be the first there as soon as it asks.
            Duration::ZERO
        } else {
            CHECK_INTERVAL
        }
    }
}

pub(crate) fn read_look(reply: &Value) -> Option<WaiterCheckReply> {
    let Value::Array(values) = reply else { return None };
    let [Value::Int(look_in), Value::Int(missing), Value::BulkString(first), turns @ ..] =
        values.as_slice()
    else {
        return None;
    };
    let turns = turns.iter().map(|turn| match turn {
        Value::BulkString(identity) => Some(identity.clone()),
        _ => None,
    });
    let look_in = Duration::from_millis(u64::try_from(*look_in).ok()?);
    let (missing, first) = (*missing != 0, first.clone());
    Some(WaiterCheckReply { look_in, missing, first, turns: turns.collect::<Option<_>>()? })
}
