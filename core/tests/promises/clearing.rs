//! What a tool's run left in a store is removed in spite of trouble that passes, and within a bound.

use std::error::Error as _;

use fencelock_core::memory::Memory;
use fencelock_core::{Error, ErrorKind, Operation, Scratch, Settings};

use crate::scripted::{Call, SECOND, Script, refused_connection};

#[tokio::test(start_paused = true)]
async fn clearing_is_tried_again_until_it_is_done() {
    let flaky = |n| async move { if n < 3 { refused_connection() } else { Ok(()) } };
    let (store, locks) = Script::new().clears(move |asked| flaky(asked.n)).connect();
    locks.clear(&Scratch::fresh("", "test"), 30 * SECOND).await.unwrap();
    assert_eq!(store.count(|call| *call == Call::Clear), 4);
}

#[tokio::test(start_paused = true)]
async fn clearing_ends_with_its_limit_and_says_why() {
    let (store, locks) = Script::new().clears(|_| async { refused_connection() }).connect();
    let asked = store.now();
    let error = locks.clear(&Scratch::fresh("", "test"), 5 * SECOND).await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Unreachable, Some(Operation::Clear)));
    assert!(error.source().unwrap().to_string().contains("connection refused"), "{error:?}");
    assert_eq!(store.now().duration_since(asked), 5 * SECOND);

    let (_, locks) = Script::new().clears(|_| std::future::pending()).connect();
    let error = locks.clear(&Scratch::fresh("", "test"), 5 * SECOND).await.unwrap_err();
    assert!(error.message().contains("within 5s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_final_and_so_is_a_store_that_cannot_clear() {
    let refused = || Error::new(ErrorKind::Refused, "an ACL denies it");
    let (store, locks) = Script::new().clears(move |_| async move { Err(refused()) }).connect();
    let scratch = Scratch::fresh("", "test");
    let error = locks.clear(&scratch, 30 * SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert_eq!(store.count(|call| *call == Call::Clear), 1);

    let locks = Memory::new().locks(Settings::default()).unwrap();
    let error = locks.clear(&scratch, 30 * SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}
