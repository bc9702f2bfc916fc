//! Different names have different places in every store.

#![no_main]

use fencelock_conformance::outside::names_are_kept_apart;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|names: (&str, &str)| {
    let (one, two) = names;
    names_are_kept_apart(one, two, fencelock_file::outside::directory);
    names_are_kept_apart(one, two, fencelock_redis::fuzzing::keys);
    // Of a name in its bounds no path is too long.
    names_are_kept_apart(one, two, |key| fencelock_zk::outside::lock(key).expect("a path"));
});
