//! External input is parsed without a panic, and as what it says: names, URLs, and the nodes that
//! servers list. The fuzz targets in `fuzz/` check the same with far more inputs.

use fencelock_testkit::fuzzing::{
    a_slip_keeps_the_secret, a_url_keeps_its_secret, names_are_kept_apart,
    no_parameter_is_overlooked,
};
use fencelock_zk::fuzzing::{is_granted, lock, snapshot, url};
use proptest::prelude::*;

const URL: &str =
    "zk://h1:2182,h2,[::1]/app/locks/?session=4s&auth=digest:me:pw&acl=creator&ttl=2s";

/// Names of nodes, of this library and of others, and nearly valid ones.
fn child() -> impl Strategy<Value = String> {
    let near = "(_c_[a-f]{3}-)?(lock-|__READ__|__WRIT__|permits-[1-9]{1,2}-[0-9]{1,3}-|n_|é|)-?[0-9]{9,11}";
    prop_oneof![4 => near, 1 => "\\PC{0,20}[-0-9]{0,12}"]
}

/// The number at its end, if there is one of ten digits.
fn number(name: &str) -> Option<i32> {
    let digits = name.get(name.len().checked_sub(10)?..)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

proptest! {
    #[test]
    fn different_names_have_different_nodes(one in ".{1,60}", two in ".{1,60}", odd in "[.%z/]{1,4}") {
        let lock = |key: &str| lock(key).unwrap();
        names_are_kept_apart(&one, &two, lock);
        names_are_kept_apart(&one, &format!("{one}{odd}"), lock);
    }

    #[test]
    fn any_text_is_a_url_or_an_error(text in "(zk|zookeeper)://(/?[%-~]{0,8}:[$]@)?[%-~]{0,40}") {
        a_url_keeps_its_secret(&text, url);
    }

    #[test]
    fn a_mistyped_url_shows_no_password(password in "[A-Z][a-zA-Z0-9!+*~^]{8,30}") {
        a_slip_keeps_the_secret(&URL.replace("://", "://me:$@"), &password, url);
    }

    #[test]
    fn a_secret_in_a_parameter_is_not_shown(
        scheme in "(digest|sasl-digest-md5|x|)", user in "[a-z:]{0,4}", rest in "[ -%'-~]{0,20}",
    ) {
        let text = format!("zk://h/locks?auth={scheme}:{user}:hunter2{rest}");
        let read = fencelock_core::url::StoreUrl::parse(&text).map(|parsed| (url(&parsed), parsed));
        let shown = format!("{read:?}");
        prop_assert!(!shown.contains("hunter2"), "{}", shown);
    }

    #[test]
    fn parameters_are_accepted_or_refused(more in "[a-z_]{0,6}") {
        no_parameter_is_overlooked(URL, &more, url);
    }

    #[test]
    fn a_snapshot_shows_at_most_the_listed_nodes(
        names in prop::collection::vec(child(), 0..12), data: Vec<u8>, czxid: i64, ctime: i64,
    ) {
        let shown = snapshot(&names, &data, czxid, ctime);
        prop_assert!(shown.holders.len() + shown.waiters.len() <= names.len());
    }

    #[test]
    fn a_claim_that_is_not_listed_or_not_first_is_not_granted(
        mut names in prop::collection::vec(child(), 0..12), own in 0..1_000_000_000i32,
    ) {
        let name = format!("_c_ours-lock-{own:010}");
        prop_assert!(!is_granted(&names, &name));
        let mut others = names.iter().filter_map(|name| number(name));
        let is_first = others.all(|other| own.wrapping_sub(other) <= 0);
        names.push(name.clone());
        prop_assert!(is_first || !is_granted(&names, &name), "{:?}", names);
    }
}
