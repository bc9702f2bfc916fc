//! What `show` prints about a lock, and about what it cannot show.

use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use fencelock_testkit::servers::{RedisOptions, TestRedis};

use super::{Said, command, fencelock, until};
use crate::support::Scratch;

#[test]
fn a_store_of_one_process_is_refused() {
    let here = Scratch::new();
    for arguments in [
        &["show", "-u", "mem://", "job"][..],
        &["break", "-u", "mem://", "job", "--reason", "x"],
        &["leader", "-u", "mem://", "job"],
    ] {
        let said = fencelock(&here, arguments);
        assert_eq!(
            (said.code, &*said.printed, said.error.lines().count()),
            (78, "", 1),
            "{said:?}"
        );
        assert!(said.error.contains("mem:// has the locks of one process only"), "{said:?}");
        assert!(said.error.contains("file:///DIR"), "{said:?}");
    }
}

#[test]
fn the_store_comes_from_the_files_that_run_reads() {
    let here = Scratch::new();
    let mut job = here.hold(&[], "job");
    let file = here.path("fencelock.toml");
    std::fs::write(&file, format!("url = {:?}\n", here.url())).expect("written");
    let config = file.to_str().expect("text");
    let show = |variable: (&str, &str), arguments: &[&str]| {
        let mut command = command(&here, arguments);
        command.env_remove("FENCELOCK_URL").env(variable.0, variable.1);
        Said::of(&command.output().expect("it runs"))
    };
    let held = format!("\"job\" on {}: held\n", here.url());
    for said in [
        show(("LANG", "C"), &["show", "job", "--config", config]),
        show(("FENCELOCK_CONFIG", config), &["show", "job"]),
    ] {
        assert!(said.code == 0 && said.printed.starts_with(&held), "{said:?}");
    }
    let said = show(("FENCELOCK_REACH", "network"), &["show", "job"]);
    assert_eq!((said.code, &*said.printed), (78, ""), "not as if it were free: {said:?}");
    let said = show(("FENCELOCK_URL", "localhost"), &["show", "job"]);
    assert!(said.code == 78 && said.error.contains("FENCELOCK_URL: invalid"), "{said:?}");
    assert_eq!(job.hung_up(), 0);
}

#[test]
fn an_impossible_name_is_a_usage_error() {
    let here = Scratch::new();
    let long = "x".repeat(513);
    for arguments in [["show", ""], ["show", &long], ["leader", ""]] {
        let said = fencelock(&here, &arguments);
        assert_eq!(said.code, 64, "{said:?}");
        assert!(said.error.contains("1 to 512 bytes"), "{said:?}");
    }
}

#[test]
fn a_store_that_does_not_answer_is_69() {
    let here = Scratch::new();
    // Accepts connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", silent.local_addr().expect("an address"));
    let start = Instant::now();
    let said = fencelock(&here, &["show", "-u", &url, "job"]);
    assert_eq!((said.code, &*said.printed), (69, ""), "{said:?}");
    assert!(start.elapsed() < Duration::from_secs(20), "much less than unreachable_after");
}

#[test]
fn a_reader_that_has_seen_enough_is_not_an_error() {
    let here = Scratch::new();
    let _held = here.hold(&[], "job");
    for arguments in [&["show", "job"][..], &["leader", "--watch", "scheduler"]] {
        let mut command = command(&here, arguments);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        drop(child.stdout.take());
        let said = Said::of(&child.wait_with_output().expect("it ends"));
        assert_eq!((said.code, &*said.error), (0, ""), "{said:?}");
    }
}

/// Such a key without a TTL keeps the lock busy for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_of_another_library_is_shown_and_removed() {
    let here = Scratch::new();
    let server = TestRedis::start().await.expect("it starts");
    let url = server.url();
    server.command(&["SET", "lock:job", "not ours"]).await.expect("set");
    let seen = until(&here, &url, "job", 1, 0);
    let holder = &seen["holders"][0];
    assert_eq!(holder["label"], "a client of another library", "{seen}");
    assert!(holder["token"].is_null() && holder["since_seconds"].is_null(), "{seen}");
    let said = fencelock(&here, &["break", "-u", &url, "job", "--reason", "left over", "--yes"]);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.error.contains("from=\"a client of another library\""), "{said:?}");
    assert!(!said.error.contains("token="), "{said:?}");
    assert!(said.printed.contains("unless it is a client of another library"), "{said:?}");
    assert_eq!(server.command(&["EXISTS", "lock:job"]).await.expect("answered").trim(), "0");
    until(&here, &url, "job", 0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_password_is_ever_shown() {
    const PASSWORD: &str = "correcthorse";
    let here = Scratch::new();
    let server = RedisOptions::new().password(PASSWORD).start().await.expect("it starts");
    let url = server.url();
    assert!(url.contains(PASSWORD));
    let _job = here.hold(&["--url", &url], "job");
    for arguments in [
        &["show", "-u", &url, "job"][..],
        &["show", "-u", &url, "job", "--json"],
        &["break", "-u", &url, "job", "--reason", "why"],
        &["break", "-u", &url, "job", "--reason", "why", "--yes"],
        &["break", "-u", &url, "job", "--reason", "why", "--yes"],
        &["show", "--help"],
    ] {
        let mut command = command(&here, arguments);
        let said = Said::of(&command.env("FENCELOCK_URL", &url).output().expect("it runs"));
        assert!(!said.printed.contains(PASSWORD) && !said.error.contains(PASSWORD), "{said:?}");
    }
}
