//! `fencelock elect`: a command that runs on the leader, and on the next one when that is gone.

use std::process::Output;

use fencelock_testkit::servers::{TestPostgres, TestZooKeeper};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Job, Scratch, eventually, is_dead, pid, redis};

/// Prints its term and process id, then waits for how to end.
const SERVES: &str = "echo term $FENCELOCK_TOKEN $$; read code; exit $code";

fn elect(here: &Scratch, url: &str, options: &[&str], script: &str) -> Job {
    let fixed = ["scheduler", "--", "sh", "-c", script];
    Job::start(&mut here.command("elect", &[&["--url", url], options, &fixed].concat()))
}

fn leader(here: &Scratch, url: &str) -> Output {
    here.command("leader", &["-u", url, "scheduler"]).output().expect("it runs")
}

/// The term and the command's process id.
fn led(job: &Job) -> (u64, rustix::process::Pid) {
    let line = job.line();
    let mut words = line.strip_prefix("term ").expect("a term").split(' ');
    let term = words.next().and_then(|term| term.parse().ok()).expect("a number");
    (term, pid(words.next().expect("a process id")))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_leads_at_a_time_and_the_next_when_its_command_ends() {
    let here = Scratch::new();
    let (server, ensemble) = (redis().await, TestZooKeeper::standalone().await.expect("it starts"));
    let zookeeper = format!("zk://{}/jobs", ensemble.connect_string());
    let postgres = TestPostgres::start().await.expect("it starts");
    for url in [here.url(), postgres.url(), server.url(), zookeeper] {
        let mut one = elect(&here, &url, &["--words", "one:9000"], SERVES);
        let (first, _) = led(&one);
        let mut two = elect(&here, &url, &["--words", "two:9000"], SERVES);
        here.until_waiting(&url, "scheduler", 1);
        let seen = leader(&here, &url);
        assert_eq!(seen.status.code(), Some(0), "{seen:?}");
        assert_eq!(String::from_utf8_lossy(&seen.stdout), format!("{first} one:9000\n"));
        one.write("7\n");
        assert_eq!(one.code(), 7, "the command's own");
        let (second, _) = led(&two);
        assert!(second > first);
        assert_eq!(
            String::from_utf8_lossy(&leader(&here, &url).stdout),
            format!("{second} two:9000\n")
        );
        two.write("0\n");
        assert_eq!((two.code(), two.complaints()), (0, String::new()));
        assert_eq!(leader(&here, &url).status.code(), Some(1));
    }
}

#[test]
fn after_a_loss_the_command_is_ended_and_it_campaigns_again() {
    let here = Scratch::new();
    let mut one = elect(&here, &here.url(), &["--status-json", "status"], SERVES);
    let (first, command) = led(&one);
    here.take_away("scheduler");
    let (second, again) = led(&one);
    assert!(second > first && again != command);
    assert!(is_dead(command), "two commands of one candidate");
    let status = || -> Value {
        let status = std::fs::read(here.path("status")).expect("a status");
        serde_json::from_slice(&status).expect("JSON")
    };
    let running = status();
    assert_eq!(running["outcome"], "running", "{running}");
    assert_eq!(running["token"], second.to_string(), "{running}");
    one.write("5\n");
    assert_eq!(one.code(), 5);
    assert_eq!(status()["exit_code"], 5);
    let said = one.complaints();
    assert!(said.contains("lock lost: \"scheduler\" on file://"), "{said}");
    assert!(said.contains("campaigning again for \"scheduler\""), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
}

/// Another candidate that is in line leads before the one that has lost its term.
#[test]
fn a_loser_is_behind_those_in_line() {
    let here = Scratch::new();
    let mut one = elect(&here, &here.url(), &[], SERVES);
    let (first, command) = led(&one);
    let mut two = elect(&here, &here.url(), &[], SERVES);
    here.until_waiting(&here.url(), "scheduler", 1);
    here.take_away("scheduler");
    let (second, _) = led(&two);
    here.until_waiting(&here.url(), "scheduler", 1);
    assert!(is_dead(command));
    two.write("0\n");
    assert_eq!(two.code(), 0);
    let (third, _) = led(&one);
    assert!(first < second && second < third);
    one.write("0\n");
    assert_eq!(one.code(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_cut_off_stops_leading_in_time_and_leads_again() {
    let here = Scratch::new();
    let server = redis().await;
    let url = format!("{}?unreachable_after=1s", server.url());
    let script = "trap 'echo term; exit 0' TERM; echo up $FENCELOCK_TOKEN $$; \
                  while :; do sleep 0.02; done";
    let mut one = elect(&here, &url, &["--ttl", "6s", "--grace", "3s"], script);
    let up = |line: String| {
        let (_, command) = line.rsplit_once(' ').expect("a process id");
        assert!(line.starts_with("up "), "{line}");
        pid(command)
    };
    let command = up(one.line());
    server.freeze().await.expect("frozen");
    assert_eq!(one.line(), "term", "in time to end by itself");
    eventually("it has ended", || is_dead(command));
    // Longer than the store may be silent in one campaign.
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    server.thaw().expect("thawed");
    let again = up(one.line());
    one.send(Signal::TERM);
    assert_eq!(one.line(), "term");
    assert_eq!(one.code(), 0, "the command's own");
    assert!(is_dead(again));
    let said = one.complaints();
    assert!(said.contains("the command gets SIGTERM"), "{said}");
    // While its lost term is released: it must not lead again.
    let mut one = elect(&here, &url, &["--ttl", "6s", "--grace", "3s"], script);
    let command = up(one.line());
    server.freeze().await.expect("frozen");
    assert_eq!(one.line(), "term");
    eventually("it has ended", || is_dead(command));
    one.send(Signal::TERM);
    one.send(Signal::HUP);
    server.thaw().expect("thawed");
    assert_eq!((one.code(), one.silence()), (79, Vec::<String>::new()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leader_is_followed() {
    let here = Scratch::new();
    let server = redis().await;
    for url in [here.url(), server.url()] {
        let url = format!("{url}?ttl=5s");
        let one = elect(&here, &url, &[], SERVES);
        let (first, command) = led(&one);
        let mut two = elect(&here, &url, &[], SERVES);
        here.until_waiting(&url, "scheduler", 1);
        two.send(Signal::HUP);
        one.send(Signal::KILL);
        let (second, _) = led(&two);
        assert!(second > first && is_dead(command), "{url}");
        two.write("0\n");
        assert_eq!(two.code(), 0);
    }
}

#[test]
fn a_signal_ends_the_campaign_or_the_command_for_good() {
    let here = Scratch::new();
    let mut one = elect(&here, &here.url(), &[], SERVES);
    led(&one);
    let mut two = elect(&here, &here.url(), &[], SERVES);
    here.until_waiting(&here.url(), "scheduler", 1);
    two.send(Signal::TERM);
    assert_eq!(two.code(), 143);
    here.until_waiting(&here.url(), "scheduler", 0);
    one.send(Signal::TERM);
    assert_eq!(one.code(), 143);
    assert_eq!(leader(&here, &here.url()).status.code(), Some(1));
}

/// The user has asked it to end: it does not start the command again.
#[test]
fn a_loss_after_sigterm_ends_it() {
    let here = Scratch::new();
    let script = "trap 'echo ending' TERM; echo up; while :; do sleep 0.02; done";
    let mut one = elect(&here, &here.url(), &[], script);
    assert_eq!(one.line(), "up");
    one.send(Signal::TERM);
    assert_eq!(one.line(), "ending");
    here.take_away("scheduler");
    assert_eq!(one.code(), 79);
    assert_eq!(one.silence(), [""; 0]);
}

#[test]
fn a_command_that_cannot_be_executed_ends_it() {
    let here = Scratch::new();
    for (options, code) in [
        (&["scheduler", "--", "/no/such/program"][..], 127),
        (&["--on-lost", "continue", "scheduler", "--", "true"], 64),
        (&["-w", "3", "scheduler", "--", "true"], 64),
        (&["--", "true", "false"], 64),
        (&["--url", "mem://", "scheduler", "--", "true"], 78),
    ] {
        let output = here.command("elect", options).output().expect("it runs");
        assert_eq!(output.status.code(), Some(code), "{output:?}");
    }
    let long = "x".repeat(4 * 1024 + 1);
    let output = here.command("elect", &["--words", &long, "scheduler", "--", "true"]).output();
    assert_eq!(output.expect("it runs").status.code(), Some(64));
}
