//! Any nodes that a ZooKeeper server lists are a queue, and no client is granted that is not in
//! it.

#![no_main]

use fencelock_zk::fuzzing::{is_granted, snapshot};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|listed: (Vec<String>, String, Vec<u8>, i64, i64)| {
    let (names, own, data, czxid, ctime) = listed;
    assert!(!is_granted(&names, &own) || names.contains(&own));
    let shown = snapshot(&names, &data, czxid, ctime);
    assert!(shown.holders.len() + shown.waiters.len() <= names.len());
});
