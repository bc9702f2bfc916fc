//! Real processes: killed, stopped, with inherited descriptors, and in arrival order.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use fencelock_core::Moment;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::*;

/// Increments an unprotected counter, in steps that another holder would break.
pub(crate) fn count(dir: &Path, times: u32) {
    in_runtime(async {
        let locks = connect(dir).await;
        let data = dir.join(".data");
        report("runs");
        let read = |file: &str| -> u64 {
            fs::read_to_string(data.join(file)).map_or(0, |text| text.trim().parse().unwrap_or(0))
        };
        // One write of constant length, which a kill cannot split, and no truncation.
        let write = |file: &str, number: u64| {
            let mut options = fs::File::options();
            let mut file =
                options.write(true).create(true).truncate(false).open(data.join(file)).unwrap();
            file.write_all(format!("{number:020}").as_bytes()).unwrap();
        };
        for _ in 0..times {
            let guard = locks.lock("counter").acquire().await.unwrap();
            let token = guard.fencing_token().get();
            assert!(token > read("token"), "token {token} after {}", read("token"));
            write("token", token);
            let counter = read("counter");
            tokio::task::yield_now().await;
            write("counter", counter + 1);
            assert_eq!(
                (read("token"), read("counter")),
                (token, counter + 1),
                "another process held too"
            );
            report("counted");
            guard.release().await.unwrap();
        }
        locks.close().await.unwrap();
    });
}

/// Fault 1: file
#[test]
fn no_update_is_lost_while_processes_are_killed() {
    const TIMES: u32 = 150;
    let dir = directory();
    fs::create_dir(dir.path().join(".data")).unwrap();
    let seed = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}");
    let counting: Vec<_> = (0..5u64)
        .map(|worker| {
            let dir = dir.path().to_owned();
            let mut random = seed ^ (worker << 32);
            std::thread::spawn(move || {
                let (mut counted, mut kills) = (0, 0);
                while counted < TIMES {
                    let mut process =
                        TestProcess::start(&dir, &format!("count {}", TIMES - counted));
                    process.expect("runs");
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    let live = (random >> 33) % 40;
                    for _ in 0..live {
                        match process.read_line() {
                            Some(said) => assert_eq!(said, "counted"),
                            None => break,
                        }
                        counted += 1;
                    }
                    if counted < TIMES {
                        // At any point: in the queue, with the latch, while it holds, in between.
                        process.signal(Signal::KILL);
                        kills += 1;
                    }
                    while process.read_line().is_some() {
                        counted += 1;
                    }
                    if kills == 0 && counted >= TIMES {
                        process.end();
                    }
                }
                (counted, kills)
            })
        })
        .collect();
    let (mut counted, mut kills) = (0, 0);
    for worker in counting {
        let (more, killed) = worker.join().unwrap();
        (counted, kills) = (counted + more, kills + killed);
    }
    println!("{counted} counted, {kills} killed");
    assert!(kills > 0, "processes were killed");
    let counter = fs::read_to_string(dir.path().join(".data/counter")).unwrap();
    let counter: u32 = counter.trim().parse().unwrap();
    // A kill after the write and before the report leaves an increment that was not reported.
    assert!((counted..=counted + kills).contains(&counter), "{counter} of {counted}");
    assert!(fencelock_file::leftovers(dir.path()).unwrap().is_empty());
}

/// Holds in `mode` and checks what other processes hold at the same time.
pub(crate) fn share(dir: &Path, mode: &str, times: u32) {
    in_runtime(async {
        let locks = connect(dir).await;
        let file = dir.join(".data").join(std::process::id().to_string());
        let weight = match mode {
            "exclusive" => 1000,
            "shared" => 100,
            _ => 1,
        };
        report("runs");
        for _ in 0..times {
            let guard = lock(&locks, "all", mode).acquire().await.unwrap();
            fs::write(&file, "").unwrap();
            let marker = dir.join(".data").join(format!("{}-{weight}", std::process::id()));
            fs::rename(&file, &marker).unwrap();
            tokio::task::yield_now().await;
            let held: Vec<u32> = fs::read_dir(dir.join(".data"))
                .unwrap()
                .filter_map(|entry| {
                    let name = entry.unwrap().file_name().into_string().unwrap();
                    name.split_once('-').map(|(_, weight)| weight.parse().unwrap())
                })
                .collect();
            let fits = match weight {
                1000 => held == [1000],
                100 => held.iter().all(|other| *other == 100),
                _ => held.iter().all(|other| *other == 1) && held.len() <= 3,
            };
            assert!(fits, "{mode} with {held:?}");
            fs::remove_file(&marker).unwrap();
            guard.release().await.unwrap();
        }
        locks.close().await.unwrap();
    });
}

#[test]
fn readers_writers_and_permits_exclude_each_other_across_processes() {
    let dir = directory();
    fs::create_dir(dir.path().join(".data")).unwrap();
    let modes = ["exclusive", "shared", "permits:1:3", "shared", "permits:1:3", "permits:1:3"];
    let processes: Vec<_> = modes
        .iter()
        .map(|mode| TestProcess::start(dir.path(), &format!("share {mode} 120")))
        .collect();
    for process in processes {
        process.end();
    }
    assert!(fencelock_file::leftovers(dir.path()).unwrap().is_empty());
}

pub(crate) fn note_order(dir: &Path, number: &str) {
    in_runtime(async {
        let locks = connect(dir).await;
        let guard = locks.lock("turn").acquire().await.unwrap();
        let mut log = fs::File::options().append(true).create(true).open(dir.join(".log")).unwrap();
        writeln!(log, "{number}").unwrap();
        guard.release().await.unwrap();
        locks.close().await.unwrap();
    });
}

#[tokio::test]
async fn processes_are_served_in_the_order_of_their_arrival() {
    const MANY: usize = 24;
    let dir = directory();
    let locks = connect(dir.path()).await;
    let first = locks.lock("turn").acquire().await.unwrap();
    let mut processes = Vec::new();
    for number in 0..MANY {
        processes.push(TestProcess::start(dir.path(), &format!("order {number}")));
        until_queue_is(&locks, "turn", 1, number + 1).await;
    }
    first.release().await.unwrap();
    processes.into_iter().for_each(TestProcess::end);
    let order: Vec<usize> = fs::read_to_string(dir.path().join(".log"))
        .unwrap()
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    assert_eq!(order, (0..MANY).collect::<Vec<_>>());
}

/// Repeats `hand_over`, which returns the times before and after it, until a wake-up was seen to have
/// granted the lock some times. A waiter that is not woken is found by a check, at a whole second of
/// the store's clock; on a busy machine a wake-up can take until then, too.
async fn assert_woken(mut hand_over: impl AsyncFnMut() -> (Moment, Moment)) {
    const ENOUGH: u32 = 5;
    let second = |moment: Moment| moment.as_nanos() / 1_000_000_000;
    let mut woken = 0;
    for _ in 0..60 {
        let (before, after) = hand_over().await;
        woken += u32::from(second(before) == second(after));
        if woken == ENOUGH {
            return;
        }
    }
    panic!("only {woken} hand-overs by a wake-up");
}

/// Fault 1: file
#[tokio::test]
async fn a_killed_holder_frees_at_once_and_a_killed_waiter_is_skipped() {
    let dir = directory();
    let locks = connect(dir.path()).await;
    assert_woken(async || {
        let mut holder = TestProcess::start(dir.path(), "hold x exclusive");
        holder.expect("begins");
        holder.expect("held");
        let mut waiters = Vec::new();
        for number in 1..=3 {
            waiters.push(TestProcess::start(dir.path(), "hold x exclusive"));
            until_queue_is(&locks, "x", 1, number).await;
        }
        let mut last = waiters.pop().unwrap();
        last.expect("begins");
        for waiter in waiters {
            // First the next waiter, then the one after it.
            waiter.kill();
        }
        let killed = locks.now();
        holder.kill();
        last.expect("held");
        let held = locks.now();
        last.send("release");
        last.expect("released");
        last.end();
        (killed, held)
    })
    .await;
    assert!(fencelock_file::leftovers(dir.path()).unwrap().is_empty());
}

/// Faults 3, 6: file
#[tokio::test]
async fn a_stopped_holder_keeps_its_lock() {
    let dir = directory();
    let locks = connect(dir.path()).await;
    let mut holder = TestProcess::start(dir.path(), "hold x exclusive");
    holder.expect("begins");
    holder.expect("held");
    holder.stop().await;
    let mut waiter = TestProcess::start(dir.path(), "hold x exclusive");
    waiter.expect("begins");
    until_queue_is(&locks, "x", 1, 1).await;
    // Several periodic checks, none of which may take the lock away.
    let waited = locks.lock("x").wait_at_most(Duration::from_secs(4)).try_acquire().await.unwrap();
    assert!(waited.is_none(), "two holders");
    holder.signal(Signal::CONT);
    holder.send("release");
    holder.expect("released");
    waiter.expect("held");
    waiter.send("release");
    waiter.expect("released");
}

/// Fault 5: file
#[tokio::test]
async fn a_stopped_waiter_is_passed_over_and_queues_again() {
    let dir = directory();
    let locks = connect(dir.path()).await;
    let held = locks.lock("x").acquire().await.unwrap();
    let mut stopped = TestProcess::start(dir.path(), "hold x exclusive");
    until_queue_is(&locks, "x", 1, 1).await;
    let mut next = TestProcess::start(dir.path(), "hold x exclusive");
    until_queue_is(&locks, "x", 1, 2).await;
    stopped.stop().await;
    held.release().await.unwrap();
    next.expect("begins");
    next.expect("held");
    stopped.signal(Signal::CONT);
    until_queue_is(&locks, "x", 1, 1).await;
    next.send("release");
    next.expect("released");
    stopped.expect("begins");
    stopped.expect("held");
    stopped.send("release");
    stopped.expect("released");
}

#[tokio::test]
async fn a_child_that_inherited_the_descriptor_keeps_the_lock() {
    let dir = directory();
    let locks = connect(dir.path()).await;
    let mut holder = TestProcess::start(dir.path(), "hold x exclusive");
    holder.expect("begins");
    holder.expect("held");
    holder.send("pass on");
    let child: i32 = holder.expect("child").parse().unwrap();
    let mut waiter = TestProcess::start(dir.path(), "hold x exclusive");
    waiter.expect("begins");
    until_queue_is(&locks, "x", 1, 1).await;
    holder.kill();
    // The holder is dead, its child is not. Longer than several periodic checks.
    let waited = locks.lock("x").wait_at_most(Duration::from_secs(3)).try_acquire().await.unwrap();
    assert!(waited.is_none(), "the child should keep it");
    assert_eq!(locks.inspect("x").await.unwrap().holders.len(), 1);
    kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
    waiter.expect("held");
    waiter.send("release");
    waiter.expect("released");
}

#[tokio::test]
async fn a_release_frees_the_lock_although_a_child_has_a_copy() {
    let dir = directory();
    let locks = connect(dir.path()).await;
    assert_woken(async || {
        let mut holder = TestProcess::start(dir.path(), "hold x exclusive");
        holder.expect("begins");
        holder.expect("held");
        holder.send("pass on");
        let child: i32 = holder.expect("child").parse().unwrap();
        let mut waiter = TestProcess::start(dir.path(), "hold x exclusive");
        waiter.expect("begins");
        until_queue_is(&locks, "x", 1, 1).await;
        let sent = locks.now();
        holder.send("release");
        holder.expect("released");
        waiter.expect("held");
        let held = locks.now();
        kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
        waiter.send("release");
        waiter.expect("released");
        (sent, held)
    })
    .await;
}

#[tokio::test]
async fn an_evicted_holder_is_notified_and_the_next_waiter_is_served() {
    let dir = directory();
    let locks = connect(dir.path()).await;
    let mut holder = TestProcess::start(dir.path(), "hold x exclusive");
    holder.expect("begins");
    let token = holder.expect("held");
    let mut waiter = TestProcess::start(dir.path(), "hold x exclusive");
    waiter.expect("begins");
    until_queue_is(&locks, "x", 1, 1).await;
    let seen = locks.inspect("x").await.unwrap();
    let participant = &seen.holders[0];
    assert_eq!(participant.token.unwrap().to_string(), token);
    let label = participant.label.as_ref().unwrap().as_str();
    assert!(label.contains(&format!("pid {}", holder.pid().as_raw_nonzero())), "{label}");
    assert!(locks.evict("x", &participant.id).await.unwrap());
    holder.expect("lost taken_away");
    holder.end();
    waiter.expect("held");
    assert!(!locks.evict("x", &participant.id).await.unwrap(), "it is gone already");
    // An evicted waiter queues again, at the end.
    let mut second = TestProcess::start(dir.path(), "hold x exclusive");
    until_queue_is(&locks, "x", 1, 1).await;
    let mut third = TestProcess::start(dir.path(), "hold x exclusive");
    until_queue_is(&locks, "x", 1, 2).await;
    let seen = locks.inspect("x").await.unwrap();
    assert!(locks.evict("x", &seen.waiters[0].id).await.unwrap());
    until("the evicted waiter is the last", async || {
        let now = locks.inspect("x").await.unwrap();
        (now.waiters.len() == 2 && now.waiters[0].id == seen.waiters[1].id).then_some(())
    })
    .await;
    waiter.send("release");
    waiter.expect("released");
    for process in [&mut third, &mut second] {
        process.expect("begins");
        process.expect("held");
        process.send("release");
        process.expect("released");
    }
}

#[tokio::test]
async fn a_waiting_writer_blocks_new_readers_which_then_hold_together() {
    let dir = directory();
    let locks = connect(dir.path()).await;
    let mut reader = TestProcess::start(dir.path(), "hold x shared");
    reader.expect("begins");
    reader.expect("held");
    let mut writer = TestProcess::start(dir.path(), "hold x exclusive");
    until_queue_is(&locks, "x", 1, 1).await;
    let mut later: Vec<_> =
        (2..5).map(|_| TestProcess::start(dir.path(), "hold x shared")).collect();
    until_queue_is(&locks, "x", 1, 4).await;
    assert!(locks.rw_lock("x").read().try_acquire().await.unwrap().is_none());
    reader.send("release");
    reader.expect("released");
    writer.expect("begins");
    writer.expect("held");
    until_queue_is(&locks, "x", 1, 3).await;
    writer.send("release");
    writer.expect("released");
    for process in &mut later {
        process.expect("begins");
        process.expect("held");
    }
    until_queue_is(&locks, "x", 3, 0).await;
    for process in &mut later {
        process.send("release");
        process.expect("released");
    }
}

#[tokio::test]
async fn permits_of_killed_processes_are_freed() {
    let dir = directory();
    let locks = connect(dir.path()).await;
    let mut holders: Vec<_> = (0..3)
        .map(|_| {
            let mut process = TestProcess::start(dir.path(), "hold x permits:1:3");
            process.expect("begins");
            process.expect("held");
            process
        })
        .collect();
    let mut waiters = Vec::new();
    for number in 1..=3 {
        waiters.push(TestProcess::start(dir.path(), "hold x permits:1:3"));
        until_queue_is(&locks, "x", 3, number).await;
    }
    // Whichever holder is killed, the oldest or the youngest, the next waiter has to be woken.
    for (at, waiter) in [0, 1, 0].into_iter().zip(&mut waiters) {
        holders.remove(at).kill();
        waiter.expect("begins");
        waiter.expect("held");
    }
    for waiter in &mut waiters {
        waiter.send("release");
        waiter.expect("released");
    }
    assert!(fencelock_file::leftovers(dir.path()).unwrap().is_empty());
}
