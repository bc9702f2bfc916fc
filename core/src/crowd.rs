//! Steps of many callers in one call to the store, for stores in which a call costs more than most
//! steps do.
//!
//! While few steps are under way each one goes alone, with no detour; steps that come while enough
//! are under way wait for a place, and go together. So a crowd gets more done, and one caller waits
//! for nobody. docs/decisions/0007 and 0009 have what that gives.

use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;

/// How many go how.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// With fewer steps under way each one goes alone.
    pub alone: usize,
    /// Calls with many steps under way: the store works at one while this process reads the
    /// answers of another.
    pub calls: usize,
    /// Steps in one call: while it runs, the store may serve nobody else.
    pub most: usize,
}

/// What takes the steps of a crowd to the store: one connection to it.
pub trait BatchTransport: Send + Sync + Sized + 'static {
    /// A step that waits for a place, or for its answer.
    type Request: Send + 'static;

    /// Those who go by it.
    fn batcher(&self) -> &Batcher<Self::Step>;

    /// Where calls are awaited, to their end: nobody's cancellation may keep the others from their
    /// answers.
    fn runtime(&self) -> &Handle;

    /// Does steps in one call. `leaving` is dropped as soon as they are on the connection, or will
    /// never be.
    fn carry(
        self: Arc<Self>,
        steps: Vec<Self::Step>,
        leaving: SendOrderGuard<Self>,
    ) -> impl Future<Output = ()> + Send;

    /// Takes up one step: what `wait` makes of it, if it has to, is a step and where its answer
    /// will be.
    fn enter<A>(self: &Arc<Self>, wait: impl FnOnce() -> (Self::Step, A)) -> Dispatch<Self, A> {
        let crowd = self.batcher();
        let mut queue = crowd.queue();
        let is_early = queue.steps < crowd.limits.alone;
        if is_early && queue.leaving == 0 && queue.waiting.is_empty() {
            queue.steps += 1;
            return Dispatch::Direct(Place { of: self.clone(), steps: 1, calls: 0 });
        }
        let (step, answer) = wait();
        queue.waiting.push(step);
        Dispatch::Batched(answer)
    }

    /// Has everybody else wait until steps that are sent now are on the connection.
    fn leaving(self: &Arc<Self>) -> SendOrderGuard<Self> {
        self.batcher().queue().leaving += 1;
        SendOrderGuard(self.clone())
    }
}

/// How a step is done.
#[derive(Debug)]
pub enum Dispatch<C: BatchTransport, A> {
    /// By its caller, in a call of its own, who keeps the place until then.
    Alone(Place<C>),
    /// With others: the answer comes.
    Together(A),
}

/// The steps at one connection.
#[derive(Debug)]
pub struct Batcher<S> {
    limits: Limits,
    queue: Mutex<Queue<S>>,
}

#[derive(Debug)]
struct Queue<S> {
    /// Steps under way.
    steps: usize,
    /// Calls with many steps under way.
    calls: usize,
    /// Those of them whose steps are not on the connection yet. Nobody overtakes them: a claim's
    /// release must not arrive before its attempt, which is sent even if nobody waits for it.
    leaving: usize,
    waiting: Vec<S>,
    /// A call of `depart` sends the steps that wait, and looks again before it stops.
    is_departing: bool,
}

impl<S> Batcher<S> {
    /// Nobody yet.
    #[must_use]
    pub fn new(limits: Limits) -> Batcher<S> {
        let queue =
            Queue { steps: 0, calls: 0, leaving: 0, waiting: Vec::new(), is_departing: false };
        Batcher { limits, queue: Mutex::new(queue) }
    }

    fn queue(&self) -> MutexGuard<'_, Queue<S>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes those that still wait for a place, to tell them that the connection failed.
    pub fn take_waiting(&self) -> Vec<S> {
        std::mem::take(&mut self.queue().waiting)
    }
}

/// Sends the steps that have waited longest, while there is a place for a call.
///
/// On a runtime that has ended a call is dropped as it is spawned, and its place calls this again:
/// that call returns at once, for a crowd must not become a recursion as deep as it is long.
fn depart<C: BatchTransport>(carrier: &Arc<C>) {
    let mut departs = false;
    while let Some(Call { steps, place, leaving }) = next_call(carrier, departs) {
        departs = true;
        let going = carrier.clone();
        carrier.runtime().spawn(async move {
            let _place = place;
            going.carry(steps, leaving).await;
        });
    }
}

/// Steps that go together, with their place.
struct Call<C: BatchTransport> {
    steps: Vec<C::Step>,
    place: Place<C>,
    leaving: SendOrderGuard<C>,
}

/// The next call, for the caller that `departs` already, or while there is none.
fn next_call<C: BatchTransport>(carrier: &Arc<C>, departs: bool) -> Option<Call<C>> {
    let crowd = carrier.crowd();
    let mut queue = crowd.queue();
    if queue.is_departing && !departs {
        return None;
    }
    if queue.calls >= crowd.limits.calls || queue.leaving > 0 || queue.waiting.is_empty() {
        queue.is_departing = false;
        return None;
    }
    queue.is_departing = true;
    let count = queue.waiting.len().min(crowd.limits.most);
    queue.steps += count;
    queue.calls += 1;
    queue.leaving += 1;
    let steps = queue.waiting.drain(..count).collect();
    let place = Place { of: carrier.clone(), steps: count, calls: 1 };
    Some(Call { steps, place, leaving: SendOrderGuard(carrier.clone()) })
}

/// Room for a call, until it is dropped.
#[derive(Debug)]
pub struct Place<C: BatchTransport> {
    of: Arc<C>,
    steps: usize,
    calls: usize,
}

impl<C: BatchTransport> Drop for Place<C> {
    fn drop(&mut self) {
        {
            let mut queue = self.of.crowd().queue();
            queue.steps -= self.steps;
            queue.calls -= self.calls;
        }
        depart(&self.of);
    }
}

/// Steps that are not on the connection yet.
#[derive(Debug)]
pub struct SendOrderGuard<C: BatchTransport>(Arc<C>);

impl<C: BatchTransport> Drop for SendOrderGuard<C> {
    fn drop(&mut self) {
        self.0.crowd().queue().leaving -= 1;
        depart(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Line {
        batcher: Batcher<()>,
        runtime: Handle,
    }

    impl BatchTransport for Line {
        type Request = ();

        fn batcher(&self) -> &Batcher<()> {
            &self.batcher
        }

        fn runtime(&self) -> &Handle {
            &self.runtime
        }

        async fn send(self: Arc<Self>, _steps: Vec<()>, _leaving: SendOrderGuard<Self>) {}
    }

    /// A process with 10,000 waiters ended by a stack overflow when its runtime did.
    #[test]
    fn a_crowd_on_a_runtime_that_has_ended_is_dropped_in_a_row() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let limits = Limits { direct: 1, calls: 1, per_call: 1 };
        let line =
            Arc::new(Line { batcher: Batcher::new(limits), runtime: runtime.handle().clone() });
        let Dispatch::Direct(place) = line.enter(|| ((), ())) else {
            panic!("nobody else is there")
        };
        for _ in 0..200_000 {
            assert!(matches!(line.enter(|| ((), ())), Dispatch::Batched(())));
        }
        drop(runtime);
        drop(place);
        assert!(line.crowd.take_waiting().is_empty());
        assert!(matches!(line.enter(|| ((), ())), Dispatch::Direct(_)));
    }
}
