//! Batching: the requests of many callers in one call to the store, for stores in which a call
//! costs more than the work of most requests.
//!
//! While few requests are in flight, each is sent directly by its caller. Requests that arrive while
//! enough are in flight wait for a permit and are sent together. Throughput rises under load, and a
//! single caller waits for no other. docs/decisions/0007 and 0009 have the measurements.
//!
//! The permit of a direct request is in its caller's future, which may not be polled for long, such as in
//! a `select!` with a long handler. So no request waits for one longer than some ms. Calls run on tasks of
//! the connection.
//!
//! Of the requests that wait, the most useful are sent first: see [`Priority`].

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

use crate::sync::Mutex;

/// Batching limits.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// While fewer requests than this are in flight, each is sent directly.
    pub direct: usize,
    /// Batched calls in flight: the store works on one while this process reads the replies of
    /// another.
    pub calls: usize,
    /// Requests in one call: while it runs, the store may serve no other client.
    pub per_call: usize,
}

/// In which order waiting requests are sent. Between a claim's own, its backend keeps the order: what still waits as a
/// later one is asked for, such as an attempt as its release is, has to be dropped by [`send`](BatchTransport::send).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A renewal, without which a lock ends.
    Renewal,
    /// A release, for which others wait, or the confirmation of a grant. After 1 s it goes ahead of the others.
    Held,
    /// An attempt to acquire, and whatever else a caller waits for. After 1 s it goes ahead of the others.
    Attempt,
    /// The roll-back of an attempt. After 200 ms it goes ahead of the others.
    RollBack,
    /// A check of waiters, which keeps them alive and for which no caller waits. After 200 ms it goes ahead of the others.
    Look,
}

/// How many ms requests wait behind more useful ones, by priority.
const PATIENCE_BEHIND: [u128; 5] = [0, 1000, 1000, 200, 200];

/// Which part of the places of a call those have then, one after the other: half for renewals, always, and of the rest an
/// eighth each. Checks have half, if renewals leave it: each lock with waiters needs one in three seconds, and none has
/// more than one in a second.
const PARTS: [usize; 5] = [2, 8, 8, 8, 2];

/// Transport that sends batches; one per connection.
pub trait BatchTransport: Send + Sync + Sized + 'static {
    /// A request that waits for a permit, or for its reply.
    type Request: Send + 'static;

    /// The batcher of this connection.
    fn batcher(&self) -> &Batcher<Self::Request>;

    /// The runtime on which calls run to their end: a caller that is cancelled must not cost the
    /// others their replies.
    fn runtime(&self) -> &Handle;

    /// Sends `requests` in one call and delivers their replies. The implementation drops `order` as
    /// soon as they are written to the connection, or certainly never will be.
    fn send(
        self: Arc<Self>,
        requests: Vec<Self::Request>,
        order: SendOrderGuard<Self>,
    ) -> impl Future<Output = ()> + Send;

    /// Accepts one request. If it has to wait, `enqueue` makes it into a queued request and the
    /// place where its reply will be.
    fn dispatch<A>(
        self: &Arc<Self>,
        priority: Priority,
        enqueue: impl FnOnce() -> (Self::Request, A),
    ) -> Dispatch<Self, A> {
        let batcher = self.batcher();
        let mut queue = batcher.queue.lock();
        let is_below = queue.in_flight < batcher.limits.direct;
        if is_below && queue.unwritten == 0 && queue.waiting.len == 0 {
            queue.in_flight += 1;
            return Dispatch::Direct(InFlightPermit { of: self.clone(), requests: 1, calls: 0 });
        }
        let (request, reply) = enqueue();
        queue.waiting.push(priority, request);
        match queue.progress {
            Progress::None => {
                drop(queue);
                flush(self);
            }
            // The end of a call sends what waits, but perhaps none of the direct requests ever ends.
            Progress::Assumed if queue.calls == 0 => {
                queue.progress = Progress::Awaited;
                drop(queue);
                await_progress(self);
            }
            Progress::Assumed | Progress::Awaited => {}
        }
        Dispatch::Batched(reply)
    }

    /// Blocks further dispatch until the requests that are being sent now have been written to the
    /// connection. For [`send`](BatchTransport::send) only, which runs on the runtime: in a caller's
    /// future that is not polled again it would block all other requests.
    fn hold_order(self: &Arc<Self>) -> SendOrderGuard<Self> {
        self.batcher().queue.lock().unwritten += 1;
        SendOrderGuard(self.clone())
    }
}

/// How a request is sent.
#[derive(Debug)]
pub enum Dispatch<T: BatchTransport, A> {
    /// By its caller, in a call of its own; the caller holds the permit until the call has ended.
    Direct(InFlightPermit<T>),
    /// With others; the reply arrives here.
    Batched(A),
}

/// The requests at one connection.
#[derive(Debug)]
pub struct Batcher<R> {
    limits: Limits,
    queue: Mutex<Queue<R>>,
    is_closing: AtomicBool,
}

#[derive(Debug)]
struct Queue<R> {
    /// Requests in flight.
    in_flight: usize,
    /// Batched calls in flight.
    calls: usize,
    /// Calls whose requests have not been written to the connection yet. No other request overtakes
    /// them: a claim's release must not arrive before its attempt, which is sent even if its caller
    /// is gone.
    unwritten: usize,
    progress: Progress,
    waiting: Waiting<R>,
    /// A call of `flush` sends the waiting requests, and checks for more before it returns.
    is_flushing: bool,
}

#[derive(Debug)]
struct Waiting<R> {
    /// In the order of arrival: while all that wait go in one call, sorting them would only cost time.
    arrived: VecDeque<(Priority, Instant, R)>,
    /// By priority, of those that did not fit into a call.
    sorted: [VecDeque<(Instant, R)>; 5],
    len: usize,
    /// Of the last call, or of the first request since none waited: not each one reads the clock.
    now: Instant,
}

impl<R> Waiting<R> {
    fn new() -> Waiting<R> {
        let (arrived, sorted) = (VecDeque::new(), Default::default());
        Waiting { arrived, sorted, len: 0, now: Instant::now() }
    }

    fn push(&mut self, priority: Priority, request: R) {
        if self.len == 0 {
            self.now = Instant::now();
        }
        self.arrived.push_back((priority, self.now, request));
        self.len += 1;
    }

    /// The next ones, `most` at most. Those that have waited for too long have their [parts](PARTS) of the places: they
    /// are not starved, and do not starve others.
    fn take(&mut self, most: usize) -> Vec<R> {
        self.now = Instant::now();
        if self.len > most {
            for (priority, since, request) in self.arrived.drain(..) {
                self.sorted[priority as usize].push_back((since, request));
            }
        }
        let mut taken = Vec::with_capacity(self.len.min(most));
        for ((queue, patience), part) in self.sorted.iter_mut().zip(PATIENCE_BEHIND).zip(PARTS) {
            let places = (taken.len() + (most / part).max(1)).min(most);
            let is_late = |since: &Instant| (self.now - *since).as_millis() >= patience;
            while taken.len() < places && queue.front().is_some_and(|(since, _)| is_late(since)) {
                taken.extend(queue.pop_front().map(|(_, request)| request));
            }
        }
        for queue in &mut self.sorted {
            let count = queue.len().min(most - taken.len());
            taken.extend(queue.drain(..count).map(|(_, request)| request));
        }
        taken.extend(self.arrived.drain(..).map(|(.., request)| request));
        self.len -= taken.len();
        taken
    }
}

/// Whether direct requests end, while others wait for that: to be sent together with more of them, which
/// costs the store less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Assumed,
    /// A task is waiting for it, for [`PATIENCE`].
    Awaited,
    /// None has ended in that time, so that no request waits for one.
    None,
}

/// How long requests wait for direct ones. Most stores answer sooner, and a renewal has more time.
const PATIENCE: Duration = Duration::from_millis(20);

impl<R> Batcher<R> {
    /// An empty batcher.
    #[must_use]
    pub fn new(limits: Limits) -> Batcher<R> {
        let queue = Queue {
            in_flight: 0,
            calls: 0,
            unwritten: 0,
            progress: Progress::Assumed,
            waiting: Waiting::new(),
            is_flushing: false,
        };
        Batcher { limits, queue: Mutex::new(queue), is_closing: AtomicBool::new(false) }
    }

    /// From now on [`send`](BatchTransport::send) must send no attempt, nor repeat one.
    pub fn stop_attempts(&self) {
        self.is_closing.store(true, Ordering::SeqCst);
    }

    /// Whether attempts must not be sent any more.
    pub fn has_stopped_attempts(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
    }

    /// Removes the requests that still wait for a permit, to fail them with the connection.
    pub fn take_waiting(&self) -> Vec<R> {
        self.queue.lock().waiting.take(usize::MAX)
    }
}

/// Sends what waits for a direct request after [`PATIENCE`], whether or not one has ended.
fn await_progress<T: BatchTransport>(transport: &Arc<T>) {
    let awaiting = AwaitingProgress(transport.clone());
    transport.runtime().spawn(async move {
        let _awaiting = awaiting;
        tokio::time::sleep(PATIENCE).await;
    });
}

/// Ends also when the runtime drops the task.
struct AwaitingProgress<T: BatchTransport>(Arc<T>);

impl<T: BatchTransport> Drop for AwaitingProgress<T> {
    fn drop(&mut self) {
        {
            let mut queue = self.0.batcher().queue.lock();
            let is_stuck = queue.calls == 0 && queue.waiting.len > 0;
            queue.progress = if is_stuck { Progress::None } else { Progress::Assumed };
        }
        flush(&self.0);
    }
}

/// Sends waiting requests, while there is a permit for a call.
///
/// On a runtime that has ended a call is dropped as it is spawned, and its permit calls `flush`
/// again: that inner call returns at once, so that a long queue does not become a deep recursion.
fn flush<T: BatchTransport>(transport: &Arc<T>) {
    let mut is_flushing = false;
    while let Some(Call { requests, permit, order }) = next_call(transport, is_flushing) {
        is_flushing = true;
        let sender = transport.clone();
        transport.runtime().spawn(async move {
            let _permit = permit;
            sender.send(requests, order).await;
        });
    }
}

/// Requests that are sent together, with their permit.
struct Call<T: BatchTransport> {
    requests: Vec<T::Request>,
    permit: InFlightPermit<T>,
    order: SendOrderGuard<T>,
}

/// The next call, if the caller is the one that flushes, or while no other does.
fn next_call<T: BatchTransport>(transport: &Arc<T>, is_flushing: bool) -> Option<Call<T>> {
    let batcher = transport.batcher();
    let mut queue = batcher.queue.lock();
    if queue.is_flushing && !is_flushing {
        return None;
    }
    if queue.calls >= batcher.limits.calls || queue.unwritten > 0 || queue.waiting.len == 0 {
        queue.is_flushing = false;
        return None;
    }
    queue.is_flushing = true;
    let requests = queue.waiting.take(batcher.limits.per_call);
    queue.in_flight += requests.len();
    queue.calls += 1;
    queue.unwritten += 1;
    let permit = InFlightPermit { of: transport.clone(), requests: requests.len(), calls: 1 };
    Some(Call { requests, permit, order: SendOrderGuard(transport.clone()) })
}

/// Capacity for requests in flight; dropping it frees the capacity.
#[derive(Debug)]
pub struct InFlightPermit<T: BatchTransport> {
    of: Arc<T>,
    requests: usize,
    calls: usize,
}

impl<T: BatchTransport> Drop for InFlightPermit<T> {
    fn drop(&mut self) {
        {
            let mut queue = self.of.batcher().queue.lock();
            queue.in_flight -= self.requests;
            queue.calls -= self.calls;
            if self.calls == 0 && queue.progress == Progress::None {
                queue.progress = Progress::Assumed;
            }
        }
        flush(&self.of);
    }
}

/// Requests that have not been written to the connection yet; no other overtakes them until this is
/// dropped.
#[derive(Debug)]
pub struct SendOrderGuard<T: BatchTransport>(Arc<T>);

/// Awaits `sending`, which must write its request to the connection in its first poll or never; drops `order`
/// after that.
pub async fn in_order<F: Future>(sending: F, order: impl Sized) -> F::Output {
    let mut sending = pin!(sending);
    let first = poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await;
    drop(order);
    match first {
        Poll::Ready(output) => output,
        Poll::Pending => sending.await,
    }
}

impl<T: BatchTransport> Drop for SendOrderGuard<T> {
    fn drop(&mut self) {
        self.0.batcher().queue.lock().unwritten -= 1;
        flush(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;
    use tokio::time::Instant;

    use super::*;

    struct Connection {
        batcher: Batcher<u32>,
        runtime: Handle,
        /// The requests of each call.
        sent: Mutex<Vec<Vec<u32>>>,
        /// How many calls may end.
        ends: Semaphore,
    }

    impl Connection {
        fn new(limits: Limits, runtime: &Handle) -> Arc<Connection> {
            let (batcher, runtime) = (Batcher::new(limits), runtime.clone());
            let (sent, ends) = (Mutex::new(Vec::new()), Semaphore::new(0));
            Arc::new(Connection { batcher, runtime, sent, ends })
        }

        /// A direct request; its permit.
        fn direct(self: &Arc<Self>) -> InFlightPermit<Connection> {
            match self.dispatch(Priority::Attempt, || (0, ())) {
                Dispatch::Direct(permit) => permit,
                Dispatch::Batched(()) => panic!("not sent directly"),
            }
        }

        fn batched(self: &Arc<Self>, request: u32) {
            self.batched_as(Priority::Attempt, request);
        }

        fn batched_as(self: &Arc<Self>, priority: Priority, request: u32) {
            assert!(matches!(self.dispatch(priority, || (request, ())), Dispatch::Batched(())));
        }

        /// Lets the calls run until all of them wait, and ends `calls` of them.
        async fn run(&self, calls: usize) -> Vec<Vec<u32>> {
            self.ends.add_permits(calls);
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            std::mem::take(&mut *self.sent.lock())
        }
    }

    impl BatchTransport for Connection {
        type Request = u32;

        fn batcher(&self) -> &Batcher<u32> {
            &self.batcher
        }

        fn runtime(&self) -> &Handle {
            &self.runtime
        }

        async fn send(self: Arc<Self>, requests: Vec<u32>, order: SendOrderGuard<Self>) {
            self.sent.lock().push(requests);
            drop(order);
            self.ends.acquire().await.unwrap().forget();
        }
    }

    /// One caller that was not polled for longer than a TTL cost its process every lock.
    #[tokio::test]
    async fn requests_are_sent_although_no_direct_request_ever_ends() {
        let limits = Limits { direct: 2, calls: 2, per_call: 64 };
        let connection = Connection::new(limits, &Handle::current());
        let _suspended = [connection.direct(), connection.direct()];
        let started = Instant::now();
        connection.batched(1);
        while connection.run(0).await != [[1]] {
            assert!(started.elapsed() < 100 * PATIENCE, "it is not sent");
            tokio::time::sleep(PATIENCE / 10).await;
        }
        assert!(started.elapsed() >= PATIENCE / 2, "it did not wait for others");
        // From now on at once.
        connection.batched(2);
        assert_eq!(connection.run(0).await, [[2]]);
        // Both calls are in flight: the next has all that came meanwhile.
        connection.batched(3);
        connection.batched(4);
        assert!(connection.run(0).await.is_empty());
        assert_eq!(connection.run(1).await, [[3, 4]]);
        connection.run(2).await;
        connection.batched(5);
        assert_eq!(connection.run(1).await, [[5]]);
    }

    #[tokio::test]
    async fn no_request_overtakes_a_call_that_is_not_written() {
        let limits = Limits { direct: 2, calls: 2, per_call: 64 };
        let connection = Connection::new(limits, &Handle::current());
        let order = connection.hold_order();
        connection.batched(1);
        connection.batched(2);
        tokio::time::sleep(2 * PATIENCE).await;
        assert!(connection.run(2).await.is_empty());
        drop(order);
        // Below both limits, and yet behind the call that waits for the runtime.
        connection.batched(3);
        assert_eq!(connection.run(0).await, [vec![1, 2], vec![3]]);
        drop(connection.direct());
    }

    /// Behind renewals without an end.
    #[tokio::test(start_paused = true)]
    async fn the_useful_goes_first_and_nothing_is_starved() {
        let limits = Limits { direct: 1, calls: 1, per_call: 4 };
        let connection = Connection::new(limits, &Handle::current());
        let _permit = connection.direct();
        let renewals = || (0..4).for_each(|_| connection.batched_as(Priority::Renewal, 0));
        renewals();
        tokio::time::sleep(PATIENCE).await;
        let all = [Priority::Look, Priority::RollBack, Priority::Attempt, Priority::Held];
        for (priority, request) in all.into_iter().zip(1..) {
            (0..3).for_each(|_| connection.batched_as(priority, request));
        }
        let mut sent = Vec::new();
        for tenth in 0..13 {
            renewals();
            let calls = connection.run(1).await.concat().into_iter();
            sent.extend(calls.filter(|it| *it > 0).map(|it| (it, tenth)));
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        let of = |request| sent.iter().filter(move |it| it.0 == request).map(|it| it.1);
        assert!(of(1).eq([2, 3, 4]) && of(2).eq([2, 3, 4]), "{sent:?}");
        assert!(of(3).eq([10, 11, 12]) && of(4).eq([10, 11, 12]), "{sent:?}");
    }

    /// A process with 10,000 waiters ended by a stack overflow when its runtime did.
    #[test]
    fn a_long_queue_on_a_runtime_that_has_ended_is_dropped_without_recursion() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let limits = Limits { direct: 1, calls: 1, per_call: 1 };
        let connection = Connection::new(limits, runtime.handle());
        let permit = connection.direct();
        (0..200_000).for_each(|request| connection.batched(request));
        drop(runtime);
        drop(permit);
        assert!(connection.batcher.take_waiting().is_empty());
        let permit = connection.direct();
        // Its reply's sender is dropped, which tells its caller.
        connection.batched(1);
        assert!(connection.batcher.take_waiting().is_empty());
        drop(permit);
        drop(connection.direct());
    }
}
