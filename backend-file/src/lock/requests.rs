//! The kinds of requests for a lock that can wait in line for an I/O thread.

use fencelock_core::{Error, Result};
use tokio::sync::oneshot;

use crate::error::no_answer;
use crate::lock::queue_cache::{StepError, Thread};
use crate::lock::queue_guard::QueueGuard;
use crate::lock::request_line::Request;
use crate::lock::shared_queue::{IfMissing, Peek, SharedQueue};

/// The answer to a request that has run, or that waits in line.
pub(crate) enum Answer<T> {
    Now(T),
    Later(oneshot::Receiver<Result<T>>),
}

impl<T> Answer<T> {
    pub(crate) async fn wait(self) -> Result<T> {
        match self {
            Answer::Now(done) => Ok(done),
            Answer::Later(answered) => answered.await.unwrap_or_else(|_| Err(no_answer())),
        }
    }
}

/// A request that needs the latch.
pub(crate) struct LatchedRequest<T, W> {
    pub(crate) if_missing: IfMissing,
    pub(crate) work: W,
    pub(crate) answer: oneshot::Sender<Result<Option<T>>>,
}

impl<T: Send + 'static, W: Fn(QueueGuard<'_>) -> Result<T, StepError> + Send + 'static> Request
    for LatchedRequest<T, W>
{
    fn is_awaited(&self) -> bool {
        !self.answer.is_closed()
    }

    fn run(self: Box<Self>, queue: &SharedQueue) -> Result<(), Box<dyn Request>> {
        let done = match queue.with_queue(self.if_missing, Thread::Io, &self.work) {
            Ok(None) => return Err(self),
            Ok(Some(done)) => Ok(done),
            Err(error) => Err(error.into()),
        };
        // If the caller has given up, the release that follows undoes what this request did.
        let _ = self.answer.send(done);
        Ok(())
    }
}

/// A request that reads the queue without the latch.
pub(crate) struct PeekRequest {
    pub(crate) answer: oneshot::Sender<Result<Peek>>,
}

impl Request for PeekRequest {
    fn is_awaited(&self) -> bool {
        !self.answer.is_closed()
    }

    fn run(self: Box<Self>, queue: &SharedQueue) -> Result<(), Box<dyn Request>> {
        let _ = self.answer.send(queue.peek(Thread::Io).map_err(Error::from));
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
