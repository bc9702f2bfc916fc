//! Lists and deletes, many of them in one request when many are under way.
//!
//! A request costs the servers far more than the work that most requests ask for: with 64 claims of
//! one client under way, their lists and deletes take longer than their creates. Creates are not
//! batched: in one transaction they would have one czxid, which is the fencing token.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fencelock_core::ReleaseOutcome;
use fencelock_core::batching::{BatchTransport, Batcher, Dispatch, Priority, SendOrderGuard};
use futures_util::future::{OptionFuture, join, join_all};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use zookeeper_client::{Error as ZkError, MultiReadResult};

use crate::error::{Certainty, RequestError, ZkResult};
use crate::queue::order::Listing;
use crate::sessions::batched_request::{Answer, BatchedRequest};
use crate::sessions::session::Session;

/// Sends `directly`, or has `request` sent with others.
async fn dispatch<T>(
    session: &Arc<Session>,
    priority: Priority,
    request: impl FnOnce(Answer<T>) -> BatchedRequest,
    directly: impl Future<Output = ZkResult<T>>,
) -> ZkResult<T> {
    let enqueue = || {
        let (answer, answered) = oneshot::channel();
        (request(answer), answered)
    };
    match session.dispatch(priority, enqueue) {
        Dispatch::Direct(_permit) => directly.await,
        // Only the end of the runtime drops an answer; whether the request was carried out is
        // unknown.
        Dispatch::Batched(answered) => answered.await.unwrap_or_else(|_| {
            let ended = "the runtime of the connection ended".to_owned();
            Err(ZkError::UnexpectedError(ended).into())
        }),
    }
}

/// The children of `lock`, including all whose creation was sent before.
pub(crate) async fn list(session: &Arc<Session>, lock: &str) -> ZkResult<Arc<Listing>> {
    let request = |answer| BatchedRequest::List(lock.to_owned(), answer);
    dispatch(session, Priority::Attempt, request, list_directly(session, lock)).await
}

/// Deletes a node.
pub(crate) async fn delete(session: &Arc<Session>, path: &str) -> ZkResult<ReleaseOutcome> {
    let request = |answer| BatchedRequest::Delete(path.to_owned(), answer);
    let deleted = dispatch(session, Priority::Held, request, delete_directly(session, path)).await;
    match deleted {
        Ok(()) => Ok(ReleaseOutcome::Removed),
        Err(error) if error.is_no_node() => Ok(ReleaseOutcome::Absent),
        Err(error) => Err(error),
    }
}

/// Deletes a node unless it has children; `false` if it has.
pub(crate) async fn delete_if_empty(session: &Arc<Session>, path: &str) -> ZkResult<bool> {
    match delete(session, path).await {
        Err(error) if error.is_not_empty() => Ok(false),
        deleted => deleted.map(|_| true),
    }
}

/// Lists the children of `lock` by a request of its own, which is sent at once.
pub(crate) async fn list_directly(session: &Session, lock: &str) -> ZkResult<Arc<Listing>> {
    let client = session.client()?;
    let names = session.read(client.list_children(lock)).await?;
    Ok(Arc::new(Listing::new(names)))
}

async fn delete_directly(session: &Session, path: &str) -> ZkResult<()> {
    let client = session.client()?;
    let sent = session.mark_sent();
    session.write(sent, client.delete(path, None)).await
}

async fn list_all(session: &Session, lists: HashMap<String, Vec<Answer<Arc<Listing>>>>) {
    let answer_all = |answers: Vec<Answer<Arc<Listing>>>, listing: ZkResult<Arc<Listing>>| {
        answers.into_iter().for_each(|answer| drop(answer.send(listing.clone())));
    };
    let listed = if session.no_multi_read.load(Ordering::Acquire) {
        Err(ZkError::Unimplemented.into())
    } else {
        try_list_all(session, lists.keys()).await
    };
    match listed {
        Ok(all) => {
            let answered = lists.into_values().zip(all);
            answered.for_each(|(answers, listing)| answer_all(answers, listing));
        }
        Err(error) if error.certainty() == Certainty::Declined => {
            if error.is_unimplemented() {
                session.no_multi_read.store(true, Ordering::Release);
            }
            let lists = lists.into_iter();
            join_all(lists.map(async |(lock, answers)| {
                answer_all(answers, list_directly(session, &lock).await);
            }))
            .await;
        }
        Err(error) => {
            lists.into_values().for_each(|answers| answer_all(answers, Err(error.clone())));
            fail_waiting(session, &error);
        }
    }
}

async fn try_list_all(
    session: &Session,
    locks: impl Iterator<Item = &String>,
) -> ZkResult<Vec<ZkResult<Arc<Listing>>>> {
    let client = session.client()?;
    let mut reader = client.new_multi_reader();
    for lock in locks {
        reader.add_get_children(lock)?;
    }
    let all = session.read(reader.commit()).await?;
    let listing = |result| match result {
        MultiReadResult::Children { children } => Ok(Arc::new(Listing::new(children))),
        MultiReadResult::Error { err } => Err(err.into()),
        other => Err(ZkError::UnexpectedError(format!("not a list: {other:?}")).into()),
    };
    Ok(all.into_iter().map(listing).collect())
}

async fn delete_all(session: &Session, deletes: Vec<(String, Answer<()>)>) {
    match try_delete_all(session, &deletes).await {
        Ok(()) => deletes.into_iter().for_each(|(_, answer)| drop(answer.send(Ok(())))),
        // One of the nodes does not exist any more, and so none was deleted.
        Err(error) if error.certainty() == Certainty::Declined => {
            let deletes = deletes.into_iter();
            join_all(deletes.map(async |(path, answer)| {
                let _ = answer.send(delete_directly(session, &path).await);
            }))
            .await;
        }
        Err(error) => {
            let deletes = deletes.into_iter();
            deletes.for_each(|(_, answer)| drop(answer.send(Err(error.clone()))));
            fail_waiting(session, &error);
        }
    }
}

/// `deletes` must not be empty: an empty request would prove nothing about the session.
async fn try_delete_all(session: &Session, deletes: &[(String, Answer<()>)]) -> ZkResult<()> {
    let client = session.client()?;
    let mut writer = client.new_multi_writer();
    for (path, _) in deletes {
        writer.add_delete(path, None)?;
    }
    let sent = session.mark_sent();
    session.write(sent, writer.commit()).await.map(drop)
}

/// Fails the requests that wait for the next call: they would meet the same error.
fn fail_waiting(session: &Session, error: &RequestError) {
    session.batcher.take_waiting().into_iter().for_each(|request| request.fail(error.clone()));
}

impl BatchTransport for Session {
    type Request = BatchedRequest;

    fn batcher(&self) -> &Batcher<BatchedRequest> {
        &self.batcher
    }

    fn runtime(&self) -> &Handle {
        &self.runtime
    }

    async fn send(self: Arc<Self>, steps: Vec<BatchedRequest>, order: SendOrderGuard<Self>) {
        // It is safe that later requests overtake these: a claim's list and delete are asked for
        // after its create was sent.
        drop(order);
        let mut lists: HashMap<_, Vec<_>> = HashMap::new();
        let mut deletes = Vec::new();
        for step in steps {
            match step {
                // The receiver is gone: the release of its claim follows.
                BatchedRequest::List(_, answer) if answer.is_closed() => {}
                BatchedRequest::Delete(_, answer) if answer.is_closed() => {}
                BatchedRequest::List(lock, answer) => lists.entry(lock).or_default().push(answer),
                BatchedRequest::Delete(path, answer) => deletes.push((path, answer)),
            }
        }
        join(
            OptionFuture::from((!deletes.is_empty()).then(|| delete_all(&self, deletes))),
            OptionFuture::from((!lists.is_empty()).then(|| list_all(&self, lists))),
        )
        .await;
    }
}
