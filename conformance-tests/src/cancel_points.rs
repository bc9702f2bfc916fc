//! Drops a future at each of its awaits, to see what that leaves behind.
//!
//! A future can stop only where it awaits, and it has stopped there when a poll of it was not
//! ready. So one is dropped after its first poll, the next after its second, and so on until one
//! is complete before it is dropped: then each await on its way has been tried.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::timeout;

/// A future that drops another one after its k-th poll, unless that is ready by then: `None` if it
/// was dropped. With no poll at all it is dropped as it was made.
#[must_use = "futures do nothing unless polled"]
pub struct DroppedAfter<F> {
    future: Option<Pin<Box<F>>>,
    polls: usize,
}

impl<F: Future> DroppedAfter<F> {
    /// Drops `future` after `polls` polls.
    pub fn polls(polls: usize, future: F) -> DroppedAfter<F> {
        DroppedAfter { future: Some(Box::pin(future)), polls }
    }
}

impl<F: Future> Future for DroppedAfter<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let polls = self.polls;
        let running = self.future.as_mut().filter(|_| polls > 0);
        let done = running.map(|future| future.as_mut().poll(cx));
        self.polls = polls.saturating_sub(1);
        match done {
            Some(Poll::Pending) if self.polls > 0 => return Poll::Pending,
            _ => self.future = None,
        }
        match done {
            Some(Poll::Ready(value)) => Poll::Ready(Some(value)),
            _ => Poll::Ready(None),
        }
    }
}

impl<F> fmt::Debug for DroppedAfter<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DroppedAfter").field("polls", &self.polls).finish_non_exhaustive()
    }
}

/// No future has more awaits than this on its way.
const MOST_POLLS: usize = 500;

/// Drops what `make` makes before its first poll, anew after its first, and so on until it is
/// complete. After each `check` is given what `make` returned with the future, and the outcome: `None`
/// when it was dropped. Returns the number of polls it takes.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use std::time::Duration;
/// use fencelock_conformance::cancel_points::at_every_await;
/// use fencelock_core::memory::Memory;
///
/// let second = Duration::from_secs(1);
/// let locks = Memory::new().locks(Default::default()).unwrap();
/// let lock = locks.lock("job").wait_at_most(second);
/// let make = async || (lock.clone(), async { lock.acquire().await });
/// at_every_await(second, make, async |lock, done| {
///     drop(done); // with the guard, if there is one
///     lock.acquire().await.expect("whatever was dropped, the lock is free");
/// })
/// .await;
/// # }
/// ```
///
/// # Panics
/// When a future is neither complete nor polled often enough within `patience`.
pub async fn at_every_await<S, F: Future>(
    patience: Duration,
    mut make: impl AsyncFnMut() -> (S, F),
    mut check: impl AsyncFnMut(S, Option<F::Output>),
) -> usize {
    for polls in 0..MOST_POLLS {
        let _location = DropLocation(polls);
        let (state, future) = make().await;
        let done = timeout(patience, DroppedAfter::polls(polls, future)).await;
        let done = done.unwrap_or_else(|_| panic!("within {patience:?} neither done nor dropped"));
        let complete = done.is_some();
        check(state, done).await;
        if complete {
            return polls;
        }
    }
    panic!("still not complete after {MOST_POLLS} polls");
}

/// Says in a panic where the future was dropped.
struct DropLocation(usize);

impl Drop for DropLocation {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("it was dropped after poll {}", self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test]
    async fn each_await_is_tried_once_and_the_last_time_it_is_complete() {
        let (steps, mut seen) = (Cell::new(0), Vec::new());
        let work = async || {
            for _ in 0..3 {
                steps.set(steps.get() + 1);
                tokio::task::yield_now().await;
            }
            "done"
        };
        let make = async || {
            steps.set(0);
            ((), work())
        };
        let polls = at_every_await(Duration::from_secs(5), make, async |(), done| {
            seen.push((steps.get(), done));
        });
        assert_eq!(polls.await, 4);
        assert_eq!(seen, [(0, None), (1, None), (2, None), (3, None), (3, Some("done"))]);
    }
}
