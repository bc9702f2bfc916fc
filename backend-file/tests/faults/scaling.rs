//! Many stores and many waiters: the cost of a connect, and the pipes that they leave.

use std::fs;
use std::mem::MaybeUninit;
use std::path::Path;

use fencelock_core::Locks;
use rustix::fs::inotify;

use crate::support::*;

/// More pipes than are kept.
const MANY: usize = 150;
/// The most pipes of a kind that are kept.
const STAY: usize = 64;

fn pipes(dir: &Path, letter: char) -> usize {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with(letter)).count()
}

/// How many files are opened in `dir` while `work` runs.
async fn opened<T>(dir: &Path, work: impl Future<Output = T>) -> (usize, T) {
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    inotify::add_watch(&watch, dir, inotify::WatchFlags::OPEN).unwrap();
    let done = work.await;
    let mut room = [MaybeUninit::uninit(); 1 << 16];
    let mut events = inotify::Reader::new(&watch, &mut room);
    let mut count = 0;
    while let Ok(event) = events.next() {
        // Events of the directory itself have no name.
        count += usize::from(event.file_name().is_some());
    }
    (count, done)
}

async fn connect_many(dir: &Path) -> Vec<Locks> {
    let mut connecting = tokio::task::JoinSet::new();
    for _ in 0..MANY {
        let dir = dir.to_owned();
        connecting.spawn(async move { connect(&dir).await });
    }
    connecting.join_all().await
}

#[tokio::test]
async fn the_cost_of_a_connect_does_not_grow_with_the_number_of_stores() {
    let dir = directory();
    let wake_pipes = dir.path().join(".doors");
    let many = connect_many(dir.path()).await;
    assert!(pipes(&wake_pipes, 'p') >= MANY, "each store has its own");
    let (others, one) = opened(&wake_pipes, connect(dir.path())).await;
    assert!(others < 40, "{others} pipes were opened with {MANY} other connected stores");
    for locks in many.into_iter().chain([one]) {
        locks.close().await.unwrap();
    }
    let stay = until("the surplus pipes are gone", async || {
        Some(pipes(&wake_pipes, 'p')).filter(|stay| *stay <= STAY)
    })
    .await;
    let (after, _one) = opened(&wake_pipes, connect(dir.path())).await;
    assert!(after < 40, "{after} pipes were opened after {MANY} connected stores");
    println!("{others} opened with {MANY} other stores, {after} after them; {stay} pipes stay");
}

#[tokio::test]
async fn wake_pipes_of_killed_processes_are_reused() {
    let dir = directory();
    let wake_pipes = dir.path().join(".doors");
    for _ in 0..8 {
        let mut process = TestProcess::start(dir.path(), "hold x exclusive");
        process.expect("begins");
        process.kill();
    }
    assert_eq!(pipes(&wake_pipes, 'p'), 1, "one store at a time needs one pipe");
}

#[tokio::test]
async fn files_locked_by_another_process_do_not_delay_a_connect() {
    use rustix::fs::{FlockOperation, flock};
    let dir = directory();
    let many = connect_many(dir.path()).await;
    for locks in many {
        locks.close().await.unwrap();
    }
    // Like a process that was stopped at any point, or another user of a shared directory.
    let mut locked = vec![fs::File::open(dir.path()).unwrap()];
    for entry in fs::read_dir(dir.path().join(".doors")).unwrap() {
        let open = fs::File::options().read(true).write(true).open(entry.unwrap().path());
        locked.extend(open);
    }
    locked.push(fs::File::open(dir.path().join(".doors")).unwrap());
    for file in &locked {
        let _ = flock(file, FlockOperation::NonBlockingLockExclusive);
    }
    let locks = tokio::time::timeout(LONG, connect(dir.path())).await.unwrap();
    locks.lock("x").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn the_pipes_of_many_waiters_are_removed_with_them() {
    let dir = directory();
    let stores = [connect(dir.path()).await, connect(dir.path()).await];
    let held = stores[0].lock("x").acquire().await.unwrap();
    let mut waiting = tokio::task::JoinSet::new();
    for number in 0..MANY {
        let locks = stores[number % 2].clone();
        waiting.spawn(async move {
            let guard = locks.lock("x").acquire().await.unwrap();
            guard.release().await.unwrap();
        });
    }
    until_queue_is(&stores[0], "x", 1, MANY).await;
    assert_eq!(pipes(&dir.path().join("lock%3Ax"), 's'), MANY + 1);
    held.release().await.unwrap();
    while let Some(served) = waiting.join_next().await {
        served.unwrap();
    }
    assert_eq!(pipes(&dir.path().join("lock%3Ax"), 's'), STAY);
    // A waiter that gives up removes its pipe too.
    let held = stores[0].lock("x").acquire().await.unwrap();
    for _ in 0..MANY {
        let locks = stores[1].clone();
        waiting.spawn(async move { drop(locks.lock("x").acquire().await) });
    }
    until_queue_is(&stores[0], "x", 1, MANY).await;
    waiting.abort_all();
    until_queue_is(&stores[0], "x", 1, 0).await;
    assert_eq!(pipes(&dir.path().join("lock%3Ax"), 's'), STAY);
    held.release().await.unwrap();
    assert!(fencelock_file::leftovers(dir.path()).unwrap().is_empty());
}
