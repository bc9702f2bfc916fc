//! Several servers: standbys that take over with or without the last commits, and servers that cannot be
//! written.

use fencelock_conformance::ProtectedRegister;
use fencelock_core::{CellDurability, ErrorKind, LostReason};
use fencelock_testkit::proxy::{Close, Direction, NewConnections, Proxy, framing};
use fencelock_testkit::servers::{PostgresOptions, TestPostgres};

use crate::support::*;

/// A primary and its standby, which gets the primary's writes through a proxy.
struct Pair {
    primary: TestPostgres,
    standby: TestPostgres,
    replication: Proxy,
}

impl Pair {
    async fn start() -> Pair {
        let durable = PostgresOptions::new().durable();
        let primary = durable.clone().start().await.expect("it starts");
        let replication = Proxy::start(primary.addr()).await.expect("it listens");
        let standby = durable.start_as_standby(replication.addr()).await.expect("it follows");
        Pair { primary, standby, replication }
    }

    /// A primary whose commits wait for its standby.
    async fn synchronous() -> Pair {
        let pair = Pair::start().await;
        pair.primary.wait_for_standby_at_commits().await.expect("it waits");
        pair
    }

    /// The URL of both, the standby first.
    fn url(&self, params: &str) -> String {
        let hosts = format!("{},{}", self.standby.addr(), self.primary.addr());
        format!("{}?{params}", self.primary.url_through(&hosts))
    }

    /// The primary crashes, and its standby takes over.
    async fn fail_over(&self) {
        self.primary.kill().expect("it runs");
        self.standby.promote().await.expect("it is promoted");
    }
}

/// What the primary refuses no other host can mend: it is not waited for, whichever host is named first.
/// Fault 59: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_of_the_primary_is_final_beside_a_standby() {
    let pair = Pair::start().await;
    let (primary, standby) = (pair.primary.addr(), pair.standby.addr());
    for hosts in [format!("{primary},{standby}"), format!("{standby},{primary}")] {
        let url = format!("{}?create=never", pair.primary.url_through(&hosts));
        let error = soon("it is refused", try_connect(&url)).await.unwrap_err();
        assert_kind(&error, ErrorKind::Refused);
        assert!(error_chain(&error).contains("fencelock postgres schema"), "{hosts}: {error}");
    }
    // Where the primary may be another host, the refusal is named after the wait.
    let elsewhere = pair.primary.url_through(&format!("{primary},127.0.0.1:1"));
    let elsewhere = elsewhere.replace("/postgres", "/elsewhere");
    let error = connect_error(&elsewhere).await;
    assert_says(&error, ErrorKind::Unreachable, "database that does not exist");
}

/// Row 26: the standby has not got the last commits. Then two clients may hold the lock, as the profile
/// says; the test makes it happen. The resource rejects the stale one, by its token, and so does the
/// database, in which only one history is left.
/// Fault 26: postgres (permitted: a standby that was promoted without the last commits grants a lock
/// that is still believed in)
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_that_lost_the_grant_stale_writes_are_rejected() {
    let pair = Pair::start().await;
    let line = Proxy::framed(pair.primary.addr(), framing::postgres).await.unwrap();
    let through = pair.primary.url_through(&line.addr().to_string());
    let one = connect(&format!("{through}?ttl=30s")).await;
    let other = connect(&pair.url("ttl=30s")).await;
    assert!(one.profile().exclusion_fails_when.join("; ").contains("failover"));
    table_of_writes(&pair.primary).await;
    let earlier = acquire(&one, "lock").await;
    let first = earlier.fencing_token();
    release(earlier).await;
    pair.primary.has_told(&pair.standby).await.unwrap();
    pair.replication.stall(Direction::ToClient);
    let lost = acquire(&one, "lock").await;
    let register = ProtectedRegister::checking();
    assert!(lost.fencing_token() > first && register.write(lost.fencing_token().get(), 1));
    guarded_write(&pair.primary, &lost, 1).await.unwrap();
    let check = lost.check().unwrap();
    // Its client does not find the other primary at once.
    line.cut(Close::Reset, NewConnections::Refused).await.unwrap();
    pair.fail_over().await;
    let second = acquire(&other, "lock").await;
    // Allowed: its holder cannot know.
    assert!(lost.is_held() && second.is_held(), "no overlap: this shows nothing");
    assert!(second.fencing_token() > lost.fencing_token());
    let client = user(&pair.standby).await;
    let stale = fencelock_postgres::run_check(&client, &check).await.unwrap_err();
    assert_kind(&stale, ErrorKind::Lost);
    guarded_write(&pair.standby, &second, 2).await.unwrap();
    assert!(register.write(second.fencing_token().get(), 2));
    assert!(!register.write(lost.fencing_token().get(), 3), "a stale write was taken");
    // The first write went with its grant.
    assert_eq!(writes(&pair.standby).await, "2");
    line.lead_to(pair.standby.addr());
    line.heal().await.unwrap();
    soon("the holder is notified", lost.lost()).await;
    assert_kind(&lost.check().unwrap_err(), ErrorKind::NotHeld);
    drop(lost);
    until_renewed(&other, &second, ms(30_000)).await;
    release(second).await;
    drained(&pair.standby).await;
}

/// Row 26: what was granted is on the standby too.
/// Fault 26: postgres-sync
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_to_a_synchronous_standby_no_lock_is_granted_twice() {
    let pair = Pair::synchronous().await;
    let (one, other) = (connect(&pair.url("ttl=20s")).await, connect(&pair.url("ttl=30s")).await);
    assert!(!one.profile().exclusion_fails_when.join("; ").contains("failover"));
    table_of_writes(&pair.primary).await;
    let kept = acquire(&one, "lock").await;
    // The very last commit before it.
    let last = acquire(&one, "last").await;
    pair.fail_over().await;
    let wanted = [spawn_waiter(&other, "lock"), spawn_waiter(&other, "last")];
    for (name, guard) in [("lock", &kept), ("last", &last)] {
        until_queued(&other, name, 1).await;
        until_renewed(&one, guard, ms(20_000)).await;
        guarded_write(&pair.standby, guard, 1).await.unwrap();
    }
    let tokens = [kept.fencing_token(), last.fencing_token()];
    assert!(wanted.iter().all(|waiter| !waiter.is_finished()), "granted twice");
    release(kept).await;
    release(last).await;
    for (waiter, token) in wanted.into_iter().zip(tokens) {
        let next = until_granted(waiter).await;
        assert!(next.fencing_token() > token);
        release(next).await;
    }
    assert_eq!(writes(&pair.standby).await, "1,1");
    drained(&pair.standby).await;
}

/// No grant without its standby: it would not survive a failover. A release waits for none.
/// Fault 28: postgres-sync
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_synchronous_standby_acquiring_ends_in_time_and_releases_go_on() {
    let pair = Pair::synchronous().await;
    // A renewal waits for the standby, and releases of its client behind it: none is due before the end.
    let (locks, keeping) =
        (connect(&pair.url("ttl=3m")).await, connect(&pair.url("ttl=30s")).await);
    let (given, kept) = (acquire(&locks, "given").await, acquire(&keeping, "kept").await);
    pair.standby.stop().await.unwrap();
    assert_kind(&acquire_error(&locks, "other", ms(3000)).await, ErrorKind::Unreachable);
    release(given).await;
    let granted = "SELECT count(*) FROM fencelock.locks WHERE owner IS NOT NULL AND key = 'given'";
    assert_eq!(sql(&pair.primary, granted).await, "0");
    let waiter = spawn_waiter(&locks, "other");
    pair.standby.restart().await.unwrap();
    pair.standby.replicates().await.unwrap();
    release(until_granted(waiter).await).await;
    until_renewed(&keeping, &kept, ms(30_000)).await;
    release(kept).await;
    drained(&pair.primary).await;
}

/// An operator who cancels the wait for a standby that is away has the commit succeed without it, with a warning.
/// Fault 28: postgres-sync
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_whose_wait_for_the_standby_is_cancelled_is_not_believed() {
    let pair = Pair::synchronous().await;
    let locks = connect(&pair.url("ttl=30s&answer_timeout=20s")).await;
    release(acquire(&locks, "lock").await).await;
    // Also if the role wants no warnings.
    sql(&pair.primary, "ALTER ROLE fencelock SET client_min_messages = 'error'").await;
    let other = connect(&pair.url("ttl=30s&answer_timeout=20s")).await;
    for (locks, name) in [(&locks, "lock"), (&other, "other")] {
        pair.replication.stall(Direction::ToClient);
        let waiter = spawn_waiter(locks, name);
        let in_wait = "SELECT coalesce(max(pid), 0) FROM pg_stat_activity \
                       WHERE application_name ~ '^fencelock_' AND wait_event = 'SyncRep'";
        let mut cancelled = String::new();
        until("the commit waits", async || {
            cancelled = sql(&pair.primary, in_wait).await;
            cancelled != "0"
        })
        .await;
        sql(&pair.primary, &format!("SELECT pg_cancel_backend({cancelled})")).await;
        until("another session repeats it, and waits", async || {
            assert!(!waiter.is_finished(), "a grant without its standby is believed");
            let now = sql(&pair.primary, in_wait).await;
            now != "0" && now != cancelled
        })
        .await;
        pair.replication.heal().await.unwrap();
        release(until_granted(waiter).await).await;
    }
    drained(&pair.primary).await;
}

/// A standby, alone: an error that says so.
/// Fault 52: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_alone_is_refused_with_the_reason_until_it_is_promoted() {
    let pair = Pair::start().await;
    drop(direct(&pair.primary, "").await);
    pair.primary.has_told(&pair.standby).await.unwrap();
    let error = connect_error(&pair.standby.url()).await;
    assert_says(&error, ErrorKind::Unreachable, "is a standby; name the primary");
    let connecting = tokio::spawn({
        let url = pair.standby.url();
        async move { connect(&url).await }
    });
    pair.fail_over().await;
    let locks = soon("it connects", connecting).await.unwrap();
    release(acquire(&locks, "lock").await).await;
    drained(&pair.standby).await;
}

/// A commit that waits for a standby, but not for its disk: the profile says so.
/// Fault 58: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commits_that_wait_for_the_memory_of_a_standby_are_reported_in_the_profile() {
    let pair = Pair::synchronous().await;
    for (setting, is_danger) in [("on", false), ("off", false), ("remote_write", true)] {
        let set = format!("ALTER ROLE fencelock SET synchronous_commit = '{setting}'");
        sql(&pair.primary, &set).await;
        let locks = direct(&pair.primary, "").await;
        let dangers = locks.profile().exclusion_fails_when.join("; ");
        assert_eq!(dangers.contains("remote_write"), is_danger, "{setting}: {dangers}");
        let is_synced = locks.profile().cells == Some(CellDurability::Synced);
        assert_eq!(is_synced, !is_danger, "{setting}");
    }
}

/// Of several hosts the one that can be written is found, in any order, also after a failover in order, and
/// when one of them does not answer.
/// Faults 27, 52: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_hosts_the_primary_is_found_again_after_a_switch() {
    let pair = Pair::start().await;
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hosts = [silent.local_addr().unwrap(), pair.standby.addr(), pair.primary.addr()]
        .map(|a| a.to_string());
    let url = pair.primary.url_through(&hosts.join(","));
    let locks = connect(&format!("{url}?ttl=30s&connect_timeout=300ms")).await;
    let (kept, waiter) = contested(&locks, &locks, "lock").await;
    // In order: the standby has all writes of a primary that is stopped.
    pair.primary.stop().await.unwrap();
    pair.standby.promote().await.unwrap();
    until_renewed(&locks, &kept, ms(30_000)).await;
    // The other way round: the first that answers is the old primary, as a standby.
    pair.primary.follow(pair.standby.addr()).await.unwrap();
    pair.standby.has_told(&pair.primary).await.unwrap();
    pair.standby.stop().await.unwrap();
    pair.primary.promote().await.unwrap();
    // By the new primary: a renewal by the last one may be younger than that.
    tokio::time::sleep(ms(700)).await;
    until_renewed(&locks, &kept, ms(30_000)).await;
    // The one that it has replaced takes writes again, and is named first.
    pair.standby.restart().await.unwrap();
    end_ours(&pair.primary).await;
    until_renewed(&locks, &kept, ms(30_000)).await;
    until("it did not go back", async || sessions(&pair.standby).await == 0).await;
    hand_over(kept, waiter).await;
    drained(&pair.primary).await;
}

/// Row 27: a primary that becomes read-only for a while, as an operator does it before a switch.
/// Fault 27: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_was_read_only_for_a_moment_loses_nothing() {
    let server = own_server().await;
    let locks = direct(&server, "ttl=20s").await;
    let (kept, waiter) = contested(&locks, &locks, "kept").await;
    let read_only = async |on_off: &str| {
        let set = format!("ALTER SYSTEM SET default_transaction_read_only = {on_off}");
        sql(&server, &set).await;
        sql(&server, "SELECT pg_reload_conf()").await;
    };
    read_only("on").await;
    // Sessions hear of it when they next look at their signals.
    let heard = async {
        while let Ok(probe) = locks.lock("probe").wait_at_most(ms(100)).acquire().await {
            drop(probe);
        }
    };
    soon("the session has heard of it", heard).await;
    refused_with(&locks, "fresh", "read-only").await;
    let fresh = spawn_waiter(&locks, "fresh");
    let releasing = tokio::spawn(kept.release());
    refused_with(&locks, "other", "read-only").await;
    let error = connect_error(&server.url()).await;
    assert_says(&error, ErrorKind::Unreachable, "read-only");
    read_only("off").await;
    soon("the release succeeds", releasing).await.unwrap().unwrap();
    release(until_granted(fresh).await).await;
    release(until_granted(waiter).await).await;
    drained(&server).await;
}

/// A connect needs a second slot for a moment, which others may have in the storm after a failover.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_primary_without_a_free_slot_has_replaced_the_old_one_all_the_same() {
    let pair = Pair::start().await;
    let locks = connect(&pair.url("ttl=3s&unreachable_after=60s")).await;
    let kept = acquire(&locks, "lock").await;
    pair.primary.has_told(&pair.standby).await.unwrap();
    pair.standby.promote().await.unwrap();
    sql(&pair.standby, "ALTER ROLE fencelock CONNECTION LIMIT 1").await;
    end_ours(&pair.primary).await;
    // It is not renewed there, where nobody else looks for it.
    assert_eq!(soon("the validity ends", kept.lost()).await, LostReason::Expired);
    sql(&pair.standby, "ALTER ROLE fencelock CONNECTION LIMIT -1").await;
    release(acquire(&locks, "lock").await).await;
}
