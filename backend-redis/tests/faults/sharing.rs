//! Requests that many calls share, and servers that refuse them as a whole or reply wrongly: one call
//! does not fail the others, and a refused request is not repeated again and again.

use std::collections::HashSet;
use std::sync::Mutex;
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

fn refused_calls(server: &FakeRedis) -> (usize, usize) {
    let calls = server.calls();
    let shared = calls.iter().filter(|call| call.is_shared());
    let refused = shared.clone().filter(|call| refuses_denied(call).starts_with('-')).count();
    (refused, shared.count())
}

/// A step that an ACL denies is sent separately, and the others stay in batches.
#[tokio::test]
async fn a_denied_name_is_sent_separately_after_the_first_refusal() {
    let server = FakeRedis::start(refuses_denied).await;
    let locks = connect(&server.url("ttl=60s")).await;
    while_denied(&locks, |_| "denied".to_owned()).await;
    let (refused, shared) = refused_calls(&server);
    assert!(refused <= 2, "{refused} of {shared} calls were refused as a whole");
    assert!(shared > 60, "only {shared} calls were shared");
}

/// Ever new names: after some refusals every step is sent separately, for a while.
#[tokio::test]
async fn many_different_denied_names_cause_few_refused_requests() {
    let server = FakeRedis::start(refuses_denied).await;
    let locks = connect(&server.url("ttl=60s")).await;
    while_denied(&locks, |round| format!("denied-{round}")).await;
    let (refused, shared) = refused_calls(&server);
    assert!(refused <= 10, "{refused} of {shared} calls were refused as a whole");
}

/// Every step is executed once, whichever steps it shares a call with.
#[tokio::test]
async fn calls_of_a_refused_request_are_not_executed_twice() {
    let done = std::sync::Arc::new(Mutex::new(Vec::new()));
    let doing = done.clone();
    let server = FakeRedis::start(move |call| {
        let answer = refuses_denied(call);
        if !answer.starts_with('-') {
            doing.lock().unwrap().extend(call.locks.clone());
        }
        answer
    });
    let server = server.await;
    let locks = connect(&server.url("ttl=60s")).await;
    let wanted = locks.lock("denied");
    let (others, refused) = join(acquire_all(&locks, 0), wanted.try_acquire()).await;
    refused.expect_err("it is denied");
    let guards: Vec<Guard> = others.into_iter().map(|guard| guard.expect("granted")).collect();
    let done = done.lock().unwrap().clone();
    let names: HashSet<&String> = done.iter().collect();
    assert_eq!((done.len(), names.len()), (CLAIMS, CLAIMS));
    assert!(guards.iter().all(Guard::is_held));
}
