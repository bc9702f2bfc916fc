//! Sends requests of many tasks together: steps of claims in one transaction, which costs one wait for
//! the disk, and renewals and looks in one call each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fencelock_core::batching::{
    BatchTransport, Batcher, Dispatch, Limits, Priority, SendOrderGuard, in_order,
};
use fencelock_core::sync::Mutex;
use fencelock_core::{Error, Result};
use tokio::sync::oneshot;

use crate::connection::{ConnectOptions, PushHandler, Session, SupervisedSession};
use crate::error::{ROW_IS_TAKEN, closed, unreachable};
use crate::requests::{Answer, Look, Owned, Request, is_in_vain, look, renew, steps};

/// A direct step behind another one on the same session would wait for it in any case. Two calls: the server works on
/// one while the answers of the other are read.
const LIMITS: Limits = Limits { direct: 1, calls: 2, per_call: 64 };

/// After a wait in vain, of up to 200 ms.
const NO_WAIT: Duration = Duration::from_secs(1);

/// A session; concurrent requests to it share calls.
#[derive(Debug)]
pub(crate) struct BatchingSession {
    pub(crate) session: SupervisedSession,
    pub(crate) options: Arc<ConnectOptions>,
    batcher: Batcher<Pending>,
    /// When a request last waited for a row in vain.
    waited_in_vain: Mutex<Option<Instant>>,
}

/// A request that waits to be sent, or for its answer.
#[derive(Debug)]
pub(crate) struct Pending {
    request: Request,
    answer: oneshot::Sender<Result<Answer>>,
    /// It was sent alone, and is to be repeated.
    again: bool,
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
        let (mut requests, mut order) = (requests, order);
        loop {
            let mut left = self.send_together(&session, requests, order).await;
            if left.is_empty() {
                // Those who have an answer now often ask again at once. Without their turn before this permit
                // ends, the first of them would send a call of its own, which waits for the disk and has the
                // others wait.
                return tokio::task::yield_now().await;
            }
            // One of them waits for its row, and then the others may have theirs. Not for a caller that is gone:
            // its release may have been sent, and from here on it cannot be before this is.
            order = self.hold_order();
            let first = left.remove(0);
            if self.is_wanted(&first) {
                let sending = Box::pin(self.send_alone(&session, &first.request, first.again));
                match in_order(sending, order).await {
                    Ok(Some(answer)) => first.deliver(Ok(answer)),
                    Ok(None) => left.push(Pending { again: true, ..first }),
                    Err(error) => {
                        let in_vain = error.is_retryable().then(|| error.clone());
                        first.deliver(Err(error));
                        if let Some(error) = in_vain {
                            return fail_all(left, &error);
                        }
                    }
                }
                order = self.hold_order();
            }
            requests = left;
        }
    }
}

impl BatchingSession {
    pub(crate) fn start(
        options: Arc<ConnectOptions>,
        handler: Arc<dyn PushHandler>,
    ) -> Arc<BatchingSession> {
        let session = SupervisedSession::start(options.clone(), handler);
        let batcher = Batcher::new(LIMITS);
        Arc::new(BatchingSession { session, options, batcher, waited_in_vain: Mutex::default() })
    }

    fn is_wanted(&self, pending: &Pending) -> bool {
        let is_over = || self.batcher.has_stopped_attempts();
        !matches!(pending.request, Request::Attempt(_) if is_over()) && !pending.answer.is_closed()
    }

    /// Makes one request. If it is dropped half-way, it may or may not be executed, but never after a
    /// later one.
    pub(crate) async fn ask(
        self: &Arc<Self>,
        request: Request,
        priority: Priority,
    ) -> Result<Answer> {
        let mut request = Some(request);
        let waiting = || {
            let (answer, answered) = oneshot::channel();
            let request = request.take().unwrap_or_else(|| unreachable!("called once"));
            (Pending { request, answer, again: false }, answered)
        };
        match self.dispatch(priority, waiting) {
            Dispatch::Direct(_permit) => {
                let request = request.unwrap_or_else(|| unreachable!("not queued"));
                Box::pin(async {
                    let session = self.session.active().await?;
                    let mut again = false;
                    loop {
                        if let Some(answer) = self.send_alone(&session, &request, again).await? {
                            return Ok(answer);
                        }
                        again = true;
                    }
                })
                .await
            }
            // Only the end of the runtime drops an answer.
            Dispatch::Batched(answer) => answer.await.unwrap_or_else(|_| Err(closed())),
        }
    }

    /// Sends one request, which may wait for the row of its lock, as long as the server lets it. The renewals of
    /// all locks wait behind it, so after a wait in vain no request waits for a while. `None`: it is to be
    /// repeated. `again`: it is repeated already.
    async fn send_alone(
        &self,
        session: &Session,
        request: &Request,
        again: bool,
    ) -> Result<Option<Answer>> {
        let waited = *self.waited_in_vain.lock();
        if waited.is_some_and(|at| at.elapsed() < NO_WAIT) {
            // A grant that has notified others is to be repeated too; the second time no other is to be notified.
            return match request.send(session, &self.options, false).await? {
                None if again => Err(unreachable(ROW_IS_TAKEN)),
                answer => Ok(answer),
            };
        }
        let answer = request.send(session, &self.options, true).await;
        if is_in_vain(&answer) {
            let mut waited = self.waited_in_vain.lock();
            *waited = Some(Instant::now());
        }
        answer
    }

    /// Sends requests in a call of each kind; returns those that are to be repeated.
    async fn send_together(
        self: &Arc<Self>,
        session: &Session,
        requests: Vec<Pending>,
        order: SendOrderGuard<Self>,
    ) -> Vec<Pending> {
        let wanted = requests.into_iter().filter(|pending| self.is_wanted(pending));
        let (mut claims, mut leases, mut looks) = (Vec::new(), Vec::new(), Vec::new());
        for pending in wanted {
            match &pending.request {
                Request::Attempt(_) | Request::Release(_) => claims.push(pending),
                Request::Renew(..) => leases.push(pending),
                Request::Look(_) => looks.push(pending),
            }
        }
        let options = &*self.options;
        // Each has its answer when it comes.
        let calls = async {
            tokio::join!(
                async {
                    let requests: Vec<&Request> = claims.iter().map(|it| &it.request).collect();
                    let made = match requests.as_slice() {
                        [] => return Vec::new(),
                        [one] => {
                            let answer = self.send_alone(session, one, claims[0].again).await;
                            answer.map(|answer| vec![answer])
                        }
                        several => steps(session, options, several).await,
                    };
                    match made {
                        Ok(answers) => deliver(claims, answers),
                        Err(error) if error.is_retryable() || claims.len() == 1 => {
                            fail_all(claims, &error);
                            Vec::new()
                        }
                        // A refusal that is due to one step must not fail the others.
                        Err(_) => claims,
                    }
                },
                async {
                    let requests: Vec<(&Owned, i64)> = leases.iter().filter_map(lease_of).collect();
                    if requests.is_empty() {
                        return Vec::new();
                    }
                    // One that waited for a row would have the others wait, until their ends.
                    match renew(session, options, &requests, false).await {
                        Ok(answers) => deliver(leases, answers),
                        Err(error) => {
                            fail_all(leases, &error);
                            Vec::new()
                        }
                    }
                },
                async {
                    let requests: Vec<&Look> = looks.iter().filter_map(look_of).collect();
                    if requests.is_empty() {
                        return;
                    }
                    // The answer covers all locks; each request ignores the waiters of the others.
                    let seen = look(session, options, &requests).await.map(Answer::Look);
                    looks.into_iter().for_each(|pending| pending.deliver(seen.clone()));
                },
            )
        };
        let (mut left, of_leases, ()) = in_order(calls, order).await;
        left.extend(of_leases);
        left
    }
}

/// Delivers the answers; the requests that are to be repeated.
fn deliver(requests: Vec<Pending>, answers: Vec<Option<Answer>>) -> Vec<Pending> {
    let mut left = Vec::new();
    for (pending, answer) in requests.into_iter().zip(answers) {
        match answer {
            Some(answer) => pending.deliver(Ok(answer)),
            None => left.push(pending),
        }
    }
    left
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

fn fail_all(requests: Vec<Pending>, error: &Error) {
    requests.into_iter().for_each(|pending| pending.deliver(Err(error.clone())));
}
