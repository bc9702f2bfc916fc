//! One request to a driver about many claims, whose answers arrive one by one.
//!
//! What the driver has not reported when it returns, panics or is dropped counts as unknown, so
//! that nothing a driver does can make the keeper forget a hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::backend::{Acquisition, DistributedLock, RenewOutcome, WaiterCheck};
use crate::error::{Error, ErrorKind, Result};
use crate::observe::Meters;
use crate::validity::Moment;

/// When a batch was sent, and when this answer came.
#[derive(Clone, Copy)]
pub(crate) struct Answered {
    pub(crate) asked: Moment,
    pub(crate) now: Moment,
}

/// Takes the answer about one claim, by its id.
type Tell<T> = Box<dyn Fn(u64, &Arc<dyn Acquisition>, Result<T>, Answered) + Send + Sync>;

pub(crate) struct Batch<T> {
    store: Arc<dyn DistributedLock>,
    asked: Moment,
    ids: Vec<u64>,
    contenders: Vec<Arc<dyn Acquisition>>,
    reported: Vec<AtomicBool>,
    tell: Tell<T>,
}

impl<T> Batch<T> {
    pub(crate) fn new(
        store: &Arc<dyn DistributedLock>,
        list: Vec<(u64, Arc<dyn Acquisition>)>,
        tell: impl Fn(u64, &Arc<dyn Acquisition>, Result<T>, Answered) + Send + Sync + 'static,
    ) -> Batch<T> {
        let reported = list.iter().map(|_| AtomicBool::new(false)).collect();
        let (ids, contenders) = list.into_iter().unzip();
        let (store, asked) = (store.clone(), store.clock().now());
        Batch { store, asked, ids, contenders, reported, tell: Box::new(tell) }
    }

    /// Passes on the first report about entry `index`.
    fn report(&self, index: usize, answer: Result<T>) {
        let Some(reported) = self.reported.get(index) else { return };
        if !reported.swap(true, Ordering::AcqRel) {
            let when = Answered { asked: self.asked, now: self.store.clock().now() };
            (self.tell)(self.ids[index], &self.contenders[index], answer, when);
        }
    }
}

impl Batch<RenewOutcome> {
    pub(crate) async fn renew(self, meters: Option<Arc<Meters>>) {
        let report = |index: usize, answer: Result<RenewOutcome>| self.report(index, answer);
        self.store.renew(&self.contenders, &report).await;
        if let Some(meters) = meters {
            meters.renewed(self.store.clock().now().duration_since(self.asked));
        }
    }
}

impl Batch<WaiterCheck> {
    pub(crate) async fn look(self) {
        let report = |index: usize, answer: Result<WaiterCheck>| self.report(index, answer);
        self.store.look(&self.contenders, &report).await;
    }
}

impl<T> Drop for Batch<T> {
    fn drop(&mut self) {
        for index in 0..self.ids.len() {
            if !self.reported[index].load(Ordering::Acquire) {
                let unanswered = "the store's driver gave no answer";
                self.report(index, Err(Error::new(ErrorKind::Unreachable, unanswered)));
            }
        }
    }
}
