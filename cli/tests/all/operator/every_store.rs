//! One job holds the lock, one waits; an operator looks, and takes the lock from the first.

use std::time::{Duration, Instant};

use fencelock_testkit::deployments::{Kind, Library, Wiring};
use serde_json::Value;

use super::{fencelock, id, until};
use crate::support::Scratch;

pub(crate) const LIBRARY: Library = Library {
    connect: |url| {
        let url = url.to_owned();
        Box::pin(async move { fencelock::connect(&url).await })
    },
    declare_new: |url| {
        let url = url.to_owned();
        Box::pin(async move { fencelock::redlock::init(&url).await })
    },
};

on_stores! {
    is_shown_and_broken:
    on_files(Kind::File, &[]);
    // With a TTL whose renewals are far apart: the holder is notified, and does not find out by itself.
    on_postgres(Kind::Postgres, &["--ttl", "10m"]);
    // No notification comes through a pooler, so the holder finds out at its next renewal.
    on_postgres_behind_a_pooler(Kind::PostgresPgbouncer, &["--ttl", "6s"]);
    on_redis(Kind::Redis, &["--ttl", "10m"]);
    on_redlock(Kind::Redlock3, &[]);
    on_zookeeper(Kind::ZooKeeper, &[]);
}

async fn is_shown_and_broken(kind: Kind, options: &[&str]) {
    let here = Scratch::new();
    let store = kind.start(LIBRARY, Wiring::Direct).await.expect("the servers start");
    let (url, name) = (&*store.url(), "nightly report");
    let job = |script: &str| {
        let run = ["--url", url, name, "--", "sh", "-c", script];
        here.start(&[options, &run].concat())
    };

    let free = until(&here, url, name, 0, 0);
    assert_eq!(free["name"], name);
    let said = fencelock(&here, &["show", "-u", url, name]);
    assert_eq!((said.code, &*said.error), (1, ""));
    assert!(said.printed.starts_with("\"nightly report\" on "), "{said:?}");
    assert!(said.printed.ends_with(": free\n"), "{said:?}");
    let said = fencelock(&here, &["break", "-u", url, name, "--reason", "a try", "--yes"]);
    assert_eq!((said.code, &*said.printed), (1, ""));
    assert!(said.error.contains("is free; there is nothing to break"), "{said:?}");

    let mut first = job("echo $FENCELOCK_TOKEN; exec cat");
    let token = first.line();
    let mut second = job("echo second; exec cat");
    let held = until(&here, url, name, 1, 1);
    let (holder, waiter) = (&held["holders"][0], &held["waiters"][0]);
    assert_eq!((&held["complete"], &holder["mode"]), (&Value::Bool(true), &"exclusive".into()));
    let label_ends = |one: &Value, job: &crate::support::Job| {
        let label = one["label"].as_str().expect("a label");
        assert!(label.ends_with(&format!(" pid {} sh", job.pid().as_raw_pid())), "{held}");
    };
    label_ends(holder, &first);
    label_ends(waiter, &second);
    assert_eq!(holder["token"], *token, "{held}");
    assert!(waiter["token"].is_null(), "{held}");
    assert!(waiter["since_seconds"].as_f64().expect("a time") < 600.0, "{held}");
    let said = fencelock(&here, &["show", "-u", url, name]);
    let lines: Vec<&str> = said.printed.lines().collect();
    assert_eq!((said.code, lines.len()), (0, 4), "{said:?}");
    assert!(lines[0].ends_with(": held, 1 waiting"), "{said:?}");
    assert!(lines[2].starts_with("holder") && lines[2].contains(&*token), "{said:?}");
    assert!(lines[2].contains(&id(holder)) && lines[3].contains(&id(waiter)), "{said:?}");

    let said = fencelock(&here, &["break", "-u", url, name, "--reason", "a try"]);
    assert_eq!((said.code, &*said.printed), (64, ""));
    assert!(said.error.contains(&id(holder)) && said.error.contains("--yes"), "{said:?}");
    assert_eq!(id(&until(&here, url, name, 1, 1)["holders"][0]), id(holder), "unchanged");

    let start = Instant::now();
    let broken = ["break", "-u", url, name, "--reason", "the host\tburnt down", "--yes"];
    let said = fencelock(&here, &broken);
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.printed.starts_with("took \"nightly report\" on "), "{said:?}");
    assert!(said.printed.contains("It is notified at once"), "{said:?}");
    assert_eq!(said.error.lines().count(), 1, "{said:?}");
    let label = holder["label"].as_str().expect("a label");
    for part in [
        " WARN fencelock::audit: broken name=\"nightly report\" store=\"",
        &format!(" from={label:?}"),
        &format!(" id={}", id(holder)),
        &format!(" token={token}"),
        " by=\"",
        " reason=\"the host burnt down\"",
    ] {
        assert!(said.error.contains(part), "no {part:?} in {said:?}");
    }
    assert_eq!(first.code(), 79);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    let complaint = first.complaints();
    assert!(complaint.contains("lock lost: \"nightly report\""), "{complaint}");
    assert_eq!(second.line(), "second");
    let next = until(&here, url, name, 1, 0);
    assert_ne!(id(&next["holders"][0]), id(holder));
    assert_eq!(second.hung_up(), 0);
    until(&here, url, name, 0, 0);
}

on_stores! {
    are_listed:
    a_thousand_waiters_are_listed_on_files(Kind::File);
    a_thousand_waiters_are_listed_on_postgres(Kind::Postgres);
    a_thousand_waiters_are_listed_on_redis(Kind::Redis);
}

/// A thousand claims at once take these servers longer than a client believes in their silence, if the
/// machine has other work.
mod long {
    use super::{Kind, are_listed};

    on_stores! {
        are_listed:
        #[ignore = "in ./test --long: needs most of a core"]
        a_thousand_waiters_are_listed_on_redlock(Kind::Redlock3);
        #[ignore = "in ./test --long: needs most of a core"]
        a_thousand_waiters_are_listed_on_zookeeper(Kind::ZooKeeper);
    }
}

async fn are_listed(kind: Kind) {
    const WAITERS: usize = 1000;
    let here = Scratch::new();
    let store = kind.start(LIBRARY, Wiring::Direct).await.expect("the servers start");
    let url = store.url();
    let locks = fencelock::connect(&url).await.expect("connected");
    let held = locks.lock("queue").acquire().await.expect("granted");
    let waiting: Vec<_> = (0..WAITERS)
        .map(|number| {
            let lock = locks.lock("queue").label(&format!("number {number}"));
            tokio::spawn(async move { lock.acquire().await })
        })
        .collect();
    // A server answers `show` within the second that it waits once all are in the queue, but a busy machine
    // may need longer while they join it.
    while !locks.inspect("queue").await.is_ok_and(|seen| seen.waiters.len() >= WAITERS) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let listed = tokio::task::block_in_place(|| until(&here, &url, "queue", 1, WAITERS));
    let labels: std::collections::BTreeSet<_> = listed["waiters"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|it| &it["label"])
        .map(Value::to_string)
        .collect();
    assert_eq!(labels.len(), WAITERS, "each once");
    assert_eq!(listed["complete"], false, "a store may list no more than these");
    let said = tokio::task::block_in_place(|| fencelock(&here, &["show", "-u", &url, "queue"]));
    let first = said.printed.lines().next().expect("a line");
    assert!(
        first.ends_with(": held, 1000 waiting, and perhaps more than the store lists"),
        "{first}"
    );
    assert_eq!(said.printed.lines().count(), 2 + 1 + WAITERS);
    for waiter in waiting {
        waiter.abort();
    }
    drop(held);
    locks.close().await.expect("closed");
}
