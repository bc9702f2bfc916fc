//! External input is parsed without a panic and as it is meant: names, URLs, and the replies of servers.
//! The fuzz targets in `fuzz/` test the same with far more inputs.

#![allow(clippy::unwrap_used)]

use fencelock_redis::fuzzing::{Granted, keys, reply, url};
use fencelock_testkit::fuzzing::{
    a_slip_keeps_the_secret, a_url_keeps_its_secret, grants_are_stated, names_are_kept_apart,
    no_parameter_is_overlooked,
};
use proptest::prelude::*;

/// A URL of each scheme, with most of its parameters.
const URLS: [&str; 8] = [
    "redis://me:$@h:6379/3?ttl=2s&prefix=a:&unreachable_after=9s&token_epoch=7",
    "rediss://:$@[::1]/?db=2&tls_ca=/ca.pem&tls_cert=/c.pem&tls_key=/k.pem",
    "redis+unix:///run/redis.sock?db=4&replicas=1",
    "redis+sentinel://me:$@a,b:2/main/1?sentinel_user=s&sentinel_password=p",
    "redis-cluster://:$@a,b:7?replicas=2",
    "rediss-cluster://:$@a?ttl=1m",
    "redlock://:$@a,b:2,c/1?restart_delay=10s&clock_tolerance=1s&set_epoch=3&ttl=5s",
    "rediss+redlock://me:$@a,b,c?node_timeout=100ms&restart_delay=1h",
];

/// Replies of the scripts and the server, of each kind.
const REPLIES: [&str; 14] = [
    ":0\r\n",
    "$16\r\n1732212174000001\r\n",
    "*1\r\n:900\r\n",
    "*3\r\n:1000\r\n:0\r\n$0\r\n\r\n",
    "*4\r\n:5\r\n:1\r\n$1\r\nx\r\n$2\r\nxy\r\n",
    "*3\r\n$7\r\nforeign\r\n:100\r\n:1\r\n",
    "*2\r\n$25\r\nrun open 5000000 3 1 6000\r\n*2\r\n$10\r\n1732212174\r\n$6\r\n000001\r\n",
    "*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:7000\r\n$3\r\nabc\r\n",
    "*3\r\n:1732212174000001\r\n*3\r\n$1\r\nx\r\n:9\r\n:7\r\n*2\r\n$1\r\ny\r\n,1.7e15\r\n",
    "=51\r\ntxt:redis_version:7.0.15\r\nrole:master\r\nrun_id:abc\r\n\r\n",
    "$53\r\nx 30000 lock:@1 67e5504410b1426f9247bb680e5fe0c8 host\r\n",
    "-MOVED 3999 127.0.0.1:6381\r\n",
    "-ERR user_script:12: fencelock: lock:a is a list of another program\r\n",
    "*1\r\n$6\r\nlock:a\r\n",
];

/// Any value in RESP.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let bulk = |text: Vec<u8>| [format!("${}\r\n", text.len()).as_bytes(), &text, b"\r\n"].concat();
    let leaf = prop_oneof![
        any::<i64>().prop_map(|number| format!(":{number}\r\n").into_bytes()),
        (-2i64..3).prop_map(|number| format!(":{number}\r\n").into_bytes()),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(bulk),
        "[0-9+ -]{0,22}".prop_map(move |text| bulk(text.into_bytes())),
        any::<f64>().prop_map(|number| format!(",{number}\r\n").into_bytes()),
        "[+_#(,-][ -~]{0,30}\r\n".prop_map(String::into_bytes),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let kind = prop::sample::select(b"*~>%|".to_vec());
        (kind, prop::collection::vec(inner, 0..6)).prop_map(|(kind, all)| {
            let count = if kind == b'%' { all.len() / 2 } else { all.len() };
            let head = format!("{}{count}\r\n", char::from(kind)).into_bytes();
            [head, all.concat()].concat()
        })
    })
}

/// `text` with some bytes changed, inserted and removed.
fn damaged(text: &[u8], damages: &[(usize, u8, u8)]) -> Vec<u8> {
    let mut text = text.to_vec();
    for (at, kind, byte) in damages {
        let at = at % (text.len() + 1);
        match (kind % 3, at < text.len()) {
            (0, true) => text[at] = *byte,
            (1, true) => drop(text.remove(at)),
            _ => text.insert(at, *byte),
        }
    }
    text
}

fn damages() -> impl Strategy<Value = Vec<(usize, u8, u8)>> {
    prop::collection::vec((any::<usize>(), any::<u8>(), any::<u8>()), 0..4)
}

fn check_reply(bytes: &[u8]) {
    let Granted { attempt, vote } = reply(bytes);
    grants_are_stated(bytes, attempt.into_iter().chain(vote));
}

/// Without this the other tests of replies would prove nothing.
#[test]
fn a_grant_is_read() {
    let token = Some(1_732_212_174_000_001);
    assert_eq!(reply(REPLIES[1].as_bytes()), Granted { attempt: token, vote: token });
    for whole in REPLIES {
        redis::parse_redis_value(whole.as_bytes()).expect(whole);
        assert_eq!(reply(whole.as_bytes()).attempt.is_some(), whole == REPLIES[1], "{whole:?}");
    }
}

#[test]
fn absurd_lengths_and_depths_are_refused() {
    for head in ["$", "*", "%", "~", ">", "|", "=", "!"] {
        for length in ["9999999999", "9223372036854775807", "4611686018427387904", "-9", "x"] {
            assert_eq!(reply(format!("{head}{length}\r\n:1\r\n").as_bytes()), Granted::default());
        }
        let deep = format!("{head}1\r\n").repeat(10_000);
        assert_eq!(reply(deep.as_bytes()), Granted::default());
    }
}

proptest! {
    #[test]
    fn names_have_keys_of_their_own(one in ".{1,20}", two in ".{1,20}", odd in "[{}%:q]{1,6}") {
        names_are_kept_apart(&one, &two, keys);
        names_are_kept_apart(&one, &format!("{one}{odd}"), keys);
        // Nor is one lock's key the queue or token of another.
        let [lock, queue, token] = keys(&one);
        let [other, _, _] = keys(&format!("{two}{odd}"));
        prop_assert!(other != queue && other != token && lock != queue);
    }

    #[test]
    fn any_text_is_a_url_or_an_error(text in "(redis|redis[+]unix|redlock|redis-cluster)://(/?[%-~]{0,8}:[$]@)?[%-~]{0,40}") {
        a_url_keeps_its_secret(&text, url);
    }

    #[test]
    fn a_damaged_url_keeps_its_secret(at in 0..URLS.len(), damages in damages()) {
        let text = damaged(URLS[at].as_bytes(), &damages);
        a_url_keeps_its_secret(&String::from_utf8_lossy(&text), url);
    }

    #[test]
    fn a_slip_in_a_url_shows_no_password(password in "[A-Z][a-zA-Z0-9!+*~^]{8,30}") {
        for good in URLS.into_iter().filter(|good| good.contains('$')) {
            a_slip_keeps_the_secret(good, &password, url);
        }
    }

    #[test]
    fn parameters_are_taken_or_refused(at in 0..URLS.len(), more in "[a-z_]{0,6}") {
        no_parameter_is_overlooked(URLS[at], &more, url);
    }

    #[test]
    fn durations_in_urls_may_be_of_any_length(number: u64, unit in "(ns|us|ms|s|m|h|d|y)", at in 0..5) {
        let name = ["ttl", "restart_delay", "clock_tolerance", "node_timeout", "unreachable_after"][at as usize];
        a_url_keeps_its_secret(&format!("redlock://:$@a,b,c?{name}={number}{unit}"), url);
    }

    #[test]
    fn any_reply_is_read(bytes in frame()) {
        check_reply(&bytes);
    }

    #[test]
    fn a_damaged_reply_is_read(at in 0..REPLIES.len(), damages in damages()) {
        check_reply(&damaged(REPLIES[at].as_bytes(), &damages));
    }

    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        check_reply(&bytes);
    }
}
