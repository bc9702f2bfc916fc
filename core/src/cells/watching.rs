//! One watch for all tasks of a client that wait for the same cell.
//!
//! The store's notification is a hint: what is there is read, also every five seconds and after each
//! error, and only the state that was read decides.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::cells::record::Kind;
use crate::cells::settled::{Access, Seen};
use crate::client::{ClientInner, silent};
use crate::store::cell_store::{Cells, Notifier};
use crate::store::panics::caught;
use crate::sync::Mutex;
use crate::time::backoff::Backoff;
use crate::types::error::{Result, closed};
use crate::types::name::LockName;

/// When to read again what no notification has come for.
const CHECK_AGAIN: Duration = Duration::from_secs(5);

/// The watches of one client.
#[derive(Default)]
pub(crate) struct Watchers {
    watched: Mutex<HashMap<(LockName, Kind), Weak<Watcher>>>,
}

/// The watch on one cell. It ends with the last who waits.
struct Watcher {
    latest: watch::Sender<Latest>,
    notifier: Arc<Notifier>,
    /// How often a task has asked for a new reading.
    asked: Arc<AtomicU64>,
    _task: AbortOnDropHandle<()>,
}

/// What is known of a watched cell.
struct Latest {
    /// It was read after so many requests for a reading.
    as_of: u64,
    /// An error when the store refuses, or has been silent for too long. It is asked again.
    answer: Result<Arc<Seen>>,
}

/// The wait of one task for changes of a cell.
pub(crate) struct Watching {
    client: Arc<ClientInner>,
    /// Keeps it.
    _watcher: Arc<Watcher>,
    latest: watch::Receiver<Latest>,
    /// What was read before its own request does not count.
    since: u64,
    /// The last answer was given to the caller.
    is_given: bool,
}

impl Watchers {
    /// Joins the watch on a cell, or begins it.
    pub(crate) fn watch(
        &self,
        client: &Arc<ClientInner>,
        cells: &Cells,
        name: &LockName,
        kind: Kind,
    ) -> Watching {
        let mut watched = self.watched.lock();
        let key = (name.clone(), kind);
        let (watcher, since) = match watched.get(&key).and_then(Weak::upgrade) {
            Some(watcher) => {
                let since = watcher.asked.fetch_add(1, Ordering::SeqCst) + 1;
                watcher.notifier.notify();
                (watcher, since)
            }
            None => {
                watched.retain(|_, watcher| watcher.strong_count() > 0);
                let watcher = Watcher::start(client, cells, &key);
                watched.insert(key, Arc::downgrade(&watcher));
                // Its first reading.
                (watcher, 1)
            }
        };
        drop(watched);
        let latest = watcher.latest.subscribe();
        Watching { client: client.clone(), _watcher: watcher, latest, since, is_given: false }
    }
}

impl Watching {
    /// The state of the cell, at the first call as it is after the call of [`Watchers::watch`], then after
    /// each change; several changes may be one.
    ///
    /// # Errors
    /// The store's. Another call waits for its next answer.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Arc<Seen>> {
        loop {
            if self.is_given {
                tokio::select! {
                    biased;
                    () = self.client.closing.cancelled() => return Err(closed()),
                    // Its sender is gone only with the runtime that connected.
                    changed = self.latest.changed() => changed.map_err(|_| closed())?,
                }
            }
            self.is_given = true;
            let latest = self.latest.borrow_and_update();
            if latest.as_of >= self.since {
                return latest.answer.clone();
            }
        }
    }
}

impl Watcher {
    fn start(client: &Arc<ClientInner>, cells: &Cells, key: &(LockName, Kind)) -> Arc<Watcher> {
        let answer = Err(closed());
        let latest = watch::Sender::new(Latest { as_of: 0, answer });
        let notifier = Notifier::new(client.reaper.runtime.clone());
        let asked = Arc::new(AtomicU64::new(1));
        let reading = Reading {
            client: client.clone(),
            cells: cells.clone(),
            name: key.0.clone(),
            kind: key.1,
            notifier: notifier.clone(),
            asked: asked.clone(),
            latest: latest.clone(),
        };
        let task = AbortOnDropHandle::new(client.reaper.runtime.spawn(reading.run()));
        Arc::new(Watcher { latest, notifier, asked, _task: task })
    }
}

/// The task that reads a watched cell.
struct Reading {
    client: Arc<ClientInner>,
    cells: Cells,
    name: LockName,
    kind: Kind,
    notifier: Arc<Notifier>,
    asked: Arc<AtomicU64>,
    latest: watch::Sender<Latest>,
}

impl Reading {
    async fn run(self) {
        let Reading { client, cells, name, kind, .. } = &self;
        let access = Access { client, cells, name, kind: *kind };
        let mut backoff = Backoff::start();
        let mut silent_since = client.now();
        loop {
            let as_of = self.asked.load(Ordering::SeqCst);
            let asked_at = client.now();
            let pause = match caught(access.read_and_watch(&self.notifier)).await {
                Ok(seen) => {
                    self.publish(as_of, Ok(Arc::new(seen)));
                    (backoff, silent_since) = (Backoff::start(), client.now());
                    CHECK_AGAIN
                }
                Err(error) if !error.is_retryable() => {
                    self.publish(as_of, Err(error));
                    silent_since = client.now();
                    backoff.next(client.settings.seed())
                }
                Err(error) => {
                    let bound = client.settings.unreachable_after;
                    if client.now().duration_since(silent_since) >= bound {
                        self.publish(as_of, Err(silent(bound, Some(error))));
                        silent_since = asked_at;
                    }
                    backoff.next(client.settings.seed())
                }
            };
            tokio::select! {
                biased;
                () = client.closing.cancelled() => return,
                () = self.notifier.notified() => {}
                slept = client.sleep_until(client.now() + pause) => if slept.is_err() { return },
            }
        }
    }

    fn publish(&self, as_of: u64, answer: Result<Arc<Seen>>) {
        self.latest.send_replace(Latest { as_of, answer });
    }
}
