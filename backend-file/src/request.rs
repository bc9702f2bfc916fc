//! What is asked of a lock, as it waits in line for a thread of the store's.

use fencelock_core::{Error, Result};
use tokio::sync::oneshot;

use crate::error::no_answer;
use crate::latch::{QueueGuard, StepError, Thread};
use crate::place::{FileLock, IfMissing, Peek};
use crate::turn::Request;

/// The answer to a request that was carried out, or that waits in line.
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

    fn take(self: Box<Self>, lock: &FileLock) -> Result<(), Box<dyn Request>> {
        let done = match lock.carry_out(self.if_missing, Thread::Io, &self.work) {
            Ok(None) => return Err(self),
            Ok(Some(done)) => Ok(done),
            Err(stop) => Err(stop.into()),
        };
        // Given up meanwhile: what it did is undone by the release that follows.
        let _ = self.answer.send(done);
        Ok(())
    }
}

/// A look.
pub(crate) struct PeekRequest {
    pub(crate) answer: oneshot::Sender<Result<Peek>>,
}

impl Request for PeekRequest {
    fn is_awaited(&self) -> bool {
        !self.answer.is_closed()
    }

    fn take(self: Box<Self>, lock: &FileLock) -> Result<(), Box<dyn Request>> {
        let _ = self.answer.send(lock.peek_on(Thread::Io).map_err(Error::from));
        Ok(())
    }
}

/// The end of a lock's use.
pub(crate) struct CloseRequest {
    /// Told by being dropped.
    pub(crate) _answer: oneshot::Sender<()>,
}

impl Request for CloseRequest {
    fn is_awaited(&self) -> bool {
        true
    }

    fn take(self: Box<Self>, lock: &FileLock) -> Result<(), Box<dyn Request>> {
        lock.close();
        Ok(())
    }
}
