//! What `leader` prints of an election, once and as it changes.

use fencelock_testkit::servers::{TestPostgres, TestRedis};
use serde_json::Value;

use super::{command, fencelock};
use crate::support::{Job, Scratch};

/// A candidate that leads until its standard input ends.
fn candidate(here: &Scratch, url: &str, words: &str) -> (Job, String) {
    let script = "echo $FENCELOCK_TOKEN; exec cat";
    let arguments = ["--url", url, "--words", words, "scheduler", "--", "sh", "-c", script];
    let job = Job::start(&mut here.command("elect", &arguments));
    let term = job.line();
    (job, term)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_change_is_a_line() {
    let here = Scratch::new();
    let server = TestRedis::start().await.expect("it starts");
    let postgres = TestPostgres::start().await.expect("it starts");
    for url in [here.url(), postgres.url(), server.url()] {
        let watch = |more: &[&str]| {
            let watch = [&["leader", "--watch", "-u", &url, "scheduler"][..], more].concat();
            Job::start(&mut command(&here, &watch))
        };
        let (text, json) = (watch(&[]), watch(&["--json"]));
        // A leader that has not written its words yet is shown with its label.
        let line_of = |job: &Job| loop {
            let line = job.line();
            if !line.contains(" pid ") {
                return line;
            }
        };
        let next = || {
            let line: Value = serde_json::from_str(&line_of(&json)).expect("JSON");
            assert_eq!(line["name"], "scheduler");
            (line_of(&text), line["term"].clone(), line["words"].clone())
        };
        assert_eq!(next(), ("-".to_owned(), Value::Null, Value::Null));
        for words in ["one:9000", "two:9000"] {
            let (mut job, term) = candidate(&here, &url, words);
            let line = format!("{term} {words}");
            assert_eq!(next(), (line.clone(), term.into(), words.into()));
            let now = fencelock(&here, &["leader", "-u", &url, "scheduler"]);
            assert_eq!((now.code, &*now.printed, &*now.error), (0, &*(line + "\n"), ""));
            assert_eq!(job.hung_up(), 0);
            assert_eq!(next(), ("-".to_owned(), Value::Null, Value::Null));
            let now = fencelock(&here, &["leader", "-u", &url, "scheduler"]);
            assert_eq!((now.code, &*now.printed, &*now.error), (1, "-\n", ""));
        }
    }
}

#[test]
fn a_leader_without_words_is_shown_by_its_process() {
    let here = Scratch::new();
    let job = ["scheduler", "--", "sh", "-c", "echo up; exec cat"];
    let job = Job::start(&mut here.command("elect", &job));
    assert_eq!(job.line(), "up");
    let said = fencelock(&here, &["leader", "scheduler"]);
    let process = format!(" pid {} sh\n", job.pid().as_raw_pid());
    assert!(said.printed.ends_with(&process), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_store_is_one_message_and_no_change() {
    let here = Scratch::new();
    let server = TestRedis::start().await.expect("it starts");
    let url = format!("{}?unreachable_after=500ms", server.url());
    let (mut job, term) = candidate(&here, &server.url(), "one");
    let mut watch =
        Job::start(&mut command(&here, &["leader", "--watch", "-u", &url, "scheduler"]));
    assert_eq!(watch.line(), format!("{term} one"));
    server.freeze().await.expect("frozen");
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    server.thaw().expect("thawed");
    assert_eq!(job.hung_up(), 0);
    assert_eq!(watch.line(), "-", "the outage was no change");
    watch.send(rustix::process::Signal::TERM);
    watch.end();
    let said = watch.complaints();
    assert_eq!(said.lines().count(), 1, "{said}");
}
