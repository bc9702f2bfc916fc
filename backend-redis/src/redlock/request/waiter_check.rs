//! The periodic check of one lock's waiters: one request to each node, whatever their number.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::batching::Priority;
use fencelock_core::{Acquisition, Claim, LockName, Result, WaiterCheck};
use futures_util::{StreamExt, stream};
use redis::Value;

use super::acquisition::RedlockAcquisition;
use crate::protocol::call::ScriptCall;
use crate::protocol::error::protocol_error;
use crate::protocol::identity::{ClientId, Identity, Keys};
use crate::protocol::script::SCRIPTS;
use crate::protocol::snapshot;
use crate::redlock::node::member::Member;
use crate::redlock::node::pending_releases::{AT_ONCE, ReleaseKind, release_round};
use crate::redlock::node::quorum::Quorum;
use crate::redlock::node::view::QuorumView;
use crate::redlock::rules::rejections::{CHECK_INTERVAL, nth_change};
use crate::redlock::scripts::QUORUM;
use crate::server::batch::BatchingNode;
use crate::server::sample::in_turn;

/// One result for each of `waiting`, which all wait for `lock`.
pub(crate) async fn check(
    quorum: &Quorum,
    client: &ClientId,
    lock: &LockName,
    waiting: &[&RedlockAcquisition],
) -> Result<Vec<WaiterCheck>> {
    let keys = Keys::of(lock.key());
    let mut values = vec![client.as_str().as_bytes()];
    values.extend(in_turn(waiting).map(|waiter| waiter.waiter().as_bytes()));
    let call = ScriptCall { script: &QUORUM.check_waiters, keys: &keys.all(), values: &values };
    let priority = Claim::check_priority(waiting.iter().map(|it| it.claim()));
    let reports = quorum.electorate(quorum.now(), |_| None)?.reports;
    let request = async |member: &Member, ticket| {
        let reply = member.batches.call(call, priority, Some(ticket)).await?;
        let reply = read_waiter_check(&reply).ok_or_else(|| protocol_error("check_waiters"))?;
        let is_over = |own: Identity| quorum.view.waiters.is_over(&own.owner);
        let is_stray = |identity: &Vec<u8>| Identity::parse(identity).is_some_and(is_over);
        if is_stray(&reply.first) || reply.turns.iter().any(is_stray) {
            let (batches, view) = (member.batches.clone(), quorum.view.clone());
            let removing = remove_strays(batches, view, client.clone(), keys.clone());
            quorum.runtime.spawn(removing);
        }
        Ok(reply)
    };
    let replies = quorum.ask(reports, 1, request).await?;
    let missing = replies.iter().filter(|reply| reply.missing).count();
    // One waiter is enough to continue with what nodes had to leave undone.
    let unfinished = replies.iter().filter(|reply| reply.is_unfinished());
    let sweep_in = unfinished.map(|reply| reply.check_after).min().unwrap_or(CHECK_INTERVAL);
    let result_for = |(index, waiter): (usize, &&RedlockAcquisition)| {
        if missing >= quorum.majority() {
            return WaiterCheck::Attempt;
        }
        let waiter = waiter.waiter().as_bytes();
        let at_latest = if index == 0 { sweep_in } else { CHECK_INTERVAL };
        if !replies.iter().any(|reply| reply.mentions(waiter)) {
            return WaiterCheck::Again(at_latest);
        }
        let changes = replies.iter().map(|reply| reply.change_for(waiter));
        match nth_change(changes.collect(), quorum.majority()) {
            Duration::ZERO => WaiterCheck::Attempt,
            again => WaiterCheck::Again(again.min(at_latest)),
        }
    };
    Ok(waiting.iter().enumerate().map(result_for).collect())
}

/// Removes the waiters of this client from a node's queue that are over: what the node did only after their releases had
/// been given up, all others would wait behind. The next check repeats what fails.
async fn remove_strays(
    batches: Arc<BatchingNode>,
    view: Arc<QuorumView>,
    client: ClientId,
    keys: Keys,
) {
    let values = &[snapshot::MOST.as_bytes()];
    let call = ScriptCall { script: &SCRIPTS.inspect, keys: &keys.all(), values };
    let reply = batches.call(call, Priority::RollBack, None).await;
    let Some(contents) = reply.ok().and_then(snapshot::read) else { return };
    let strays = contents.strays(&client, |owner| view.waiters.is_over(owner));
    let removing = stream::iter(strays).map(|stray| {
        let (batches, keys) = (&batches, &keys);
        async move {
            let (waiter, kind) = (str::from_utf8(&stray), ReleaseKind::RollBack(""));
            let waiter = waiter.unwrap_or_default();
            let _ = release_round(batches, None, keys, &stray, waiter, kind).await;
        }
    });
    removing.buffer_unordered(AT_ONCE).collect::<()>().await;
}

/// One node's reply.
pub(crate) struct WaiterCheckReply {
    check_after: Duration,
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
        self.first.is_empty() && self.check_after < CHECK_INTERVAL
    }

    /// When the node's reply for `waiter` may change.
    fn change_for(&self, waiter: &[u8]) -> Duration {
        if self.is_turn_of(waiter) {
            Duration::ZERO
        } else if self.first == waiter || self.is_unfinished() {
            self.check_after
        } else if self.missing {
            // It may be the first there as soon as it asks.
            Duration::ZERO
        } else {
            CHECK_INTERVAL
        }
    }
}

pub(crate) fn read_waiter_check(reply: &Value) -> Option<WaiterCheckReply> {
    let Value::Array(values) = reply else { return None };
    let [Value::Int(check_after), Value::Int(missing), Value::BulkString(first), turns @ ..] =
        values.as_slice()
    else {
        return None;
    };
    let turns = turns.iter().map(|turn| match turn {
        Value::BulkString(identity) => Some(identity.clone()),
        _ => None,
    });
    let check_after = Duration::from_millis(u64::try_from(*check_after).ok()?);
    let (missing, first) = (*missing != 0, first.clone());
    Some(WaiterCheckReply { check_after, missing, first, turns: turns.collect::<Option<_>>()? })
}
