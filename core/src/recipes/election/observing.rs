//! Following an election: one task of a client for all who observe it.
//!
//! A new leader writes to the cell, which the store notifies of. That a leader is gone without a successor,
//! only the lock knows, which is asked each second.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use super::{Election, Leader};
use crate::client::ClientInner;
use crate::sync::Mutex;
use crate::types::error::{Operation, Result, closed};
use crate::types::token::FencingToken;

/// How often the lock is asked.
const CHECK_AGAIN: Duration = Duration::from_secs(1);

/// The elections that a client follows, by their names.
#[derive(Default)]
struct Observers {
    followed: Mutex<HashMap<String, Weak<Following>>>,
}

type Answer = Option<Result<Option<Leader>>>;

/// The task that follows one election. It ends with the last observer.
struct Following {
    latest: watch::Receiver<Answer>,
    _task: AbortOnDropHandle<()>,
}

/// Follows an election; see [`Election::observe`].
pub struct Observer {
    _following: Arc<Following>,
    latest: watch::Receiver<Answer>,
    client: Arc<ClientInner>,
    /// What the caller knows; nothing before the first answer.
    known: Option<Option<Leader>>,
    last_term: Option<FencingToken>,
    /// The latest answer was looked at.
    is_given: bool,
}

impl Election {
    /// Follows who leads: the present leader first, then each change. All observers of a client cost the store
    /// one watch and one request a second.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn observe(&self) -> Result<Observer> {
        let client = self.handle.client(Operation::Read).await?;
        Ok(client.registry::<Observers>().observe(self, client))
    }
}

impl Observers {
    fn observe(&self, election: &Election, client: &Arc<ClientInner>) -> Observer {
        let mut followed = self.followed.lock();
        let following = followed.get(&election.name).and_then(Weak::upgrade).unwrap_or_else(|| {
            followed.retain(|_, following| following.strong_count() > 0);
            let (sender, latest) = watch::channel(None);
            let task = client.reaper.runtime.spawn(follow(election.clone(), sender));
            let following = Arc::new(Following { latest, _task: AbortOnDropHandle::new(task) });
            followed.insert(election.name.clone(), Arc::downgrade(&following));
            following
        });
        Observer::of(following, client.clone())
    }
}

async fn follow(election: Election, latest: watch::Sender<Answer>) {
    let mut watching = election.handle.watch(Operation::Read).await.ok();
    loop {
        let leader = election.leader().await;
        latest.send_if_modified(|last| {
            let is_new = match (last.as_ref(), &leader) {
                (Some(Ok(last)), Ok(leader)) => last != leader,
                _ => true,
            };
            *last = Some(leader);
            is_new
        });
        let changed = async {
            if let Some(watching) = &mut watching
                && watching.next().await.is_ok()
            {
                return;
            }
            // An error is an answer of the next request.
            std::future::pending::<()>().await;
        };
        tokio::select! {
            changed = tokio::time::timeout(CHECK_AGAIN, changed) => drop(changed),
            () = latest.closed() => return,
        }
    }
}

impl Observer {
    fn of(following: Arc<Following>, client: Arc<ClientInner>) -> Observer {
        let latest = following.latest.clone();
        let (known, last_term, is_given) = (None, None, false);
        Observer { _following: following, latest, client, known, last_term, is_given }
    }

    /// Who leads: at the first call the present leader, then each change. `None` when there is no leader.
    /// Changes in quick succession are one, which ends at the newest; terms never go back. A new leader may come
    /// twice: first with the label of its client, then with its [words](Leader::words).
    ///
    /// # Errors
    /// The store's. They do not end it: another call waits for the next answer.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Leader>> {
        loop {
            let latest = if std::mem::replace(&mut self.is_given, true) {
                None
            } else {
                self.latest.borrow_and_update().clone()
            };
            if let Some(answer) = latest {
                let leader = answer?;
                let is_older = matches!(
                    (&leader, self.last_term), (Some(leader), Some(last)) if leader.term < last
                );
                if !is_older && self.known.as_ref() != Some(&leader) {
                    self.last_term = leader.as_ref().map(|leader| leader.term).or(self.last_term);
                    self.known = Some(leader.clone());
                    return Ok(leader);
                }
            }
            tokio::select! {
                biased;
                () = self.client.closing.cancelled() => return Err(closed()),
                changed = self.latest.changed() => changed.map_err(|_| closed())?,
            }
            self.is_given = false;
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").field("known", &self.known).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::memory::Memory;

    #[tokio::test]
    async fn terms_never_go_back_and_none_is_told_twice() {
        let locks = Memory::new().locks(Default::default()).unwrap();
        let election = locks.election("main");
        let client = election.handle.client(Operation::Read).await.unwrap().clone();
        let (sender, latest) = watch::channel(None);
        let task = AbortOnDropHandle::new(tokio::spawn(std::future::ready(())));
        let mut observer = Observer::of(Arc::new(Following { latest, _task: task }), client);
        let leader = |term: u64| Leader { words: Vec::new(), term: FencingToken::new(term) };
        // What the task finds, term 0 for no leader, and what the observer is told of it.
        let found =
            [(2, true), (1, false), (2, false), (3, true), (0, true), (2, false), (3, true)];
        for (term, is_told) in found {
            let found = (term > 0).then(|| leader(term));
            sender.send(Some(Ok(found.clone()))).unwrap();
            let told = observer.next().now_or_never().map(Result::unwrap);
            assert_eq!(told, is_told.then_some(found), "term {term}");
        }
    }
}
