//! Different names have different places in every store.

#![no_main]

use fencelock_testkit::fuzzing::names_are_kept_apart;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|names: (&str, &str)| {
    let (one, two) = names;
    names_are_kept_apart(one, two, fencelock_file::fuzzing::directory);
    names_are_kept_apart(one, two, fencelock_redis::fuzzing::keys);
    // Of a name in its bounds no path is too long.
    names_are_kept_apart(one, two, |key| fencelock_zk::fuzzing::lock(key).expect("a path"));
});
