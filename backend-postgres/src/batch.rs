//! Sends requests of many tasks together: steps of claims in one transaction, which costs one wait for
//! the disk, and renewals and looks in one call each.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use fencelock_core::batching::{BatchTransport, Batcher, Dispatch, Limits, SendOrderGuard};
use fencelock_core::{Error, Result};
use futures_util::future::join_all;
use futures_util::poll;
use tokio::sync::oneshot;

use crate::connection::{ConnectOptions, PushHandler, Session, SupervisedSession};
use crate::error::closed;
use crate::requests::{Answer, Look, Owned, Request, look, renew, steps};

/// A step behind another one on the same session waits for it in any case.
const LIMITS: Limits = Limits { direct: 1, calls: 1, per_call: 64 };

/// A session; concurrent requests to it share calls.
#[derive(Debug)]
pub(crate) struct BatchingSession {
    pub(crate) session: SupervisedSession,
    pub(crate) options: Arc<ConnectOptions>,
    batcher: Batcher<Pending>,
}

/// A request that waits to be sent, or for its answer.
#[derive(Debug)]
pub(crate) struct Pending {
    request: Request,
    answer: oneshot::Sender<Result<Answer>>,
}

impl Pending {
    fn deliver(self, answer: Result<Answer>) {
        // An error means that the request was cancelled: its claim's release follows.
        let _ = self.answer.send(answer);
    }
}

impl BatchTransport for BatchingSession {
    type Request = Pending;

    fn batcher(&self) -> &Batcher<Pending> {
        &self.batcher
    }

    fn runtime(&self) -> &tokio::runtime::Handle {
        &self.options.runtime
    }

    async fn send(self: Arc<Self>, requests: Vec<Pending>, order: SendOrderGuard<Self>) {
        let session = match self.session.active().await {
            Ok(session) => session,
            Err(error) => {
                fail_all(requests, &error);
                // They have waited for the same session.
                return fail_all(self.batcher.take_waiting(), &error);
            }
        };
        let alone = self.send_together(&session, requests, order).await;
        if alone.is_empty() {
            // Those who have an answer now often ask again at once. Without their turn before this permit ends,
            // the first of them would send a call of its own, which waits for the disk and has the others wait.
            return tokio::task::yield_now().await;
        }
        let mut locks = HashSet::new();
        let (first, others): (Vec<_>, Vec<_>) =
            alone.into_iter().partition(|pending| locks.insert(pending.request.key().to_vec()));
        let stuck = self.send_alone(&session, first).await;
        let others =
            others.into_iter().filter_map(|pending| match stuck.get(pending.request.key()) {
                Some(error) => {
                    pending.deliver(Err(error.clone()));
                    None
                }
                None => Some(pending),
            });
        self.send_alone(&session, others.collect()).await;
    }
}

impl BatchingSession {
    pub(crate) fn start(
        options: Arc<ConnectOptions>,
        handler: Arc<dyn PushHandler>,
    ) -> Arc<BatchingSession> {
        let session = SupervisedSession::start(options.clone(), handler);
        Arc::new(BatchingSession { session, options, batcher: Batcher::new(LIMITS) })
    }

    /// Makes one request. If it is dropped half-way, it may or may not be executed, but never after a
    /// later one.
    pub(crate) async fn ask(self: &Arc<Self>, request: Request) -> Result<Answer> {
        let mut request = Some(request);
        let waiting = || {
            let (answer, answered) = oneshot::channel();
            let request = request.take().unwrap_or_else(|| unreachable!("called once"));
            (Pending { request, answer }, answered)
        };
        match self.dispatch(waiting) {
            Dispatch::Direct(_permit) => {
                let request = request.unwrap_or_else(|| unreachable!("not queued"));
                Box::pin(async {
                    let session = self.session.active().await?;
                    request.send(&session, &self.options).await
                })
                .await
            }
            // Only the end of the runtime drops an answer.
            Dispatch::Batched(answer) => answer.await.unwrap_or_else(|_| Err(closed())),
        }
    }

    /// Sends each in a call of its own: where they wait for a row, they do so one after the other. The locks
    /// whose rows were not had in time: others who wait for them now would only have everybody wait.
    async fn send_alone(
        self: &Arc<Self>,
        session: &Session,
        requests: Vec<Pending>,
    ) -> HashMap<Vec<u8>, Error> {
        let order = self.hold_order();
        let mut requests = requests;
        requests.retain(|pending| !pending.answer.is_closed());
        let sending = join_all(
            requests.iter().map(|pending| Box::pin(pending.request.send(session, &self.options))),
        );
        let answers = leaving(sending, order).await;
        let mut stuck = HashMap::new();
        for (pending, answer) in requests.into_iter().zip(answers) {
            if let Err(error) = &answer
                && error.is_retryable()
            {
                stuck.insert(pending.request.key().to_vec(), error.clone());
            }
            pending.deliver(answer);
        }
        stuck
    }

    /// Sends requests in up to three calls; returns those that are to be sent alone.
    async fn send_together(
        self: &Arc<Self>,
        session: &Session,
        requests: Vec<Pending>,
        order: SendOrderGuard<Self>,
    ) -> Vec<Pending> {
        let wanted = requests.into_iter().filter(|pending| !pending.answer.is_closed());
        let (mut claims, mut leases, mut looks) = (Vec::new(), Vec::new(), Vec::new());
        for pending in wanted {
            match &pending.request {
                Request::Attempt(_) | Request::Release(_) => claims.push(pending),
                Request::Renew(..) => leases.push(pending),
                Request::Look(_) => looks.push(pending),
            }
        }
        let options = &*self.options;
        let of_claims: Vec<&Request> = claims.iter().map(|pending| &pending.request).collect();
        let of_leases: Vec<(&Owned, i64)> = leases.iter().filter_map(lease_of).collect();
        let of_looks: Vec<&Look> = looks.iter().filter_map(look_of).collect();
        let calls = async {
            tokio::join!(
                async {
                    match of_claims.as_slice() {
                        [] => Ok(Vec::new()),
                        [one] => one.send(session, options).await.map(|answer| vec![Some(answer)]),
                        several => steps(session, options, several).await,
                    }
                },
                async {
                    if of_leases.is_empty() {
                        return Ok(Vec::new());
                    }
                    // One that waited for a row would have the others wait, until their ends.
                    renew(session, options, &of_leases, false).await
                },
                async {
                    if of_looks.is_empty() {
                        return Ok(Vec::new());
                    }
                    look(session, options, &of_looks).await
                },
            )
        };
        let (made, held, seen) = leaving(calls, order).await;
        let mut alone = Vec::new();
        let mut deliver = |requests: Vec<Pending>, answers: Vec<Option<Answer>>| {
            for (pending, answer) in requests.into_iter().zip(answers) {
                match answer {
                    Some(answer) => pending.deliver(Ok(answer)),
                    None => alone.push(pending),
                }
            }
        };
        match held {
            Ok(answers) => deliver(leases, answers),
            Err(error) => fail_all(leases, &error),
        }
        for pending in looks {
            // Of all locks: a waiter that is not of this one is no one's of this request.
            pending.deliver(
                seen.as_ref().map(|seen| Answer::Look(seen.clone())).map_err(Clone::clone),
            );
        }
        match made {
            Ok(answers) => deliver(claims, answers),
            Err(error) if error.is_retryable() || claims.len() == 1 => fail_all(claims, &error),
            // A refusal that is due to one step must not fail the others.
            Err(_) => alone.extend(claims),
        }
        alone
    }
}

fn lease_of(pending: &Pending) -> Option<(&Owned, i64)> {
    match &pending.request {
        Request::Renew(of, ttl) => Some((of, *ttl)),
        _ => None,
    }
}

fn look_of(pending: &Pending) -> Option<&Look> {
    match &pending.request {
        Request::Look(look) => Some(look),
        _ => None,
    }
}

/// Awaits `sending`; drops `order` after its first poll, which sends.
async fn leaving<F: Future>(sending: F, order: impl Sized) -> F::Output {
    let mut sending = pin!(sending);
    let first = poll!(sending.as_mut());
    drop(order);
    match first {
        Poll::Ready(output) => output,
        Poll::Pending => sending.await,
    }
}

fn fail_all(requests: Vec<Pending>, error: &Error) {
    requests.into_iter().for_each(|pending| pending.deliver(Err(error.clone())));
}
