//! How much one session may watch.
//!
//! After a reconnect the transport asks for all watches of a session again, in packets of 128 KiB
//! of paths. With two packets the reconnect fails, and so does each after it, until the servers end
//! the session (docs/upstream/zookeeper-client-setwatches.md). So a session takes claims only while
//! the paths that they may watch stay well below one packet, and the [pool](crate::sessions::pool) opens
//! another session for more.
//!
//! A watched cell takes the path of its node, once for all who watch it in the session.
//!
//! A claim reserves its share before its node is created, because it may have to watch later, when
//! all sessions are full: the path of its own node, and as much again while it waits.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fencelock_core::Claim;
use fencelock_core::backend::ClaimRegistry;
use fencelock_core::sync::Mutex;

/// Bytes of paths in one session. The transport's limit is 128 KiB; the rest is for watches that are
/// not wanted any more, while their tasks have not ended yet.
pub(crate) const MAX_PATH_BYTES: usize = 96 * 1024;

/// What the claims of one session have reserved.
#[derive(Default)]
pub(crate) struct Budget {
    state: Mutex<State>,
    /// The claims that depend on the session, by the numbers of their reservations.
    pub(crate) claims: ClaimRegistry<u64>,
}

#[derive(Default)]
struct State {
    /// Bytes for the claims' own nodes, and for what is ahead of those that wait.
    reserved: usize,
    /// The paths that claims watch beyond their reservations, and those of watched cells, with the
    /// number of those that watch them.
    shared: HashMap<Arc<str>, usize>,
    /// The bytes of `shared`: the transport watches each path once.
    shared_bytes: usize,
    /// How many reservations and watched cells exist.
    live: usize,
    /// How many reservations and watches of cells were made.
    count: u64,
    /// No claim and no watch is accepted any more.
    is_closed: bool,
}

impl State {
    fn has_room_for(&self, bytes: usize) -> bool {
        self.reserved + self.shared_bytes + bytes <= MAX_PATH_BYTES
    }

    /// Adds one watch to each of `paths`, if there is room for those that are new.
    fn watch(&mut self, paths: &[String]) -> Option<Vec<Arc<str>>> {
        let new = paths.iter().filter(|path| !self.shared.contains_key(path.as_str()));
        let bytes = new.map(String::len).sum();
        if !self.has_room_for(bytes) {
            return None;
        }
        self.shared_bytes += bytes;
        let paths: Vec<Arc<str>> = paths.iter().map(|path| path.as_str().into()).collect();
        for path in &paths {
            *self.shared.entry(path.clone()).or_default() += 1;
        }
        Some(paths)
    }

    fn unwatch(&mut self, paths: &[Arc<str>]) {
        for path in paths {
            let Some(count) = self.shared.get_mut(path) else { continue };
            *count -= 1;
            if *count == 0 {
                self.shared.remove(path);
                self.shared_bytes -= path.len();
            }
        }
    }
}

impl Budget {
    /// How many reservations were made, if none exists now.
    pub(crate) fn unused_after(&self) -> Option<u64> {
        let state = self.state.lock();
        (state.live == 0).then_some(state.count)
    }

    /// Accepts no claim any more, unless one was accepted after `count` reservations.
    pub(crate) fn close_if_unused_since(&self, count: u64) -> bool {
        let mut state = self.state.lock();
        state.is_closed |= state.live == 0 && state.count == count;
        state.is_closed
    }
}

/// The share of one claim. It lasts until the last watch of the claim has ended.
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    number: u64,
    /// The longest path that the claim's own node can have.
    own: usize,
    /// For what is ahead of the claim, while it may have to wait.
    predecessor: AtomicUsize,
}

impl Reservation {
    /// Reserves room for a claim whose own node has a path of up to `own` bytes; `None` when the
    /// session is full, or accepts no claims.
    pub(crate) fn new(
        budget: &Arc<Budget>,
        claim: &Arc<Claim>,
        own: usize,
        may_wait: bool,
    ) -> Option<Arc<Reservation>> {
        let predecessor = if may_wait { own } else { 0 };
        let mut state = budget.state.lock();
        if state.is_closed || !state.has_room_for(own + predecessor) {
            return None;
        }
        state.reserved += own + predecessor;
        state.live += 1;
        state.count += 1;
        let number = state.count;
        drop(state);
        budget.claims.insert(number, claim);
        Some(Arc::new(Reservation {
            budget: budget.clone(),
            number,
            own,
            predecessor: predecessor.into(),
        }))
    }

    /// Releases the share for waiting.
    pub(crate) fn stop_waiting(&self) {
        let unused = self.predecessor.swap(0, Ordering::AcqRel);
        self.budget.state.lock().reserved -= unused;
    }

    /// Reserves room for watches on the nodes ahead of the claim; `None` when there is too little.
    pub(crate) fn watch(&self, paths: &[String]) -> Option<WatchedPaths> {
        let paths = match paths {
            // Reserved already.
            [path] if path.len() <= self.predecessor.load(Ordering::Acquire) => Vec::new(),
            paths => self.budget.state.lock().watch(paths)?,
        };
        Some(WatchedPaths { budget: self.budget.clone(), paths })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.claims.remove(&self.number);
        let mut state = self.budget.state.lock();
        state.reserved -= self.own + *self.predecessor.get_mut();
        state.live -= 1;
    }
}

/// Paths that are watched beyond what the claim has reserved. It lasts as long as the watches.
pub(crate) struct WatchedPaths {
    budget: Arc<Budget>,
    paths: Vec<Arc<str>>,
}

impl Drop for WatchedPaths {
    fn drop(&mut self) {
        if !self.paths.is_empty() {
            self.budget.state.lock().unwatch(&self.paths);
        }
    }
}

/// The share of one watch of a cell. It lasts as long as the watch.
pub(crate) struct WatchedCell {
    watched: WatchedPaths,
}

impl WatchedCell {
    /// Reserves room for a watch of the cell at `path`; `None` when the session is full, or accepts
    /// no watches.
    pub(crate) fn new(budget: &Arc<Budget>, path: &str) -> Option<WatchedCell> {
        let mut state = budget.state.lock();
        if state.is_closed {
            return None;
        }
        let paths = state.watch(&[path.to_owned()])?;
        state.live += 1;
        state.count += 1;
        Some(WatchedCell { watched: WatchedPaths { budget: budget.clone(), paths } })
    }
}

impl Drop for WatchedCell {
    fn drop(&mut self) {
        self.watched.budget.state.lock().live -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(from: usize, to: usize) -> Vec<String> {
        (from..to).map(|at| format!("/{at:099}")).collect()
    }

    #[test]
    fn a_path_counts_once_as_long_as_any_claim_watches_it() {
        let mut state = State::default();
        let one = state.watch(&paths(0, 500)).expect("room");
        let two = state.watch(&paths(100, 600)).expect("room");
        assert_eq!(state.shared_bytes, 60_000);
        state.unwatch(&one);
        assert_eq!(state.shared_bytes, 50_000);
        state.unwatch(&two);
        assert_eq!((state.shared_bytes, state.shared.len()), (0, 0));
    }

    #[test]
    fn watches_without_room_reserve_nothing() {
        let mut state = State { reserved: MAX_PATH_BYTES - 1_000, ..State::default() };
        assert!(state.watch(&paths(0, 11)).is_none());
        assert_eq!((state.shared_bytes, state.shared.len()), (0, 0));
        assert!(state.watch(&paths(0, 10)).is_some());
        assert!(state.watch(&paths(3, 7)).is_some(), "they are already watched");
        assert!(!state.has_room_for(1));
    }

    #[test]
    fn a_cell_that_is_watched_twice_takes_its_room_once_and_keeps_the_session() {
        let budget = Arc::<Budget>::default();
        let path = format!("/{}", "c".repeat(MAX_PATH_BYTES - 1));
        let one = WatchedCell::new(&budget, &path).expect("room");
        let two = WatchedCell::new(&budget, &path).expect("it is already watched");
        assert!(WatchedCell::new(&budget, "/other").is_none(), "the session is full");
        drop(one);
        assert!(WatchedCell::new(&budget, "/other").is_none() && budget.unused_after().is_none());
        drop(two);
        assert!(budget.close_if_unused_since(budget.unused_after().expect("unused")));
        assert!(WatchedCell::new(&budget, "/other").is_none(), "the session is being closed");
    }
}
