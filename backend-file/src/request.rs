//! What is asked of a lock, as it waits in line for a thread of the store's.

use fencelock_core::{Error, Result};
use tokio::sync::oneshot;

use crate::error::no_answer;
use crate::latch::{Latched, Stop, Thread};
use crate::place::{Missing, Peek, Place};
use crate::turn::Turn;

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
pub(crate) struct Asked<T, W> {
    pub(crate) missing: Missing,
    pub(crate) work: W,
    pub(crate) answer: oneshot::Sender<Result<Option<T>>>,
}

impl<T: Send + 'static, W: Fn(Latched<'_>) -> Result<T, Stop> + Send + 'static> Turn
    for Asked<T, W>
{
    fn is_wanted(&self) -> bool {
        !self.answer.is_closed()
    }

    fn take(self: Box<Self>, place: &Place) -> Result<(), Box<dyn Turn>> {
        let done = match place.carry_out(self.missing, Thread::Own, &self.work) {
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
pub(crate) struct Peeked {
    pub(crate) answer: oneshot::Sender<Result<Peek>>,
}

impl Turn for Peeked {
    fn is_wanted(&self) -> bool {
        !self.answer.is_closed()
    }

    fn take(self: Box<Self>, place: &Place) -> Result<(), Box<dyn Turn>> {
        let _ = self.answer.send(place.peek_on(Thread::Own).map_err(Error::from));
        Ok(())
    }
}

/// The end of a lock's use.
pub(crate) struct Leaves {
    /// Told by being dropped.
    pub(crate) _answer: oneshot::Sender<()>,
}

impl Turn for Leaves {
    fn is_wanted(&self) -> bool {
        true
    }

    fn take(self: Box<Self>, place: &Place) -> Result<(), Box<dyn Turn>> {
        place.close();
        Ok(())
    }
}
