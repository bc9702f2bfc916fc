//! Any text is a URL or an error, and no password is shown. One stands wherever there is a `$`.

#![no_main]

use fencelock_testkit::fuzzing::a_url_keeps_its_secret;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    a_url_keeps_its_secret(text, fencelock_file::fuzzing::url);
    a_url_keeps_its_secret(text, fencelock_redis::fuzzing::url);
    a_url_keeps_its_secret(text, fencelock_zk::fuzzing::url);
});
