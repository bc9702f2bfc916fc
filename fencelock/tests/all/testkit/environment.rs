//! What the environment changes: this program runs its own tests again, with other variables.

use std::process::Command;

use fencelock_testkit::servers::RedisOptions;

/// A server that is not there.
const ABSENT: (&str, &str) = ("FENCELOCK_REDIS_SERVER", "/nonexistent/redis-server");

/// Whether these tests of this program pass, and all their output.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> (bool, String) {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(arguments).envs(variables.iter().copied());
    for unset in ["FENCELOCK_TEST_REDIS_URL", "FENCELOCK_TEST_MISSING"] {
        if !variables.iter().any(|(name, _)| *name == unset) {
            command.env_remove(unset);
        }
    }
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn a_missing_server_says_what_to_install() {
    let (passes, output) = run(&["--exact", "testkit::a_lock_excludes::redis"], &[ABSENT]);
    assert!(!passes, "{output}");
    for part in [
        "testkit::a_lock_excludes::redis: cannot start redis-server",
        "apt-get install redis-server",
        "brew install redis",
        "FENCELOCK_TEST_REDIS_URL=redis://HOST:PORT",
        "FENCELOCK_TEST_MISSING=ignore",
    ] {
        assert!(output.contains(part), "{part} is missing: {output}");
    }
}

#[test]
fn a_missing_server_may_be_ignored_and_the_output_says_so() {
    let ignore = ("FENCELOCK_TEST_MISSING", "ignore");
    let (passes, output) = run(&["--exact", "testkit::a_lock_excludes::redis"], &[ABSENT, ignore]);
    assert!(passes, "{output}");
    let said = "ignored: all::testkit::a_lock_excludes::redis: cannot start redis-server";
    assert!(output.contains(said), "{output}");
    // What is there is tested.
    let (passes, output) = run(&["--exact", "testkit::a_lock_excludes::mem"], &[ABSENT, ignore]);
    assert!(passes && !output.contains("ignored:"), "{output}");
}

#[test]
fn a_misspelt_choice_is_an_error() {
    let ignored = ("FENCELOCK_TEST_MISSING", "ignored");
    let (passes, output) = run(&["--exact", "testkit::a_lock_excludes::redis"], &[ABSENT, ignored]);
    assert!(!passes && output.contains("expected ignore or fail"), "{output}");
}

#[tokio::test]
async fn a_server_given_by_a_url_is_used_and_left_as_it_was() {
    let redis = RedisOptions::new().password("hunter2hunter2").start().await.unwrap();
    redis.command(&["SET", "of another program", "1"]).await.unwrap();
    let url = redis.url();
    let given = [("FENCELOCK_TEST_REDIS_URL", url.as_str()), ABSENT];
    let names = [
        "--exact",
        "--include-ignored",
        "testkit::a_lock_excludes::redis",
        "testkit::a_panic_fails_the_test::redis",
        "testkit::clients_of_one_store_share_its_locks::redis",
        "testkit::faults::a_fault_touches_no_other_test::redis",
        "testkit::faults::a_given_server_is_not_stopped::redis",
    ];
    // The server needs nothing of this thread.
    let (passes, output) = run(&names, &given);
    assert!(passes && output.contains("5 passed"), "{output}");
    assert!(!output.contains("hunter2"), "{output}");
    let keys = redis.command(&["KEYS", "*"]).await.unwrap();
    assert_eq!(keys, "of another program");
}

#[test]
fn a_url_of_another_store_is_refused() {
    let given = ("FENCELOCK_TEST_REDIS_URL", "zk://:hunter2@localhost:2181/");
    let (passes, output) = run(&["--exact", "testkit::a_lock_excludes::redis"], &[given]);
    assert!(!passes && output.contains("expected a URL of a redis store"), "{output}");
    assert!(!output.contains("hunter2"), "{output}");
}

#[test]
fn a_url_that_cannot_be_used_names_its_variable_and_the_cause_once() {
    let url = "redis://:hunter2@127.0.0.1:1/?unreachable_after=200ms";
    let given = ("FENCELOCK_TEST_REDIS_URL", url);
    let (passes, output) = run(&["--exact", "testkit::a_lock_excludes::redis"], &[given]);
    let says = "testkit::a_lock_excludes::redis: FENCELOCK_TEST_REDIS_URL: connect on \
                redis://:***@127.0.0.1:1/: store unreachable: no connection within \
                unreachable_after=200ms: cannot connect to 127.0.0.1:1: connection refused; is the \
                server running, and listening on 127.0.0.1:1?\n";
    assert!(!passes && output.contains(says), "{output}");
}
