//! The same question to several nodes at once.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

type Question<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Questions under way, each to a node of its own.
pub(crate) struct Fan<'a, T> {
    pending: Vec<(usize, Question<'a, T>)>,
    answered: Vec<(usize, T)>,
}

impl<'a, T> Fan<'a, T> {
    pub(crate) fn new() -> Fan<'a, T> {
        Fan { pending: Vec::new(), answered: Vec::new() }
    }

    pub(crate) fn ask(&mut self, node: usize, question: impl Future<Output = T> + Send + 'a) {
        self.pending.push((node, Box::pin(question)));
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

    fn poll_all(&mut self, cx: &mut Context<'_>) {
        let answered = &mut self.answered;
        self.pending.retain_mut(|(node, question)| match question.as_mut().poll(cx) {
            Poll::Ready(answer) => {
                answered.push((*node, answer));
                false
            }
            Poll::Pending => true,
        });
    }

    /// The next answer; `None` when there are no more to come. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<(usize, T)> {
        poll_fn(|cx| {
            if self.answered.is_empty() {
                self.poll_all(cx);
            }
            match self.answered.pop() {
                Some(answer) => Poll::Ready(Some(answer)),
                None if self.pending.is_empty() => Poll::Ready(None),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// The nodes that have not answered.
    pub(crate) fn pending(&self) -> impl Iterator<Item = usize> + '_ {
        self.pending.iter().map(|(node, _)| *node)
    }
}
