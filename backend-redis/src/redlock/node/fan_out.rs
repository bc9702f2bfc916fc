//! The same request to several nodes at once.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, Stream};
use tokio::task::coop::{Unconstrained, unconstrained};
use tokio::time::Instant;

use super::written::Written;
use crate::redlock::node_set::NodeSet;
use crate::server::batch::Ticket;

/// Requests under way, each with its node.
pub(crate) struct FanOut<'a, T> {
    pub(crate) written: Arc<Written>,
    unsent: Vec<AtNode<'a, T>>,
    in_flight: FuturesUnordered<AtNode<'a, T>>,
    replies: Vec<(usize, T)>,
}

struct AtNode<'a, T> {
    node: usize,
    ticket: Arc<dyn Ticket>,
    /// Exempt from tokio's cooperative budget: whatever else the task has done, the request is sent
    /// when it is polled.
    request: Unconstrained<Pin<Box<dyn Future<Output = T> + Send + 'a>>>,
}

impl<T> Future for AtNode<'_, T> {
    type Output = (usize, T);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let node = self.node;
        let reply = Pin::new(&mut self.request).poll(cx);
        if reply.is_ready() {
            // It may be an error instead of being written: it is not waited for, either.
            self.ticket.redeem();
        }
        reply.map(|reply| (node, reply))
    }
}

impl<'a, T> FanOut<'a, T> {
    /// `needed` are a majority of the nodes.
    pub(crate) fn new(needed: usize) -> FanOut<'a, T> {
        let (written, in_flight) = (Written::new(needed), FuturesUnordered::new());
        FanOut { written, unsent: Vec::new(), in_flight, replies: Vec::new() }
    }

    /// Adds a request, to be sent by the next call of [`send`](Self::send) or [`next`](Self::next).
    pub(crate) fn ask<F>(&mut self, node: usize, request: impl FnOnce(Arc<dyn Ticket>) -> F)
    where
        F: Future<Output = T> + Send + 'a,
    {
        let ticket = self.written.ticket(node);
        let request = unconstrained(
            Box::pin(request(ticket.clone())) as Pin<Box<dyn Future<Output = T> + Send + 'a>>
        );
        self.unsent.push(AtNode { node, ticket, request });
    }

    /// Sends all requests, unless `guard` returns `None`; whether they were sent.
    ///
    /// `guard` decides at the moment of sending: if it returns a lock's guard, nothing that needs
    /// that lock can happen between the decision and the last request.
    pub(crate) async fn send<G>(&mut self, guard: impl Fn() -> Option<G>) -> bool {
        poll_fn(|cx| {
            let Some(_held) = guard() else { return Poll::Ready(false) };
            self.poll_all(cx);
            Poll::Ready(true)
        })
        .await
    }

    /// Polls every new request, since the first poll sends it, and those that were woken. The
    /// collection alone might leave some for later.
    fn poll_all(&mut self, cx: &mut Context<'_>) {
        for mut request in self.unsent.drain(..) {
            match Pin::new(&mut request).poll(cx) {
                Poll::Ready(reply) => self.replies.push(reply),
                Poll::Pending => self.in_flight.push(request),
            }
        }
        while let Poll::Ready(Some(reply)) = Pin::new(&mut self.in_flight).poll_next(cx) {
            self.replies.push(reply);
        }
    }

    /// The next reply and its node; `None` after the last one. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<(usize, T)> {
        poll_fn(|cx| {
            if self.replies.is_empty() {
                self.poll_all(cx);
            }
            match self.replies.pop() {
                Some(reply) => Poll::Ready(Some(reply)),
                None if self.in_flight.is_empty() => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Like [`next`](Self::next); `None` also `limit` after a majority of the requests was written, or after `asked`.
    pub(crate) async fn next_within(
        &mut self,
        asked: Instant,
        limit: Duration,
    ) -> Option<(usize, T)> {
        let written = self.written.clone();
        tokio::select! {
            biased;
            reply = self.next() => reply,
            () = written.overdue(asked, limit) => None,
        }
    }

    /// The nodes that have not replied to what was written to them.
    pub(crate) fn silent(&self) -> NodeSet {
        NodeSet::of(self.pending()) & self.written.nodes()
    }

    /// The nodes of the requests whose reply [`next`](Self::next) has not returned.
    pub(crate) fn pending(&self) -> impl Iterator<Item = usize> {
        let requests = self.unsent.iter().chain(self.in_flight.iter()).map(|request| request.node);
        requests.chain(self.replies.iter().map(|(node, _)| *node))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending().next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn requests_are_sent_under_the_guard_or_not_at_all() {
        let (state, sent) = (Mutex::new(()), AtomicUsize::new(0));
        let mut fan_out = FanOut::new(2);
        for node in 0..3 {
            let (state, sent) = (&state, &sent);
            fan_out.ask(node, |_| async move {
                assert!(state.try_lock().is_err(), "a release could be sent first");
                sent.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            });
        }
        assert!(!fan_out.send(|| None::<()>).await);
        assert_eq!(sent.load(Ordering::Relaxed), 0, "an extension after a release");
        assert!(fan_out.send(|| state.lock().ok()).await);
        assert_eq!(sent.load(Ordering::Relaxed), 3);
    }

    /// A request may wait for a second behind those of others in this client: no node is silent by that.
    #[tokio::test(start_paused = true)]
    async fn a_node_has_its_time_from_the_write_on() {
        const SECOND: Duration = Duration::from_secs(1);
        for (written_after, replies_after, comes) in [(5, 1, true), (0, 3, false)] {
            let mut fan_out = FanOut::new(2);
            for node in 0..3 {
                fan_out.ask(node, |ticket| async move {
                    tokio::time::sleep(written_after * SECOND).await;
                    ticket.redeem();
                    tokio::time::sleep(replies_after * SECOND).await;
                });
            }
            let reply = fan_out.next_within(Instant::now(), 2 * SECOND).await;
            assert_eq!(reply.is_some(), comes, "{written_after} {replies_after}");
        }
    }
}
