//! What a reply says must be in the rows.

use super::Verdict;
use super::bench::{Call, Step, ensure, equal};
use super::claim::Claim;
use super::rules::Effects;

pub(super) fn judge(effects: &Effects<'_>) -> Verdict {
    let reply = effects.reply;
    match effects.call {
        Call::Attempt { claim, queue } => attempt(effects, claim, *queue, reply.number),
        Call::Release(claim) => release(effects, claim, reply.number),
        Call::Renew(claims, ttl) => {
            claims.iter().try_for_each(|claim| renewal(effects, claim, *ttl))
        }
        Call::Downgrade(claim, ttl) => downgrade(effects, claim, *ttl),
        Call::Look { process, keys, sample } => look(effects, process, keys, sample),
        Call::Evict { .. } => ensure(reply.number == 1, || "not evicted".into()),
        Call::Batch(steps) => {
            steps.iter().zip(&reply.steps).try_for_each(|(step, reply)| match step {
                Step::Attempt { claim, queue } => attempt(effects, claim, *queue, *reply),
                Step::Release(claim) => release(effects, claim, *reply),
            })
        }
    }
}

fn attempt(effects: &Effects<'_>, claim: &Claim, queue: bool, reply: i64) -> Verdict {
    let (before, after) = effects.lock(claim);
    let now = effects.after.now;
    match reply {
        token @ 1.. => {
            let grant = after.grant(claim.owner).ok_or("granted, and not in the rows")?;
            equal("the grant's token", &grant.first, &token)?;
            equal("the reserved tokens", &(grant.last - token), &i64::from(claim.tokens - 1))?;
            ensure(grant.confirmed, || format!("not confirmed: {grant:?}"))?;
            equal("the end", &grant.until, &(now + claim.ttl))?;
            // A repetition, and a confirmation, find what was granted.
            match before.grant(claim.owner) {
                Some(old) if old.until > now => equal("the token, repeated", &token, &old.first),
                _ => Ok(()),
            }
        }
        -1000..=-20 => {
            // A later step of the same batch may have handed off to it.
            let is_batch = matches!(effects.call, Call::Batch(_));
            let is_queued = after.claim(claim.owner).is_some_and(|c| c.state == 'w' || is_batch);
            ensure(is_queued, || "not in the queue".into())?;
            let first = after.claims.iter().find(|claim| claim.state == 'w');
            let is_first = first.is_some_and(|first| first.process == claim.process);
            ensure(is_first || is_batch || reply == -1000, || format!("looks after {reply} ms"))
        }
        0 => {
            ensure(!queue, || "busy, but it would queue".into())?;
            let is_left = after.claim(claim.owner).is_some() || after.grant(claim.owner).is_some();
            ensure(!is_left, || "busy, and still there".into())?;
            let waits = after.claims.iter().any(|claim| claim.state == 'w');
            let is_free = !waits && after.is_free_for(claim.mode, claim.n, claim.limit, now);
            let is_guarded = effects.guarded.is_some_and(|guarded| guarded.key == claim.key);
            // A batch may have released it afterwards.
            let is_batch = matches!(effects.call, Call::Batch(_));
            ensure(!is_free || is_guarded || is_batch, || "busy, but free".into())
        }
        _ => Err(format!("the reply is {reply}")),
    }
}

fn release(effects: &Effects<'_>, claim: &Claim, reply: i64) -> Verdict {
    let (before, after) = effects.lock(claim);
    let queued = before.claim(claim.owner);
    let was_released = queued.is_some_and(|queued| queued.until == 0);
    let was_there = (queued.is_some() && !was_released)
        || before.grant(claim.owner).is_some_and(|g| g.mode == 'x');
    // An earlier step of the same batch may have removed what had ended.
    let has_ended = before.grant(claim.owner).is_some_and(|grant| grant.until <= effects.after.now);
    let is_removed = matches!(effects.call, Call::Batch(_)) && has_ended && reply == 0;
    ensure(reply == i64::from(was_there) || is_removed, || format!("a release replied {reply}"))?;
    // During its transaction a reader is only marked.
    let is_guarded = effects.guarded.is_some_and(|guarded| guarded.owner == claim.owner);
    let is_marked = is_guarded && after.claim(claim.owner).is_some_and(|queued| queued.until == 0);
    let is_gone = after.grant(claim.owner).is_none() && after.claim(claim.owner).is_none();
    ensure(is_gone || is_marked, || "released, and still there".into())
}

fn renewal(effects: &Effects<'_>, claim: &Claim, ttl: i64) -> Verdict {
    let (before, after) = effects.lock(claim);
    let (old, new) = (before.grant(claim.owner), after.grant(claim.owner));
    let now = effects.before.now;
    // A hand-off of a group that is not confirmed is not a hold.
    let held = old.as_ref().filter(|old| old.until > now && (old.confirmed || old.mode == 'x'));
    let is_told = effects.reply.owners.iter().any(|(owner, _)| *owner == claim.owner);
    equal("whether it is renewed", &is_told, &held.is_some())?;
    let end = |grant: Option<&super::state::Grant>| grant.map(|grant| grant.until);
    let expected = if held.is_some() && ttl > 0 { Some(now + ttl) } else { end(old.as_ref()) };
    equal("the end after the renewal", &end(new.as_ref()), &expected)
}

fn downgrade(effects: &Effects<'_>, claim: &Claim, ttl: i64) -> Verdict {
    let (before, after) = effects.lock(claim);
    let now = effects.before.now;
    let old = before.grant(claim.owner);
    let held = old.filter(|old| old.until > now && old.confirmed && old.mode != 'p');
    equal("the reply to a downgrade", &effects.reply.number, &i64::from(held.is_some()))?;
    let Some(held) = held else { return Ok(()) };
    let new = after.grant(claim.owner).ok_or("lost in its downgrade")?;
    equal("the mode", &new.mode, &'s')?;
    equal("the tokens", &(new.first, new.last), &(held.first, held.last))?;
    equal("the end", &new.until, &if ttl == 0 { held.until } else { now + ttl })
}

fn look(effects: &Effects<'_>, process: &str, keys: &[Vec<u8>], sample: &[uuid::Uuid]) -> Verdict {
    let mut expected = Vec::new();
    for lock in keys.iter().map(|key| effects.after.lock(key)) {
        let mine =
            |state| move |c: &&super::state::Queued| c.process == process && c.state == state;
        expected.extend(lock.claims.iter().filter(mine('g')).map(|claim| claim.owner));
        expected.extend(lock.claims.iter().filter(mine('l')).map(|claim| claim.owner));
        let first = lock.claims.iter().find(|claim| claim.state == 'w');
        if let Some(first) = first.filter(|first| first.process == process) {
            let looks = effects.reply.owners.iter().find(|(owner, _)| *owner == first.owner);
            let is_told = looks.is_some_and(|(_, again)| (20..=1000).contains(again));
            ensure(is_told, || format!("{first:?} is not the first: {:?}", effects.reply.owners))?;
        }
    }
    let queued = |owner| {
        let mut locks = effects.after.locks.values();
        locks.any(|lock| lock.claim(owner).is_some())
    };
    let told = |as_what| {
        let told = effects.reply.owners.iter().filter(|(_, again)| *again == as_what);
        let mut told: Vec<_> = told.map(|(owner, _)| *owner).collect();
        told.sort_unstable();
        told
    };
    expected.sort_unstable();
    equal("those that attempt now", &told(0), &expected)?;
    let mut missing: Vec<_> = sample.iter().copied().filter(|owner| !queued(*owner)).collect();
    missing.sort_unstable();
    equal("those that are missing", &told(-1), &missing)?;
    let deadline = effects.after.deadlines.get(process).copied().unwrap_or_default();
    equal("the deadline", &deadline, &(effects.after.now + 3_000_000))
}
