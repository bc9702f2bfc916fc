//! A step on a cell, on an I/O thread of the store.
//!
//! Its order does not matter, since a swap names the stamp that it replaces; so it waits in no line,
//! where it would delay the lock of the same name. A step that finds the cell's latch taken is tried
//! again later, and keeps no thread from other steps.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fencelock_core::{Error, Result};
use tokio::sync::oneshot;

use crate::error::{disk_hangs, latch_is_held, machine_is_busy};
use crate::lock::io_threads::{IoThreads, THREAD_NAME};
use crate::lock::queue_cache::StepError;
use crate::lock::request_line::pause_after;
use crate::platform::{stopped_holder, waits_for_disk};
use crate::storage::state::STATE;

/// A step that was submitted.
pub(crate) struct DiskStep<T> {
    pub(crate) answer: oneshot::Receiver<Result<T>>,
    contended: Arc<AtomicU32>,
}

struct Run<T, S> {
    step: S,
    answer: oneshot::Sender<Result<T>>,
    contended: Arc<AtomicU32>,
    threads: Arc<IoThreads>,
}

impl<T: Send + 'static> DiskStep<T> {
    /// Runs `step` as soon as a thread is free, unless the answer is no longer awaited.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn submit(
        threads: &Arc<IoThreads>,
        step: impl Fn() -> Result<T, StepError> + Send + 'static,
    ) -> Result<DiskStep<T>> {
        let (sender, answer) = oneshot::channel();
        let contended = Arc::<AtomicU32>::default();
        let (counted, owned) = (contended.clone(), threads.clone());
        let run = Run { step, answer: sender, contended: counted, threads: owned };
        threads.submit(Box::new(move || run.run()))?;
        Ok(DiskStep { answer, contended })
    }

    /// Why there has been no answer for `elapsed`. The lock's directory is at `path`.
    pub(crate) fn unanswered(&self, path: &Path, elapsed: Duration) -> Error {
        let error = match self.contended.load(Ordering::Relaxed) {
            0 if waits_for_disk(THREAD_NAME) => disk_hangs(path, elapsed),
            0 => machine_is_busy(path, elapsed),
            _ => {
                let state = path.join(STATE);
                latch_is_held(&state, elapsed, stopped_holder(&state))
            }
        };
        error.retryable(true)
    }
}

impl<T, S> Run<T, S>
where
    T: Send + 'static,
    S: Fn() -> Result<T, StepError> + Send + 'static,
{
    fn run(self) {
        if self.answer.is_closed() {
            return;
        }
        // A panic ends this step, which then has no answer, and not the thread.
        let Ok(done) = catch_unwind(AssertUnwindSafe(&self.step)) else { return };
        if let Err(StepError::Contended) = done {
            let contended = self.contended.fetch_add(1, Ordering::Relaxed) + 1;
            let threads = self.threads.clone();
            // Without a thread, it ends without an answer.
            let _ = threads.submit_in(pause_after(contended), Box::new(move || self.run()));
            return;
        }
        // The caller may have given up.
        let _ = self.answer.send(done.map_err(StepError::into_error));
    }
}
