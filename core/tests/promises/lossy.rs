//! A store of cells that loses requests and replies, delays them, and forgets to notify.

use std::collections::HashMap;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fencelock_core::sync::Mutex;
use fencelock_core::{
    AttemptOutcome, CellStore, Cells, Content, Error, ErrorKind, FencingToken, Keep, LockName,
    Locks, Notifier, Result, Stamp, lease_end,
};
use tokio::time::sleep;

use crate::scripted::{One, SECOND, Script, ms};

/// What becomes of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    RequestLost,
    ReplyLost,
    /// It is executed this much later, and never answered.
    Late(Duration),
    /// It is executed, and answered, this much later.
    Slow(Duration),
    /// It is executed at once, and answered this much later.
    AnsweredLate(Duration),
    /// It is never answered, and nothing says so.
    Silent,
    Refused,
    Panics,
}

type Decide = Box<dyn FnMut(bool) -> Fate + Send>;

/// The values of a store, and its network.
#[derive(Clone)]
pub(crate) struct Lossy {
    pub(crate) cells: Arc<Mutex<HashMap<String, Content>>>,
    pub(crate) notifiers: Arc<Mutex<Vec<Arc<Notifier>>>>,
    /// By whether the request is a swap.
    decide: Arc<Mutex<Decide>>,
    pub(crate) notifies: bool,
    pub(crate) reads: Arc<AtomicUsize>,
    pub(crate) swaps: Arc<AtomicUsize>,
    /// For how long the last swap was to be kept.
    pub(crate) kept: Arc<Mutex<Option<Keep>>>,
    /// The last token that was granted.
    tokens: Arc<AtomicU64>,
    pub(crate) is_full: Arc<AtomicBool>,
    /// Swaps that changed something.
    pub(crate) changes: Arc<AtomicUsize>,
}

impl Lossy {
    pub(crate) fn new(decide: impl FnMut(bool) -> Fate + Send + 'static) -> Lossy {
        Lossy {
            cells: Arc::default(),
            notifiers: Arc::default(),
            decide: Arc::new(Mutex::new(Box::new(decide))),
            notifies: true,
            reads: Arc::default(),
            swaps: Arc::default(),
            kept: Arc::default(),
            tokens: Arc::default(),
            is_full: Arc::default(),
            changes: Arc::default(),
        }
    }

    pub(crate) fn sound() -> Lossy {
        Lossy::new(|_| Fate::Answered)
    }

    pub(crate) fn set(&self, decide: impl FnMut(bool) -> Fate + Send + 'static) {
        *self.decide.lock() = Box::new(decide);
    }

    /// A client of the same store. Every claim is granted its lock, as after a loss that nobody knows of yet.
    pub(crate) fn locks(&self) -> Locks {
        let (cells, tokens) = (Cells::of(Arc::new(self.clone())), self.tokens.clone());
        let grant = move |asked: One| {
            let token = FencingToken::new(tokens.fetch_add(1, Ordering::SeqCst) + 1);
            let valid_until = lease_end(asked.at, asked.of.ttl());
            ready(Ok(AttemptOutcome::Granted { token, valid_until }))
        };
        Script::new().cells(cells).attempts(grant).unreachable_after(10 * SECOND).connect().1
    }

    async fn carry<T>(
        &self,
        is_swap: bool,
        execute: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T>
    where
        T: Send + 'static,
    {
        let lost = || Err(Error::new(ErrorKind::Unreachable, "the connection was lost"));
        let fate = (self.decide.lock())(is_swap);
        sleep(ms(1)).await;
        match fate {
            Fate::Answered => Ok(execute()),
            Fate::RequestLost => lost(),
            Fate::ReplyLost => {
                execute();
                lost()
            }
            Fate::Late(by) => {
                tokio::spawn(async move {
                    sleep(by).await;
                    execute();
                });
                lost()
            }
            Fate::Slow(by) => {
                sleep(by).await;
                Ok(execute())
            }
            Fate::AnsweredLate(by) => {
                let answer = execute();
                sleep(by).await;
                Ok(answer)
            }
            Fate::Silent => std::future::pending().await,
            Fate::Refused => Err(Error::new(ErrorKind::Refused, "no permission")),
            Fate::Panics => panic!("a fault of the backend"),
        }
    }
}

impl CellStore for Lossy {
    async fn read(
        &self,
        cell: &LockName,
        notifier: Option<&Arc<Notifier>>,
    ) -> Result<Option<Content>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let (this, key, notifier) = (self.clone(), cell.key().to_owned(), notifier.cloned());
        self.carry(false, move || {
            this.notifiers.lock().extend(notifier);
            this.cells.lock().get(&key).cloned()
        })
        .await
    }

    async fn swap(
        &self,
        cell: &LockName,
        from: Option<Stamp>,
        to: Option<&Content>,
        keep: Keep,
    ) -> Result<bool> {
        *self.kept.lock() = Some(keep);
        self.swaps.fetch_add(1, Ordering::SeqCst);
        let (this, key, to) = (self.clone(), cell.key().to_owned(), to.cloned());
        self.carry(true, move || {
            let mut cells = this.cells.lock();
            let there = cells.get(&key).map(|content| content.stamp);
            if there != from {
                return to.is_some_and(|to| there == Some(to.stamp));
            }
            this.changes.fetch_add(1, Ordering::SeqCst);
            match to {
                Some(to) => cells.insert(key, to),
                None => cells.remove(&key),
            };
            drop(cells);
            let notifiers = std::mem::take(&mut *this.notifiers.lock());
            if this.notifies {
                notifiers.iter().for_each(|notifier| notifier.notify());
            }
            true
        })
        .await
    }

    async fn reserve(&self, _: &LockName) -> Result<()> {
        sleep(ms(2)).await;
        match self.is_full.load(Ordering::SeqCst) {
            true => Err(Error::new(ErrorKind::Refused, "the disk is full")),
            false => Ok(()),
        }
    }

    async fn list(&self, prefix: &str) -> Result<Option<Vec<String>>> {
        let (this, prefix) = (self.clone(), prefix.to_owned());
        let list = move || {
            let cells = this.cells.lock();
            Some(cells.keys().filter(|key| key.starts_with(&prefix)).cloned().collect())
        };
        self.carry(false, list).await
    }
}

/// Does with requests what `fates` say, one after the other, and answers the rest.
pub(crate) fn each(
    fates: impl IntoIterator<Item = Fate, IntoIter: Send + 'static>,
) -> impl FnMut(bool) -> Fate {
    let mut fates = fates.into_iter();
    move |_| fates.next().unwrap_or(Fate::Answered)
}

/// Answers everything, but does with swaps what `fates` say, one after the other.
pub(crate) fn swaps(
    fates: impl IntoIterator<Item = Fate, IntoIter: Send + 'static>,
) -> impl FnMut(bool) -> Fate {
    let mut each = each(fates);
    move |is_swap| if is_swap { each(true) } else { Fate::Answered }
}
