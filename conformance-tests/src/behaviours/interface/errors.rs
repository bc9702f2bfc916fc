//! Errors have different kinds where callers act differently, name the operation, and never contain
//! a secret (invariant 9, lessons 27 and 30).

use std::fmt::Debug;

use fencelock_core::{Error, ErrorKind, Operation};

use crate::behaviours::prelude::*;
use crate::behaviours::work::{BRIEFLY, SHORT_WAIT};

const GROUP: &str = "errors";

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "each_failure_has_its_kind", &[], &kinds),
    // Fault 41
    behaviour(GROUP, "no_secret_is_ever_shown", &[], &secrets),
];

/// One error of each kind that needs no fault, with its operation.
async fn errors(context: &Context, name: &str) -> Vec<(ErrorKind, Operation, Error)> {
    let locks = context.client().await;
    let other = context.client().await;
    let mut errors = Vec::new();
    let mut add = |kind, operation, error| errors.push((kind, operation, error));

    let guard = context.acquire(&locks, name).await;
    let lock = other.lock(name).wait_at_most(Duration::ZERO);
    let error = context.soon("busy", lock.acquire()).await.expect_err("held");
    add(ErrorKind::Busy, Operation::Acquire, error);
    let lock = other.lock(name).wait_at_most(SHORT_WAIT);
    let error = context.soon("timed out", lock.acquire()).await.expect_err("held");
    add(ErrorKind::WaitTimedOut, Operation::Acquire, error);
    context.release(guard).await;

    let lock = other.lock(name).hold_at_most(BRIEFLY);
    let guard = work::acquire_lock(context, &lock).await;
    work::until_lost(context, &guard).await;
    let error = context.soon("lost", guard.run(async {})).await.expect_err("lost");
    add(ErrorKind::Lost, Operation::Hold, error);
    let error = context.soon("not held", guard.release()).await.expect_err("lost");
    add(ErrorKind::NotHeld, Operation::Release, error);

    let lock = other.lock(name).ttl(Duration::ZERO);
    let error = context.soon("refused", lock.acquire()).await.expect_err("absurd");
    add(ErrorKind::InvalidArgument, Operation::Acquire, error);

    other.close().await.expect("closed");
    let error = context.soon("closed", other.lock(name).acquire()).await.expect_err("closed");
    add(ErrorKind::Closed, Operation::Acquire, error);
    errors
}

async fn kinds(context: Arc<Context>) {
    let name = context.name("orders/42");
    for (kind, operation, error) in errors(&context, &name).await {
        assert_eq!((error.kind(), error.operation()), (kind, Some(operation)), "{error}");
        if matches!(kind, ErrorKind::InvalidArgument | ErrorKind::Closed | ErrorKind::NotHeld) {
            assert!(!error.is_retryable(), "a retry does not help: {error}");
        }
        let text = error.to_string();
        assert!(text.contains(kind.message()), "does not say what happened: {text}");
        assert!(text.starts_with(&operation.to_string()), "does not say when: {text}");
        assert!(text.contains("orders/42"), "does not say which lock: {text}");
        assert_eq!(error.lock(), Some("orders/42"));
        assert!(text.contains("://"), "does not say which store: {text}");
    }
}

async fn secrets(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let passwords = context.store().secrets();
    let check = |text: &str| {
        assert!(!shows_uuid(text), "an owner token is shown: {text}");
        for password in &passwords {
            assert!(!text.contains(password.as_str()), "a password is shown");
        }
    };
    let show = |value: &dyn Debug| check(&format!("{value:?}"));
    for (_, _, error) in errors(&context, &name).await {
        check(&error.to_string());
        show(&error);
        let mut cause = std::error::Error::source(&error);
        while let Some(inner) = cause {
            check(&inner.to_string());
            cause = inner.source();
        }
    }
    let lock = locks.lock(&name);
    show(&locks);
    show(&lock);
    let guard = context.acquire(&locks, &name).await;
    show(&guard);
    // The output of `inspect` must not allow other clients to release.
    show(&context.soon("inspect answers", locks.inspect(&name)).await.expect("answers"));
    context.release(guard).await;
}

/// Owner tokens are UUIDs, with or without hyphens.
fn shows_uuid(text: &str) -> bool {
    let mut run = 0;
    text.chars().any(|letter| {
        run = match letter {
            letter if letter.is_ascii_hexdigit() => run + 1,
            '-' => run,
            _ => 0,
        };
        run >= 32
    })
}
