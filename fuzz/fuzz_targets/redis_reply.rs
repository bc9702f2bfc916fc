//! Any bytes of a Redis server are an answer or none, and grant nothing that does not stand there.

#![no_main]

use fencelock_redis::fuzzing::{Granted, reply};
use fencelock_testkit::fuzzing::grants_are_stated;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Granted { attempt, vote } = reply(bytes);
    grants_are_stated(bytes, attempt.into_iter().chain(vote));
});
