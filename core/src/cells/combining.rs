//! Changes of one process to a cell are combined: one write is in flight, and the changes that come
//! meanwhile are applied together in the next, or with its own if it is refused and repeated. So clients
//! contend, and not their tasks.
//!
//! The caller that finds no write in flight starts the task that makes them: a caller that is frozen or
//! dropped stops no other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::cells::record::{Kind, Record};
use crate::cells::settled::{Access, Seen, Write};
use crate::client::ClientInner;
use crate::store::cell_store::{Cells, Keep, Stamp};
use crate::store::panics::caught;
use crate::sync::Mutex;
use crate::time::backoff::Backoff;
use crate::types::error::{Error, ErrorKind, Result, closed};
use crate::types::name::LockName;
use crate::types::token::FencingToken;

/// What a change makes of a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Keep,
    /// `fence` is the largest fencing token from now on.
    Write {
        body: Vec<u8>,
        fence: u64,
    },
    Remove,
}

/// A cell as a change sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    /// The stamp of the write that made it; none of a change that will be written together with this one.
    pub(crate) stamp: Option<Stamp>,
    pub(crate) fence: u64,
    pub(crate) body: &'a [u8],
}

/// Refuses a write with a smaller fencing token than the cell has seen. Who begins work that ends with such a write
/// asks before the work, and once it holds the lock: by a smaller epoch, each of its tokens is refused.
pub(crate) fn require_token(there: Option<View<'_>>, token: FencingToken) -> Result<()> {
    let fence = there.map_or(FencingToken::stored(0), |view| FencingToken::stored(view.fence));
    if fence <= token {
        return Ok(());
    }
    let why = match fence.epoch() {
        epoch if epoch > token.epoch() => format!(
            "it was written with a token of token_epoch={epoch}, and this client's is smaller: set \
             token_epoch={epoch} or more in its URL or settings, or remove what was written"
        ),
        _ => "a later holder has taken over".to_owned(),
    };
    let message = format!("token {token} is smaller than {fence}, which was written before: {why}");
    Err(Error::new(ErrorKind::Stale, message))
}

/// A change, and where its answer goes.
trait Change: Send {
    /// May be called again, on what others have made of the cell meanwhile.
    fn apply(&mut self, there: Option<View<'_>>) -> Step;
    fn is_wanted(&self) -> bool;
    fn finish(self: Box<Self>, made: Result<()>);
}

struct Typed<F, A> {
    change: F,
    answer: Option<Result<A>>,
    caller: oneshot::Sender<Result<A>>,
}

impl<F, A> Change for Typed<F, A>
where
    F: FnMut(Option<View<'_>>) -> Result<(Step, A)> + Send,
    A: Send,
{
    fn apply(&mut self, there: Option<View<'_>>) -> Step {
        let (step, answer) = match (self.change)(there) {
            Ok((step, answer)) => (step, Ok(answer)),
            // It changes nothing, and the others go on.
            Err(error) => (Step::Keep, Err(error)),
        };
        self.answer = Some(answer);
        step
    }

    fn is_wanted(&self) -> bool {
        !self.caller.is_closed()
    }

    fn finish(self: Box<Self>, made: Result<()>) {
        let Typed { answer, caller, .. } = *self;
        let _ = caller.send(made.and_then(|()| answer.unwrap_or_else(|| Err(closed()))));
    }
}

/// The cells of one client that are being changed.
#[derive(Default)]
pub(crate) struct Combiners {
    cells: Mutex<HashMap<Key, Vec<Box<dyn Change>>>>,
}

/// Changes with the same key are applied together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) name: LockName,
    pub(crate) kind: Kind,
    pub(crate) keep: Keep,
}

impl Kind {
    /// The most changes in one write. One for a value of a program's own: a caller that compares and sets it
    /// must have seen all of what it replaces.
    fn most_together(self) -> usize {
        match self {
            Kind::Cell => 1,
            _ => usize::MAX,
        }
    }
}

/// Applies `change` to a cell, together with others of this client.
///
/// # Errors
/// That of `change`; the store's, which say when it is unknown whether the change was made.
///
/// # Cancel safety
/// Dropped, the change may or may not be made.
pub(crate) async fn change<A: Send + 'static>(
    client: &Arc<ClientInner>,
    cells: &Cells,
    key: &Key,
    change: impl FnMut(Option<View<'_>>) -> Result<(Step, A)> + Send + 'static,
) -> Result<A> {
    let (caller, answered) = oneshot::channel();
    let change: Box<dyn Change> = Box::new(Typed { change, answer: None, caller });
    let combiners = client.registry::<Combiners>();
    let is_first = {
        let mut all = combiners.cells.lock();
        let is_first = !all.contains_key(key);
        all.entry(key.clone()).or_default().push(change);
        is_first
    };
    if is_first {
        let (client, cells, key) = (client.clone(), cells.clone(), key.clone());
        let work = Work { client, combiners, cells, key, is_done: false };
        work.client.reaper.runtime.clone().spawn(work.run());
    }
    // Only the end of the runtime drops a change.
    answered.await.unwrap_or_else(|_| Err(closed()))
}

/// The task that changes one cell for as long as there are changes.
struct Work {
    client: Arc<ClientInner>,
    combiners: Arc<Combiners>,
    cells: Cells,
    key: Key,
    /// The entry belongs to another task by now, if there is one.
    is_done: bool,
}

impl Work {
    async fn run(mut self) {
        let mut known = None;
        loop {
            // A cell that others of this process change at once must not occupy the worker thread.
            tokio::task::coop::consume_budget().await;
            let Some(mut changes) = self.take() else { return };
            let made = caught(self.make(&mut changes, &mut known)).await;
            for change in changes {
                change.finish(made.clone());
            }
        }
    }

    /// The next changes; `None`, and the end of the entry, when there are none.
    fn take(&mut self) -> Option<Vec<Box<dyn Change>>> {
        let mut all = self.combiners.cells.lock();
        let waiting = all.get_mut(&self.key)?;
        waiting.retain(|change| change.is_wanted());
        if waiting.is_empty() {
            all.remove(&self.key);
            self.is_done = true;
            return None;
        }
        let count = waiting.len().min(self.key.kind.most_together());
        Some(waiting.drain(..count).collect())
    }

    /// Adds to `changes`, which were not written, those that have come meanwhile: where clients contend,
    /// each needs one write and not one for the first of its changes and one for the others.
    fn take_more(&self, changes: &mut Vec<Box<dyn Change>>) {
        let mut all = self.combiners.cells.lock();
        let Some(waiting) = all.get_mut(&self.key) else { return };
        waiting.retain(|change| change.is_wanted());
        let room = self.key.kind.most_together().saturating_sub(changes.len());
        changes.extend(waiting.drain(..waiting.len().min(room)));
    }

    /// Applies `changes` until one write of all of them is made. `known` is what this task has written
    /// last: if it is still there, nothing has to be read.
    async fn make(
        &self,
        changes: &mut Vec<Box<dyn Change>>,
        known: &mut Option<Seen>,
    ) -> Result<()> {
        let Work { client, cells, key, .. } = self;
        let access = Access { client, cells, name: &key.name, kind: key.kind };
        let mut backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(20));
        for round in 0_u32.. {
            let was_known = known.take();
            let is_read = was_known.is_none();
            let from = match was_known {
                Some(seen) => seen,
                None => access.read().await?,
            };
            let to = self.apply(changes, &from);
            let (to, keep) = match &to {
                // Nothing is written, so what was known must be seen to be there.
                Outcome::Unchanged if !is_read => continue,
                Outcome::Unchanged => {
                    *known = Some(from);
                    return Ok(());
                }
                Outcome::Written(record, stamp) => (Some((record, *stamp)), key.keep),
                Outcome::Removed => (None, Keep::Forever),
            };
            let content = to.map(|(record, stamp)| record.clone().into_content(stamp));
            if access.write(Write { from: &from, to: content.as_ref(), keep }).await? {
                *known = Some(match to {
                    Some((record, stamp)) => {
                        Seen { stamp: Some(stamp), record: Some(record.clone()) }
                    }
                    None => Seen { stamp: None, record: None },
                });
                return Ok(());
            }
            // Another client was faster: at once the first time, then after a pause, so that many clients do not
            // fail each other again and again.
            if is_read && round > 0 {
                let pause = backoff.next((client.settings.seed(), round));
                client.sleep_until(client.now() + pause).await?;
            }
            self.take_more(changes);
        }
        Ok(())
    }

    /// What all changes together make of `from`.
    fn apply(&self, changes: &mut [Box<dyn Change>], from: &Seen) -> Outcome {
        let mut before = from.record.as_ref();
        let mut now = before.map(|record| (record.fence, record.body.clone()));
        let mut stamp = before.and(from.stamp);
        let mut is_changed = false;
        for change in changes {
            let there = now.as_ref().map(|(fence, body)| View { stamp, fence: *fence, body });
            match change.apply(there) {
                Step::Keep => continue,
                Step::Write { body, fence } => now = Some((fence, body)),
                // What is written after that is another cell.
                Step::Remove => (now, before) = (None, None),
            }
            (is_changed, stamp) = (true, None);
        }
        match now {
            _ if !is_changed => Outcome::Unchanged,
            // It was not there, and is not to be.
            None if from.stamp.is_none() => Outcome::Unchanged,
            None => Outcome::Removed,
            Some((fence, body)) => {
                let stamp = Stamp::fresh();
                let Key { kind, keep, .. } = self.key;
                let keep = if self.cells.0.ends_by_time() { Keep::Forever } else { keep };
                Outcome::Written(Record::next(before, stamp, kind, fence, keep, body), stamp)
            }
        }
    }
}

enum Outcome {
    Unchanged,
    Written(Record, Stamp),
    Removed,
}

/// The task ends early only by a panic or with its runtime; then no other would take its changes.
impl Drop for Work {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let left = self.combiners.cells.lock().remove(&self.key);
        let ended: Result<(), Error> = Err(closed());
        for change in left.into_iter().flatten() {
            change.finish(ended.clone());
        }
    }
}
