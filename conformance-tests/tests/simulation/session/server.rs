//! A server with sessions: queue nodes that live as long as the session that made them, watches,
//! a log order as token, and followers that answer reads. The shape of ZooKeeper.
//!
//! A session ends a timeout after the leader last heard of it. Reads that a follower answers on
//! its own, cut off from the leader, are not heard of there.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencelock_core::sync::Mutex;
use fencelock_core::{Clock, Mode, Moment};
use tokio::sync::oneshot;

use crate::lease::script::Who;
use crate::mutant::Mutant;
use crate::world::history::History;
use crate::world::link::Link;

/// The answer to a request in a session that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Expired;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) who: Who,
    pub(crate) session: u64,
    pub(crate) mode: Mode,
    /// The first of [`TURNS`].
    pub(crate) token: u64,
    /// For the check that no claim waits in vain: since when it could have been the holder's, and
    /// whether its client knows.
    turn_since: Option<Moment>,
    taken: bool,
}

/// How many tokens a node has.
pub(crate) const TURNS: u32 = 64;

impl Node {
    fn tokens(&self) -> Range<u64> {
        self.token..self.token + u64::from(TURNS)
    }
}

pub(crate) type Nodes = BTreeMap<u64, Node>;

pub(crate) struct SessionServer {
    pub(crate) history: Arc<History>,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    links: BTreeMap<u32, Arc<Link>>,
    sessions: BTreeMap<u64, Session>,
    locks: BTreeMap<usize, Nodes>,
    watches: BTreeMap<(usize, u64), Vec<Watch>>,
    log: u64,
    /// What the cut-off follower of a process still shows.
    cut_off: BTreeMap<u32, BTreeMap<usize, Nodes>>,
    /// What a process's follower shows until it has caught up with that process's last write.
    behind: BTreeMap<u32, (usize, Nodes)>,
}

struct Session {
    process: u32,
    heard: Moment,
}

struct Watch {
    who: Who,
    fired: oneshot::Sender<()>,
}

impl SessionServer {
    pub(crate) fn new(
        history: Arc<History>,
        mutant: Option<Mutant>,
        timeout: Duration,
    ) -> SessionServer {
        SessionServer { history, mutant, timeout, state: Mutex::default() }
    }

    /// A new session of the process behind `link`; an older one is not kept alive any more.
    pub(crate) fn open(self: &Arc<Self>, link: &Arc<Link>) -> Option<u64> {
        let now = self.history.now();
        let process = link.process;
        let mut state = self.state.lock();
        if state.cut_off.contains_key(&process) {
            return None;
        }
        state.log += 1;
        let id = state.log;
        state.sessions.insert(id, Session { process, heard: now });
        state.links.insert(process, link.clone());
        drop(state);
        self.history.note(process, "session opened", id, 0);
        tokio::spawn(watch_over(Arc::downgrade(self), id, self.timeout));
        Some(id)
    }

    pub(crate) fn close(&self, session: u64) {
        self.end(session, "session closed");
    }

    fn end(&self, session: u64, how: &'static str) {
        let mut state = self.state.lock();
        let Some(Session { process, .. }) = state.sessions.remove(&session) else { return };
        let mut gone = Vec::new();
        for (lock, nodes) in &state.locks {
            let own = nodes.iter().filter(|(_, node)| node.session == session);
            gone.extend(own.map(|(seq, _)| (*lock, *seq)));
        }
        for (lock, seq) in gone {
            state.remove(&self.history, lock, seq);
            self.compare(&mut state, lock);
        }
        drop(state);
        self.history.note(process, how, session, 0);
    }

    /// Executes `write` if the leader can be reached: `None` when it cannot, and it will never be.
    fn write<T>(
        &self,
        session: u64,
        write: impl FnOnce(&mut State) -> T,
    ) -> Option<Result<T, Expired>> {
        let mut state = self.state.lock();
        let now = self.history.now();
        let Some(known) = state.sessions.get_mut(&session) else { return Some(Err(Expired)) };
        let process = known.process;
        if state.cut_off.contains_key(&process) {
            return None;
        }
        state.sessions.get_mut(&session)?.heard = now;
        state.catch_up(process);
        Some(Ok(write(&mut state)))
    }

    pub(crate) fn heartbeat(&self, session: u64) -> Option<Result<(), Expired>> {
        self.write(session, |_| ())
    }

    /// Makes the follower catch up.
    pub(crate) fn sync(&self, session: u64) -> Option<Result<(), Expired>> {
        self.write(session, |_| ())
    }

    pub(crate) fn create(
        &self,
        session: u64,
        lock: usize,
        who: Who,
        mode: Mode,
    ) -> Option<Result<(u64, u64), Expired>> {
        let created = self.write(session, |state| {
            let before = state.locks.entry(lock).or_default().clone();
            if !self.history.is_calm() {
                // Until its reply has been seen, a read may find this create not done.
                state.behind.insert(who.process, (lock, before));
            }
            state.log += 1;
            let (seq, token) = (self.history.arrives(), state.log * u64::from(TURNS));
            self.history.gave(lock, token, seq);
            let node = Node { who, session, mode, token, turn_since: None, taken: false };
            state.locks.entry(lock).or_default().insert(seq, node);
            self.compare(state, lock);
            (seq, token)
        });
        self.history.note(who.process, "server create", lock as u64, who.claim);
        created
    }

    /// The process has seen the reply to its last write.
    pub(crate) fn caught_up(&self, process: u32) {
        self.state.lock().catch_up(process);
    }

    /// `false` when it was not there.
    pub(crate) fn delete(
        &self,
        session: u64,
        lock: usize,
        seq: u64,
    ) -> Option<Result<bool, Expired>> {
        let deleted = self.write(session, |state| {
            let removed = state.remove(&self.history, lock, seq);
            self.compare(state, lock);
            removed
        });
        self.history.note(0, "server delete", lock as u64, seq);
        deleted
    }

    /// What the process's follower shows.
    pub(crate) fn list(&self, process: u32, lock: usize) -> Nodes {
        let now = self.history.now();
        let mut state = self.state.lock();
        if !state.cut_off.contains_key(&process) {
            for session in state.sessions.values_mut().filter(|it| it.process == process) {
                session.heard = now;
            }
        }
        state.shown(process, lock).cloned().unwrap_or_default()
    }

    /// Watches one node once; `false` when it is not there to be watched.
    pub(crate) fn watch(
        &self,
        who: Who,
        lock: usize,
        seq: u64,
        fired: oneshot::Sender<()>,
    ) -> bool {
        let mut state = self.state.lock();
        let there = state.shown(who.process, lock).is_some_and(|nodes| nodes.contains_key(&seq));
        if there {
            let watches = state.watches.entry((lock, seq)).or_default();
            watches.retain(|watch| !watch.fired.is_closed());
            watches.push(Watch { who, fired });
        }
        there
    }

    /// A person deletes the nodes that are held.
    pub(crate) fn evict(&self, lock: usize) {
        self.history.note(0, "evicted", lock as u64, 0);
        let mut state = self.state.lock();
        let held = state.locks.entry(lock).or_default().iter().filter(|(_, node)| node.taken);
        let held: Vec<_> = held.map(|(seq, node)| (*seq, node.tokens())).collect();
        for (seq, tokens) in held {
            self.history.excuse(lock, tokens, Duration::from_secs(1));
            state.remove(&self.history, lock, seq);
        }
    }

    /// The process's follower loses its leader and continues to answer, or has it back.
    pub(crate) fn cut_off(&self, process: u32, cut_off: bool) {
        let mut state = self.state.lock();
        if cut_off {
            state.catch_up(process);
            let shown = state.locks.clone();
            state.cut_off.insert(process, shown);
        } else if state.cut_off.remove(&process).is_some() {
            state.notify_of_deleted_nodes();
        }
    }

    /// The leader has not heard of `process` for `silence` already when something cuts it off:
    /// pings are rare, and followers report them now and then.
    pub(crate) fn goes_silent(&self, process: u32, silence: Duration) {
        let now = self.history.now();
        for session in self.state.lock().sessions.values_mut().filter(|it| it.process == process) {
            session.heard = session.heard.max(now - silence);
        }
    }

    /// The client of this node knows that it holds. Not a request: for the checks only.
    pub(crate) fn taken(&self, lock: usize, seq: u64) {
        let mut state = self.state.lock();
        let nodes = state.locks.entry(lock).or_default();
        let modes: Vec<Mode> = nodes.range(..=seq).map(|(_, node)| node.mode).collect();
        let Some(node) = nodes.get_mut(&seq) else { return };
        node.taken = true;
        let fits = |at: usize| modes[at].is_compatible_with(modes[..at].iter().copied());
        if !(0..modes.len()).all(fits) {
            self.history.fail(format!("lock {lock}: {node:?} overtakes one of {modes:?}"));
        }
    }

    fn compare(&self, state: &mut State, lock: usize) {
        let now = self.history.now();
        let nodes = state.locks.entry(lock).or_default();
        self.history
            .compare(lock, |token| nodes.values().any(|node| node.tokens().contains(&token)));
        let mut ahead: Vec<Mode> = Vec::new();
        for node in nodes.values_mut() {
            if !node.mode.is_compatible_with(ahead.iter().copied()) {
                return;
            }
            let since = *node.turn_since.get_or_insert(now);
            let waited = now.duration_since(since);
            if self.history.is_calm() && !node.taken && waited > Duration::from_millis(100) {
                self.history.fail(format!("lock {lock}: {node:?} waits in vain for {waited:?}"));
            }
            ahead.push(node.mode);
        }
    }

    pub(crate) fn leftovers(&self) -> Vec<String> {
        let state = self.state.lock();
        let mut left = Vec::new();
        for (lock, nodes) in &state.locks {
            left.extend(nodes.values().map(|node| format!("lock {lock}: {node:?}")));
        }
        for (key, watches) in &state.watches {
            let open = watches.iter().filter(|watch| {
                let alive = state.links.get(&watch.who.process).is_some_and(|it| it.is_up());
                alive && !watch.fired.is_closed()
            });
            left.extend(open.map(|watch| format!("watch of {:?} on {key:?}", watch.who)));
        }
        left
    }
}

impl State {
    /// What the follower of `process` answers for `lock`, to every kind of read.
    fn shown(&self, process: u32, lock: usize) -> Option<&Nodes> {
        match (self.cut_off.get(&process), self.behind.get(&process)) {
            (Some(shown), _) => shown.get(&lock),
            (None, Some((behind, shown))) if *behind == lock => Some(shown),
            _ => self.locks.get(&lock),
        }
    }

    fn is_stale(&self, process: u32, lock: usize) -> bool {
        self.cut_off.contains_key(&process)
            || self.behind.get(&process).is_some_and(|(behind, _)| *behind == lock)
    }

    fn catch_up(&mut self, process: u32) {
        if self.behind.remove(&process).is_some() {
            self.notify_of_deleted_nodes();
        }
    }

    fn notify_of_deleted_nodes(&mut self) {
        let watched: Vec<_> = self.watches.keys().copied().collect();
        for (lock, seq) in watched {
            if !self.locks.get(&lock).is_some_and(|nodes| nodes.contains_key(&seq)) {
                self.fire(lock, seq);
            }
        }
    }

    fn remove(&mut self, history: &History, lock: usize, seq: u64) -> bool {
        let removed = self.locks.entry(lock).or_default().remove(&seq).is_some();
        if removed {
            history.freed(lock);
            self.fire(lock, seq);
        }
        removed
    }

    /// Notifies the watchers whose follower knows.
    fn fire(&mut self, lock: usize, seq: u64) {
        let Some(watches) = self.watches.remove(&(lock, seq)) else { return };
        for watch in watches {
            if self.is_stale(watch.who.process, lock) {
                self.watches.entry((lock, seq)).or_default().push(watch);
            } else if let Some(link) = self.links.get(&watch.who.process) {
                link.event(watch.who.claim, move || {
                    let _ = watch.fired.send(());
                });
            }
        }
    }
}

/// Ends a session that the leader has not heard of for `timeout`. A connection that is up pings.
async fn watch_over(server: Weak<SessionServer>, session: u64, timeout: Duration) {
    loop {
        let end = {
            let Some(server) = server.upgrade() else { return };
            let now = server.history.now();
            let mut state = server.state.lock();
            let Some(Session { process, heard }) = state.sessions.get(&session) else { return };
            let (process, heard) = (*process, *heard);
            if heard + timeout > now {
                heard + timeout
            } else {
                let newest = state.sessions.iter().rev().find(|(_, it)| it.process == process);
                let current = newest.is_some_and(|(id, _)| *id == session);
                let up = state.links.get(&process).is_some_and(|link| link.is_up());
                if !(current && up) || state.cut_off.contains_key(&process) {
                    drop(state);
                    server.end(session, "session expired");
                    return;
                }
                if let Some(session) = state.sessions.get_mut(&session) {
                    session.heard = now;
                }
                now + timeout
            }
        };
        let Some(time) = server.upgrade().map(|server| server.history.time.clone()) else { return };
        time.sleep_until(end).await;
    }
}
