//! A process that can be stopped, as by SIGSTOP, and never continued, as by a crash.
//!
//! Whatever a process waits for, a reply, a push, a timer or its own tasks, passes its gate; while
//! that is shut, time passes outside and nothing runs inside.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fencelock_core::sync::Mutex;
use fencelock_core::{Clock, Moment, TokioClock};

use crate::world::dice::Dice;
use crate::world::history::History;

#[derive(Debug, Default)]
pub(crate) struct Gate {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// By how many: it may be stopped while a backend blocks it, and crash while it is stopped.
    shut_by: u32,
    opened_at: u64,
    kept: Vec<Waker>,
}

impl Gate {
    pub(crate) fn shut(&self) {
        self.inner.lock().shut_by += 1;
    }

    /// Undoes one [`shut`](Gate::shut). What `process` believes then must be right at once,
    /// the first to check: its tasks wake in any order.
    pub(crate) fn open(&self, history: &History, process: u32, order: &mut Dice) {
        let mut kept = {
            let mut inner = self.inner.lock();
            inner.shut_by -= 1;
            if inner.shut_by > 0 {
                return;
            }
            inner.opened_at = history.now().as_nanos();
            std::mem::take(&mut inner.kept)
        };
        if order.percent(50) {
            history.first_check(process);
        }
        while !kept.is_empty() {
            kept.swap_remove(order.index(kept.len())).wake();
        }
    }

    pub(crate) fn is_shut(&self) -> bool {
        self.inner.lock().shut_by > 0
    }

    /// When it was opened last.
    pub(crate) fn opened_at(&self) -> Moment {
        Moment::from_nanos(self.inner.lock().opened_at)
    }

    pub(crate) fn poll_pass(&self, cx: &Context<'_>) -> Poll<()> {
        let mut inner = self.inner.lock();
        if inner.shut_by > 0 {
            inner.kept.push(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(())
    }

    pub(crate) async fn pass(&self) {
        poll_fn(|cx| self.poll_pass(cx)).await;
    }

    /// `task`, polled only while the gate is open.
    pub(crate) fn run<F: Future + Send + 'static>(self: &Arc<Self>, task: F) -> Gated<F> {
        Gated { gate: self.clone(), task: Box::pin(task) }
    }
}

pub(crate) struct Gated<F> {
    gate: Arc<Gate>,
    task: Pin<Box<F>>,
}

impl<F: Future> Future for Gated<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        match self.gate.poll_pass(cx) {
            Poll::Ready(()) => self.task.as_mut().poll(cx),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// The clock of a process: it always gives the time, and wakes no task while the gate is shut.
#[derive(Debug)]
pub(crate) struct GatedClock {
    pub(crate) time: Arc<TokioClock>,
    pub(crate) gate: Arc<Gate>,
}

impl Clock for GatedClock {
    fn now(&self) -> Moment {
        self.time.now()
    }

    fn sleep_until(&self, at: Moment) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let slept = self.time.sleep_until(at);
        Box::pin(async move {
            slept.await;
            self.gate.pass().await;
        })
    }
}

/// `acquire` or `release` dropped after its `left`-th poll: `None` when that came first.
pub(crate) struct AtMostPolls<F> {
    inner: Option<Pin<Box<F>>>,
    left: u64,
}

impl<F: Future> AtMostPolls<F> {
    pub(crate) fn new(inner: F, polls: u64) -> AtMostPolls<F> {
        AtMostPolls { inner: Some(Box::pin(inner)), left: polls }
    }
}

impl<F: Future> Future for AtMostPolls<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(inner) = self.inner.as_mut() else { return Poll::Ready(None) };
        if let Poll::Ready(output) = inner.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        self.left -= 1;
        if self.left == 0 {
            self.inner = None;
            return Poll::Ready(None);
        }
        Poll::Pending
    }
}
