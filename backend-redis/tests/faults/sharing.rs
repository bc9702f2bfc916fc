//! Requests that many calls share, and servers that refuse them as a whole or reply wrongly: one call
//! does not fail the others, and a refused request is not repeated again and again.

use std::collections::HashSet;
use std::time::Duration;

use fencelock_core::{ErrorKind, Guard, Locks, Result};
use futures_util::future::{join, join_all};

use super::fake::{Call, FakeRedis};
use crate::support::*;

/// More than are sent alone, and more than one batch takes.
const CLAIMS: usize = 150;

/// All at once, each with a lock of its own.
async fn acquire_all(locks: &Locks, round: usize) -> Vec<Result<Guard>> {
    acquire_all_within(PATIENCE, locks, round).await
}

async fn acquire_all_within(wait: Duration, locks: &Locks, round: usize) -> Vec<Result<Guard>> {
    let acquiring = (0..CLAIMS).map(|n| {
        let lock = locks.lock(format!("lock-{round}-{n}")).wait_at_most(wait);
        async move { lock.acquire().await }
    });
    within(PATIENCE, "all have replies", join_all(acquiring)).await
}

/// A broken proxy: no reply can be attributed to its call.
#[tokio::test]
async fn a_reply_that_is_too_short_is_an_error() {
    let short = FakeRedis::start(|call| match call.is_shared() {
        true => "*1\r\n$16\r\n1700000000000000\r\n".to_owned(),
        false => call.good(),
    });
    let short = short.await;
    let locks = connect(&short.url("")).await;
    let acquired = acquire_all_within(ms(500), &locks, 0).await;
    for error in acquired.into_iter().filter_map(Result::err) {
        assert_kind(&error, ErrorKind::Unreachable);
        assert!(!error_chain(&error).contains("closed"), "{}", error_chain(&error));
    }
    assert!(short.calls().iter().any(Call::is_shared));
}

/// A server of a cluster, or a proxy before one: every lock is granted, and only the first requests are
/// tried with keys of several slots.
#[tokio::test]
async fn a_server_that_refuses_keys_of_several_slots_gets_separate_calls() {
    let proxy = FakeRedis::start(|call| match call.is_shared() {
        true => "-CROSSSLOT Keys in request don't hash to the same slot\r\n".to_owned(),
        false => call.good(),
    });
    let proxy = proxy.await;
    let locks = connect(&proxy.url("ttl=60s")).await;
    for round in 0..5 {
        for acquired in acquire_all(&locks, round).await {
            release(acquired.expect("granted")).await;
        }
    }
    let shared = proxy.calls().iter().filter(|call| call.is_shared()).count();
    // Two may be in flight.
    assert!((1..=2).contains(&shared), "{shared} calls were refused");
}

fn refuses_denied(call: &Call) -> String {
    match call.locks.iter().any(|lock| lock.contains("denied")) {
        true => "-NOPERM No permissions to access a key\r\n".to_owned(),
        false => call.good(),
    }
}

/// Runs tasks that use their own locks and one that wants `denied(round)`, until enough were granted.
async fn while_denied(locks: &Locks, denied: impl Fn(usize) -> String) {
    for round in 0..30 {
        let wanted = locks.lock(denied(round));
        // After those that are sent alone.
        let (others, refused) = join(acquire_all(locks, round), wanted.try_acquire()).await;
        assert_kind(&refused.expect_err("it is denied"), ErrorKind::Refused);
        let others: Vec<Guard> = others.into_iter().map(|guard| guard.expect("granted")).collect();
        let giving_back = join_all(others.into_iter().map(release));
        let (_, refused) = join(giving_back, wanted.try_acquire()).await;
        assert_kind(&refused.expect_err("it is denied"), ErrorKind::Refused);
    }
}

/// A step that an ACL denies is sent separately, and the others stay in batches. With ever new names every
/// step is sent separately after some refusals, for a while.
#[tokio::test]
async fn a_denied_name_is_sent_separately_after_the_first_refusals() {
    let one_name: fn(usize) -> String = |_| "denied".to_owned();
    let new_names: fn(usize) -> String = |round| format!("denied-{round}");
    for (name, most, least) in [(one_name, 2, 60), (new_names, 10, 0)] {
        let server = FakeRedis::start(refuses_denied).await;
        let locks = connect(&server.url("ttl=60s")).await;
        while_denied(&locks, name).await;
        let shared: Vec<Call> = server.calls().into_iter().filter(Call::is_shared).collect();
        let refused = shared.iter().filter(|call| refuses_denied(call).starts_with('-')).count();
        assert!(refused <= most, "{refused} of {} calls were refused as a whole", shared.len());
        assert!(shared.len() > least, "only {} calls were shared", shared.len());
    }
}

/// Every step is executed once, whichever steps it shares a call with.
#[tokio::test]
async fn calls_of_a_refused_request_are_not_executed_twice() {
    let server = FakeRedis::start(refuses_denied).await;
    let locks = connect(&server.url("ttl=60s")).await;
    let wanted = locks.lock("denied");
    let (others, refused) = join(acquire_all(&locks, 0), wanted.try_acquire()).await;
    refused.expect_err("it is denied");
    let guards: Vec<Guard> = others.into_iter().map(|guard| guard.expect("granted")).collect();
    let mut calls = server.calls();
    calls.retain(|call| !refuses_denied(call).starts_with('-'));
    let done: Vec<&String> = calls.iter().flat_map(|call| &call.locks).collect();
    let names: HashSet<_> = done.iter().collect();
    assert_eq!((done.len(), names.len()), (CLAIMS, CLAIMS));
    assert!(guards.iter().all(Guard::is_held));
}
