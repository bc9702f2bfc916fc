//! One request to a backend about many claims, whose answers arrive one by one.
//!
//! What the backend has not reported when it returns, panics or is dropped counts as unknown, so
//! that no fault of a backend can make the worker forget a hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::telemetry::Metrics;
use crate::store::distributed_lock::{Acquisition, DistributedLock, RenewOutcome, WaiterCheck};
use crate::time::moment::Moment;
use crate::types::error::{Error, ErrorKind, Result};

/// When a batch was sent, and when this answer arrived.
#[derive(Clone, Copy)]
pub(super) struct Timing {
    pub(super) sent: Moment,
    pub(super) answered: Moment,
}

/// Receives the answer about one claim, by its id.
type Deliver<T> = Box<dyn Fn(u64, &Arc<dyn Acquisition>, Result<T>, Timing) + Send + Sync>;

pub(super) struct Batch<T> {
    store: Arc<dyn DistributedLock>,
    sent: Moment,
    ids: Vec<u64>,
    acquisitions: Vec<Arc<dyn Acquisition>>,
    reported: Vec<AtomicBool>,
    deliver: Deliver<T>,
}

impl<T> Batch<T> {
    pub(super) fn new(
        store: &Arc<dyn DistributedLock>,
        list: Vec<(u64, Arc<dyn Acquisition>)>,
        deliver: impl Fn(u64, &Arc<dyn Acquisition>, Result<T>, Timing) + Send + Sync + 'static,
    ) -> Batch<T> {
        let reported = list.iter().map(|_| AtomicBool::new(false)).collect();
        let (ids, acquisitions) = list.into_iter().unzip();
        let (store, sent) = (store.clone(), store.clock().now());
        Batch { store, sent, ids, acquisitions, reported, deliver: Box::new(deliver) }
    }

    /// Delivers the first report about entry `index`.
    fn report(&self, index: usize, answer: Result<T>) {
        let Some(reported) = self.reported.get(index) else { return };
        if !reported.swap(true, Ordering::AcqRel) {
            let timing = Timing { sent: self.sent, answered: self.store.clock().now() };
            (self.deliver)(self.ids[index], &self.acquisitions[index], answer, timing);
        }
    }
}

impl Batch<RenewOutcome> {
    pub(super) async fn renew(self, metrics: Option<Arc<Metrics>>) {
        let report = |index: usize, answer: Result<RenewOutcome>| self.report(index, answer);
        self.store.renew(&self.acquisitions, &report).await;
        if let Some(metrics) = metrics {
            metrics.renewed(self.store.clock().now().duration_since(self.sent));
        }
    }
}

impl Batch<WaiterCheck> {
    pub(super) async fn check(self) {
        let report = |index: usize, answer: Result<WaiterCheck>| self.report(index, answer);
        self.store.check_waiters(&self.acquisitions, &report).await;
    }
}

impl<T> Drop for Batch<T> {
    fn drop(&mut self) {
        for index in 0..self.ids.len() {
            if !self.reported[index].load(Ordering::Acquire) {
                let unanswered = "the backend gave no answer";
                self.report(index, Err(Error::new(ErrorKind::Unreachable, unanswered)));
            }
        }
    }
}
