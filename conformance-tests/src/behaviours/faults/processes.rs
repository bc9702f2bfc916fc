//! Several processes, some of them frozen or killed: locks are kept by the store, not by the
//! program (faults 1 to 5).

use fencelock_core::{Guard, Liveness};
use tokio::time::{Instant, sleep};

use crate::behaviours::prelude::*;
use crate::behaviours::work::SHORT_TTL;
use crate::history;
use crate::history::checker::Rules;
use crate::processes::peer::protocol::{Answer, Want};
use crate::processes::peer::{Peer, PeerError};

const GROUP: &str = "processes";
const NEEDS: &[Need] = &[Need::Backdoor(Backdoor::Processes)];

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "processes_exclude_each_other", NEEDS, &exclude),
    behaviour(GROUP, "an_unprotected_file_loses_no_update", NEEDS, &counter),
    // Fault 1
    behaviour(GROUP, "no_update_is_lost_although_processes_are_killed", NEEDS, &counter_with_kills),
    behaviour(GROUP, "processes_are_served_in_arrival_order", ORDERED, &order),
    // Fault 1
    behaviour(GROUP, "a_crashed_holder_frees_its_lock", NEEDS, &crashed),
    // Fault 5
    behaviour(GROUP, "a_killed_waiter_is_passed_over", NEEDS, &killed_waiter),
    behaviour(GROUP, "a_killed_reader_lets_the_writer_in", READERS, &reader),
    behaviour(GROUP, "a_killed_process_releases_its_permits", PERMITS, &permits),
    // Fault 2
    behaviour(GROUP, "a_briefly_stopped_holder_keeps_its_lock", NEEDS, &nap),
    // Faults 3, 6
    behaviour(GROUP, "a_long_stopped_holder_never_overlaps_another", NEEDS, &stopped),
    // Fault 39
    behaviour(GROUP, "a_starved_holder_never_overlaps_another", NEEDS, &starved),
    // Fault 34
    behaviour(GROUP, "a_clients_clock_that_jumps_changes_nothing", CLOCK, &clock_jumps),
    behaviour(
        GROUP,
        "machines_that_booted_at_different_times_exclude_each_other",
        BOOT,
        &boot_times,
    ),
];

const ORDERED: &[Need] = &[Need::Backdoor(Backdoor::Processes), Need::Arrival];
const CLOCK: &[Need] = &[Need::Backdoor(Backdoor::Processes), Need::ClientClock];
const BOOT: &[Need] = &[Need::Backdoor(Backdoor::Processes), Need::BootTime];
const READERS: &[Need] = &[Need::Backdoor(Backdoor::Processes), Need::Shared];
const PERMITS: &[Need] = &[Need::Backdoor(Backdoor::Processes), Need::Permits];

const SLOT: u64 = 1;

async fn acquires(context: &Context, peer: &Peer, name: &str, how: How) -> u64 {
    let acquired = peer.acquire_for(SLOT, name, how, Some(SHORT_TTL));
    context.soon(&format!("a process acquires {name:?}"), acquired).await.expect("acquired")
}

/// Acquires the lock if it is free.
async fn tries(context: &Context, peer: &Peer, name: &str) -> Result<Answer, PeerError> {
    let want = Want::Acquire {
        slot: SLOT,
        name: name.to_owned(),
        how: How::Exclusive,
        wait_at_most: Some(Duration::ZERO),
        ttl: None,
        local_handoffs: 1,
    };
    context.soon("another process tries", peer.ask(want)).await
}

/// Acquires the lock of a process that has ended.
async fn freed(context: &Context, name: &str, how: How) -> Guard {
    let locks = context.client().await;
    let lock = how.lock(&locks, name);
    let bound = context.silence_frees_within(SHORT_TTL);
    context.within(bound, "the store frees the lock", lock.acquire()).await.expect("granted")
}

async fn exclude(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let (one, two) = (context.peer().await, context.peer().await);
    acquires(&context, &one, &name, How::Exclusive).await;
    work::assert_busy(&context, &locks, &name).await;
    let tried = tries(&context, &two, &name).await;
    match tried.expect_err("two processes hold one lock") {
        PeerError::Failed { kind, .. } => assert_eq!(kind, "busy"),
        other => panic!("{other}"),
    }
    context.soon("it releases", one.release(SLOT)).await.expect("released");
    acquires(&context, &two, &name, How::Exclusive).await;
    work::assert_busy(&context, &locks, &name).await;
    context.soon("it releases", two.release(SLOT)).await.expect("released");
}

async fn counter(context: Arc<Context>) {
    let name = context.name("lock");
    let files = tempfile::tempdir().expect("a temporary directory");
    let counter = files.path().join("count");
    std::fs::write(&counter, "0").expect("a counter");
    let mut working = Vec::new();
    for index in 0..3 {
        let peer = context.peer().await;
        let want = Want::Work {
            name: name.clone(),
            how: How::Exclusive,
            ttl: SHORT_TTL,
            rounds: 40,
            counter: counter.clone(),
            history: files.path().join(format!("history-{index}")),
        };
        working.push(tokio::spawn(async move { peer.ask(want).await }));
    }
    for working in working {
        let bound = context.patience() * 4;
        let done = context.within(bound, "a process has counted", working).await;
        assert_eq!(done.expect("no panic"), Ok(Answer::Done));
    }
    let count = std::fs::read_to_string(&counter).expect("a count");
    context.assert_final(count == "120", || format!("{count} of 120 updates: some were lost"));
    let mut events = Vec::new();
    for index in 0..3 {
        let path = files.path().join(format!("history-{index}"));
        events.extend(history::read(&path).expect("a history"));
    }
    context.assert_history(events, work::rules(&context));
}

/// A hold that a killed process did not record as released may or may not have counted.
async fn counter_with_kills(context: Arc<Context>) {
    let name = context.name("lock");
    let files = tempfile::tempdir().expect("a temporary directory");
    let counter = files.path().join("count");
    std::fs::write(&counter, "0").expect("a counter");
    let locks = context.client().await;
    let mut histories = Vec::new();
    for round in 0..4 {
        let mut peer = context.peer().await;
        let path = files.path().join(format!("history-{round}"));
        let want = Want::Work {
            name: name.clone(),
            how: How::Exclusive,
            ttl: SHORT_TTL,
            rounds: u32::MAX,
            counter: counter.clone(),
            history: path.clone(),
        };
        let kill = async {
            let begun = async || history::read(&path).is_ok_and(|events| events.len() > 40);
            context.until("the process has counted some", begun).await;
        };
        tokio::select! {
            done = peer.ask(want) => panic!("it ended before it was killed: {done:?}"),
            () = kill => {}
        }
        let at = history::now();
        peer.kill().await.expect("killed");
        let lock = locks.lock(&name);
        let bound = context.silence_frees_within(SHORT_TTL);
        let guard = context.within(bound, "its lock is free", lock.acquire()).await;
        context.release(guard.expect("granted")).await;
        histories.push((path, at));
    }
    let count: u64 = std::fs::read_to_string(&counter).expect("a count").parse().expect("a number");
    let mut events = Vec::new();
    for (path, at) in &histories {
        let mut history = history::read(path).expect("a history");
        history::killed(&mut history, *at);
        events.extend(history);
    }
    let released = events.iter().filter(|it| it.what == history::What::ReleaseInvoked).count();
    let counted = u64::try_from(released).expect("few");
    let most = counted + u64::try_from(histories.len()).expect("few");
    assert!((counted..=most).contains(&count), "{count} was counted by {counted} holders");
    // A killed process does not record its end, so only exclusion and tokens are checked.
    context.assert_history(events, Rules::default());
}

async fn order(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let holder = context.acquire(&locks, &name).await;
    let mut waiting = Vec::new();
    for index in 0..4 {
        let peer = Arc::new(context.peer().await);
        let (asked, wanted) = (peer.clone(), name.clone());
        let acquiring =
            tokio::spawn(async move { asked.acquire(SLOT, &wanted, How::Exclusive).await });
        context.until_queued(&locks, &name, index + 1).await;
        waiting.push((peer, acquiring));
    }
    context.release(holder).await;
    while !waiting.is_empty() {
        let (peer, acquiring) = waiting.remove(0);
        let granted = context.soon("the first in the queue is granted", acquiring).await;
        granted.expect("no panic").expect("granted");
        assert!(waiting.iter().all(|(_, other)| !other.is_finished()), "granted out of turn");
        context.soon("it releases", peer.release(SLOT)).await.expect("released");
    }
}

async fn crashed(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let mut peer = context.peer().await;
    acquires(&context, &peer, &name, How::Exclusive).await;
    // A waiter that is already queued is woken as fast as a later one.
    let waiter = work::spawn_waiter(&locks, &name, How::Exclusive);
    context.until_queued(&locks, &name, 1).await;
    let crash = context.soon("it crashes", peer.ask(Want::Crash)).await;
    assert_eq!(crash, Err(PeerError::Gone));
    context.soon("it is gone", peer.ended()).await.expect("gone");
    let bound = context.silence_frees_within(SHORT_TTL);
    let next = context.within(bound, "the waiter is granted", waiter).await;
    context.release(next.expect("no panic").expect("granted")).await;
}

async fn killed_waiter(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let holder = context.acquire(&locks, &name).await;
    let peer = Arc::new(context.peer().await);
    let (asked, wanted) = (peer.clone(), name.clone());
    let dead = tokio::spawn(async move { asked.acquire(SLOT, &wanted, How::Exclusive).await });
    context.until_queued(&locks, &name, 1).await;
    let next_waiter = work::spawn_waiter(&locks, &name, How::Exclusive);
    context.until_queued(&locks, &name, 2).await;
    dead.abort();
    let _ = dead.await;
    let mut peer = Arc::into_inner(peer).expect("the last handle of the peer");
    peer.kill().await.expect("killed");
    context.release(holder).await;
    let bound = context.silence_frees_within(Duration::ZERO);
    let next = context.within(bound, "the waiter after it is granted", next_waiter).await;
    context.release(next.expect("no panic").expect("granted")).await;
}

async fn reader(context: Arc<Context>) {
    let name = context.name("lock");
    let (mut dead, alive) = (context.peer().await, context.peer().await);
    acquires(&context, &dead, &name, How::Shared).await;
    acquires(&context, &alive, &name, How::Shared).await;
    dead.kill().await.expect("killed");
    context.soon("the living reader releases", alive.release(SLOT)).await.expect("released");
    let writer = freed(&context, &name, How::Exclusive).await;
    context.release(writer).await;
}

async fn permits(context: Arc<Context>) {
    let name = context.name("lock");
    let mut peer = context.peer().await;
    acquires(&context, &peer, &name, How::Permits { n: 2, limit: 3 }).await;
    peer.kill().await.expect("killed");
    let all = freed(&context, &name, How::Permits { n: 3, limit: 3 }).await;
    context.release(all).await;
}

async fn nap(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let peer = context.peer().await;
    // With the usual TTL, of which the nap is a small part.
    let acquired = peer.acquire(SLOT, &name, How::Exclusive);
    context.soon("a process acquires", acquired).await.expect("acquired");
    context.soon("it is frozen", peer.freeze()).await.expect("frozen");
    let napping = Instant::now();
    while napping.elapsed() < Duration::from_millis(300) {
        work::assert_busy(&context, &locks, &name).await;
        sleep(Duration::from_millis(20)).await;
    }
    peer.thaw().expect("thawed");
    assert!(context.soon("it answers", peer.is_held(SLOT)).await.expect("it answers"));
    context.soon("it releases", peer.release(SLOT)).await.expect("still held");
    // Not killed before the release has reached the servers that it did not wait for.
    context.soon("it leaves", peer.ask(Want::Leave)).await.expect("left");
}

/// Where silence frees a lock, it is lost before it is checked; otherwise it stays held.
async fn stopped(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let peer = context.peer().await;
    acquires(&context, &peer, &name, How::Exclusive).await;
    context.soon("it is frozen", peer.freeze()).await.expect("frozen");
    if context.profile().liveness == Liveness::Process {
        let frozen = Instant::now();
        while frozen.elapsed() < SHORT_TTL * 2 {
            work::assert_busy(&context, &locks, &name).await;
            sleep(Duration::from_millis(20)).await;
        }
        peer.thaw().expect("thawed");
        assert!(context.soon("it answers", peer.is_held(SLOT)).await.expect("it answers"));
        context.soon("it releases", peer.release(SLOT)).await.expect("still held");
        return;
    }
    let next = freed(&context, &name, How::Exclusive).await;
    peer.thaw().expect("thawed");
    let claims_to_hold = context.soon("it answers", peer.is_held(SLOT)).await.expect("it answers");
    assert!(!(claims_to_hold && next.is_held()), "two processes hold one lock");
    let released = context.soon("it releases", peer.release(SLOT)).await;
    assert!(released.is_err(), "it released what it had lost");
    work::assert_busy(&context, &locks, &name).await;
    assert!(next.is_held());
    context.release(next).await;
}

/// A tenth of a processor, in slices longer than a renewal takes: the lock is kept or lost, but
/// never reported as held while another client holds it.
async fn starved(context: Arc<Context>) {
    const WHOLE: Duration = Duration::from_secs(3);
    let (name, locks) = context.lock_of_one().await;
    let peer = context.peer().await;
    let old = acquires(&context, &peer, &name, How::Exclusive).await;
    let waiter = work::spawn_waiter(&locks, &name, How::Exclusive);
    let starving = Instant::now();
    while starving.elapsed() < WHOLE && !waiter.is_finished() {
        context.soon("it is frozen", peer.freeze()).await.expect("frozen");
        sleep(Duration::from_millis(180)).await;
        peer.thaw().expect("thawed");
        sleep(Duration::from_millis(20)).await;
    }
    let claims_to_hold = context.soon("it answers", peer.is_held(SLOT)).await.expect("it answers");
    if waiter.is_finished() {
        assert!(
            !claims_to_hold,
            "a starved process reports a lock as held that another client holds"
        );
    } else if claims_to_hold {
        // Lost or kept until then, it does not block other clients.
        let _ = context.soon("it releases", peer.release(SLOT)).await;
    }
    let next = context.until_granted("the waiter is granted", waiter).await;
    assert!(next.fencing_token().get() > old);
    context.release(next).await;
}

/// No decision about holders may use a client's wall clock.
async fn clock_jumps(context: Arc<Context>) {
    const HOUR: i64 = 3600;
    let (name, locks) = context.lock_of_one().await;
    let (peer, clock) = context.peer_with_clock().await;
    let right = context.soon("it reports its time", peer.wall_clock()).await.expect("a time");
    for hours in [1_i64, -1, 24, 0] {
        let old = acquires(&context, &peer, &name, How::Exclusive).await;
        clock.is_ahead_by(hours * HOUR).expect("the clock is moved");
        let shown = context.soon("it reports its time", peer.wall_clock()).await.expect("a time");
        let jumped = i64::try_from(shown).expect("soon") - i64::try_from(right).expect("soon");
        assert!((jumped - hours * HOUR).abs() < HOUR / 2, "its clock has jumped by {jumped} s");
        let since = Instant::now();
        while since.elapsed() < SHORT_TTL * 3 / 2 {
            work::assert_busy(&context, &locks, &name).await;
            sleep(Duration::from_millis(20)).await;
        }
        assert!(context.soon("it answers", peer.is_held(SLOT)).await.expect("it answers"));
        context.soon("it releases", peer.release(SLOT)).await.expect("still held");
        let next = context.acquire(&locks, &name).await;
        assert!(next.fencing_token().get() > old, "by its clock");
        context.release(next).await;
    }
}

/// `CLOCK_BOOTTIME` is of one machine. To one of these two, each lease that the other wrote with its own has ended
/// long ago; to the other, such a lease never ends.
async fn boot_times(context: Arc<Context>) {
    let (name, locks) = context.lock_of_one().await;
    let mut peer = context.peer_booted_earlier(Duration::from_secs(1_000_000)).await;
    let guard = context.acquire(&locks, &name).await;
    let tried = tries(&context, &peer, &name).await;
    context.assert_final(tried.is_err(), || {
        "two machines hold one lock: the time in the store is a client's, not the store's"
            .to_owned()
    });
    context.release(guard).await;
    acquires(&context, &peer, &name, How::Exclusive).await;
    work::assert_busy(&context, &locks, &name).await;
    peer.kill().await.expect("killed");
    let next = freed(&context, &name, How::Exclusive).await;
    context.release(next).await;
}
