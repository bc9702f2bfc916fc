//! Arbitrary names and URLs. The fuzz targets in `fuzz/` test the same with far more inputs; the
//! unit tests of the queue's record cover arbitrary queues.

use fencelock_file::fuzzing::{directory, url};
use fencelock_testkit::fuzzing::{
    a_url_keeps_its_secret, names_are_kept_apart, no_parameter_is_overlooked,
};
use proptest::prelude::*;

proptest! {
    #[test]
    fn names_have_separate_directories(one in ".{1,120}", two in ".{1,120}", odd in "[.%~]{1,4}") {
        names_are_kept_apart(&one, &two, directory);
        names_are_kept_apart(&one, &format!("{one}{odd}"), directory);
    }

    #[test]
    fn any_text_is_a_url_or_an_error(text in "file:/?/?/?([%-~]{0,8}:[$]@)?[%-~]{0,40}") {
        a_url_keeps_its_secret(&text, url);
    }

    #[test]
    fn parameters_are_taken_or_refused(more in "[a-z_]{0,6}") {
        no_parameter_is_overlooked("file:///d?ttl=2s&prefix=a&token_epoch=1", &more, url);
    }
}
