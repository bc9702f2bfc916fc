//! What a step's reply must be, given its effects.

use super::Verdict;
use super::bench::Op;
use super::client::Value;
use super::rules::{FOREIGN, Step};
use super::state::{Holder, SLACK, State, ensure};

pub(crate) fn judge(step: &Step<'_>, granted: &[(i64, &Holder)]) -> Verdict {
    ensure(step.reply.error().is_none(), || format!("{:?}", step.reply))?;
    let verdict = match step.op {
        Op::Queue | Op::Try => attempted(step, granted),
        Op::Release | Op::Evict => released(step),
        Op::Renew => renewed(step),
        Op::Check => checked(step),
    };
    verdict.map_err(|why| format!("{why}, answered {:?}", step.reply))
}

fn attempted(step: &Step<'_>, granted: &[(i64, &Holder)]) -> Verdict {
    let text = &step.me.text;
    let (holds, waits) = (step.after.holders.get(text), step.after.waits(text));
    let is_granted = step.after.is_granted(text);
    match (step.reply.int(), step.reply, step.op) {
        (Some(0), _, Op::Try) => {
            let left = holds.is_some() || waits.is_some() || is_granted.is_some();
            ensure(!left, || format!("{text} left something"))?;
            let is_empty = step.after.waiting.is_empty();
            let is_free = step.is_free_for(step.me);
            ensure(!(is_empty && is_free), || "it was free".into())
        }
        (Some(token), _, _) if token > 0 => {
            let holder = holds.ok_or_else(|| format!("{text} does not hold"))?;
            let left = waits.is_some() || is_granted.is_some();
            ensure(!left, || "still in the queue".into())?;
            ensure(step.is_from_now(holder.expiry, step.me.ttl), || {
                format!("it ends at {}", holder.expiry)
            })?;
            let held = step.token(holder);
            ensure(held == Some(token), || format!("the keys say {held:?}"))?;
            let is_new = granted.iter().any(|(_, new)| new.claim.text == *text);
            let was =
                step.before.holders.get(text).and_then(|old| old.token.or(step.before.last_token));
            ensure(is_new || was.is_none_or(|was| was == token), || format!("it was {was:?}"))
        }
        (None, Value::List(check_after), Op::Queue) => {
            ensure(waits.is_some() && is_granted.is_none(), || format!("{text} does not wait"))?;
            let own = step.after.waiting.first().is_some_and(is_of(step));
            ensure(check_after.len() == 1, || "it is too long".into())?;
            next_check(step, own, &check_after[0])
        }
        _ => Err("it is not a reply".into()),
    }
}

fn released(step: &Step<'_>) -> Verdict {
    let text = &step.me.text;
    let queued = |state: &State| state.waits(text).or(state.is_granted(text)).is_some();
    let held = step.before.holders.get(text);
    let foreign = step.before.foreign.as_ref() == Some(text);
    let ended = held.is_some_and(|held| held.expiry <= step.after.now())
        || (foreign && step.before.hold_ends_before(step.after));
    let was_there = held.is_some() || queued(step.before) || foreign;
    let expected = i64::from(was_there);
    ensure(step.reply.int() == Some(expected) || ended, || format!("{text} was {expected}"))?;
    let is_there = step.after.holders.contains_key(text) || queued(step.after);
    ensure(!is_there, || format!("{text} is still there"))
}

fn renewed(step: &Step<'_>) -> Verdict {
    let held = step.before.holders.get(&step.me.text);
    if step.before.hold_ends_before(step.after) {
        return Ok(());
    }
    let holds = held.is_some_and(|held| held.expiry > step.before.now());
    ensure(step.reply.int() == Some(i64::from(holds)), || format!("held before: {held:?}"))?;
    let after = step.after.holders.get(&step.me.text);
    let extended = after.is_some_and(|held| step.is_from_now(held.expiry, step.me.ttl));
    ensure(!holds || extended, || format!("held after: {after:?}"))
}

fn checked(step: &Step<'_>) -> Verdict {
    let [ms, Value::Int(missing), Value::Text(first), found @ ..] = step.reply.list() else {
        return Err("it is not a reply".into());
    };
    let found: Vec<_> = found.iter().filter_map(Value::text).collect();
    let head = step.after.waiting.first().filter(|waiter| is_of(step)(waiter));
    next_check(step, head.is_some(), ms)?;
    let expected = head.map_or("", |waiter| &waiter.claim.text);
    ensure(first == expected, || format!("the first is {expected:?}"))?;
    if !step.before.ends_before(step.after) {
        let is_known = step.before.deadlines.contains_key(&step.me.process);
        let is_there = |text: &String| {
            step.after.waits(text).is_some()
                || step.after.is_granted(text).is_some()
                || step.after.holders.contains_key(text)
        };
        let expected = i64::from(!is_known || !step.samples.iter().all(is_there));
        ensure(*missing == expected, || format!("missing should be {expected}"))?;
        let granted = step.before.granted.iter().filter(|waiter| is_of(step)(waiter));
        let held = step.after.holders.values().map(|holder| &holder.claim).filter(|claim| {
            claim.process == step.me.process
                && (claim.mode.group() == "x" || step.samples.contains(&claim.text))
        });
        for text in granted.map(|waiter| &waiter.claim.text).chain(held.map(|claim| &claim.text)) {
            ensure(found.contains(&text.as_str()), || format!("{text} is not reported"))?;
        }
    }
    let known = |text: &str| {
        let holds = |state: &State| state.holders.contains_key(text);
        step.before.is_granted(text).is_some() || holds(step.after) || holds(step.before)
    };
    let stray = found.iter().find(|text| !known(text));
    ensure(stray.is_none(), || format!("{stray:?} is not granted"))
}

/// The first in the queue checks when a holder can expire, all others once a second.
fn next_check(step: &Step<'_>, own: bool, given: &Value) -> Verdict {
    let given = given.int().ok_or("no time")?;
    let ends = step.after.holders.values().map(|holder| holder.expiry).min();
    let expected = match ends {
        _ if !own => 1000,
        _ if step.after.foreign.is_some() => FOREIGN,
        Some(end) => (end - step.after.now() + 1).clamp(1, 1000),
        None => 1,
    };
    let slack = if own { SLACK } else { 0 };
    if own && step.before.hold_ends_before(step.after) {
        return Ok(());
    }
    let is_positive = given > 0 || expected == FOREIGN;
    ensure((given - expected).abs() <= slack && is_positive, || format!("check in {expected}"))
}

fn is_of<'a>(step: &'a Step<'_>) -> impl Fn(&super::state::Waiter) -> bool + 'a {
    |waiter| waiter.claim.process == step.me.process
}
