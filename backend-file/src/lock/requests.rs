//! The kinds of requests for a lock that can wait in line for an I/O thread.

use fencelock_core::Result;
use tokio::sync::oneshot;

use crate::lock::queue_cache::{StepError, Thread};
use crate::lock::request_line::Request;
use crate::lock::shared_queue::SharedQueue;

/// A request with an answer.
pub(crate) struct WorkRequest<T, W> {
    pub(crate) work: W,
    pub(crate) answer: oneshot::Sender<Result<T>>,
}

impl<T, W> Request for WorkRequest<T, W>
where
    T: Send + 'static,
    W: Fn(&SharedQueue, Thread) -> Result<T, StepError> + Send + 'static,
{
    fn is_awaited(&self) -> bool {
        !self.answer.is_closed()
    }

    fn run(self: Box<Self>, queue: &SharedQueue) -> Result<(), Box<dyn Request>> {
        let done = match (self.work)(queue, Thread::Io) {
            Err(StepError::Contended) => return Err(self),
            done => done,
        };
        // If the caller has given up, the release that follows undoes what this request did.
        let _ = self.answer.send(done.map_err(StepError::into_error));
        Ok(())
    }
}

/// A request that closes the files of a lock.
pub(crate) struct CloseRequest {
    /// Its drop is the answer.
    pub(crate) _answer: oneshot::Sender<()>,
}

impl Request for CloseRequest {
    fn is_awaited(&self) -> bool {
        true
    }

    fn run(self: Box<Self>, queue: &SharedQueue) -> Result<(), Box<dyn Request>> {
        queue.close();
        Ok(())
    }
}
