//! The same question to several nodes at once.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::{FuturesUnordered, Stream};
use tokio::task::coop::{Unconstrained, unconstrained};

/// Questions under way, each with the number that its answer comes with.
pub(crate) struct FanOut<F: Future + ?Sized> {
    /// Not asked yet.
    fresh: Vec<Numbered<F>>,
    questions: FuturesUnordered<Numbered<F>>,
    pending: Vec<usize>,
    answered: Vec<(usize, F::Output)>,
}

/// Questions of any kind that can be kept.
pub(crate) type BoxedFanOut<T> = FanOut<dyn Future<Output = T> + Send>;

struct Numbered<F: ?Sized> {
    number: usize,
    /// Not held up by what else its task has done: a question that is to be sent at once is.
    question: Unconstrained<Pin<Box<F>>>,
}

impl<F: Future + ?Sized> Future for Numbered<F> {
    type Output = (usize, F::Output);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let number = self.number;
        Pin::new(&mut self.question).poll(cx).map(|answer| (number, answer))
    }
}

impl<F: Future + ?Sized> FanOut<F> {
    pub(crate) fn new() -> FanOut<F> {
        FanOut {
            fresh: Vec::new(),
            questions: FuturesUnordered::new(),
            pending: Vec::new(),
            answered: Vec::new(),
        }
    }

    pub(crate) fn ask(&mut self, number: usize, question: Pin<Box<F>>) {
        self.fresh.push(Numbered { number, question: unconstrained(question) });
        self.pending.push(number);
    }

    /// Sends all of them, unless `unless` says at that moment that they must not be.
    ///
    /// Nothing can come between the word and the sending when `unless` holds a lock that who
    /// changes it takes too.
    pub(crate) async fn send<G>(&mut self, unless: impl Fn() -> Option<G>) -> bool {
        poll_fn(|cx| {
            let Some(_held) = unless() else { return Poll::Ready(false) };
            self.poll_all(cx);
            Poll::Ready(true)
        })
        .await
    }

    /// Polls whoever was woken, and each of them at the first time: what is polled is sent. The
    /// collection by itself may put off some of them.
    fn poll_all(&mut self, cx: &mut Context<'_>) {
        for mut question in self.fresh.drain(..) {
            match Pin::new(&mut question).poll(cx) {
                Poll::Ready(answer) => self.answered.push(answer),
                Poll::Pending => self.questions.push(question),
            }
        }
        while let Poll::Ready(Some(answer)) = Pin::new(&mut self.questions).poll_next(cx) {
            self.answered.push(answer);
        }
    }

    /// The next answer; `None` when there are no more to come. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<(usize, F::Output)> {
        poll_fn(|cx| {
            if self.answered.is_empty() {
                self.poll_all(cx);
            }
            match self.answered.pop() {
                Some((number, answer)) => {
                    self.pending.retain(|pending| *pending != number);
                    Poll::Ready(Some((number, answer)))
                }
                None if self.pending.is_empty() => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Whose answer has not been taken.
    pub(crate) fn pending(&self) -> impl Iterator<Item = usize> + '_ {
        self.pending.iter().copied()
    }
}
