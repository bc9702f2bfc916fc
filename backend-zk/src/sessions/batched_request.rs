//! The requests that may share a call with others: lists and deletes.

use std::sync::Arc;

use fencelock_core::batching::Limits;
use tokio::sync::oneshot;
use zookeeper_client::Error as ZkError;

use crate::error::{RequestError, ZkResult};
use crate::queue::order::Listing;

pub(crate) const LIMITS: Limits = Limits { direct: 6, calls: 2, per_call: 64 };

pub(crate) type Answer<T> = oneshot::Sender<ZkResult<T>>;

/// A list of a lock's nodes or a delete, with the channel for its answer.
#[derive(Debug)]
pub(crate) enum BatchedRequest {
    List(String, Answer<Arc<Listing>>),
    Delete(String, Answer<()>),
}

impl BatchedRequest {
    /// Answers with `error`. The receiver may be gone: the release of its claim follows.
    pub(crate) fn fail(self, error: RequestError) {
        match self {
            BatchedRequest::List(_, answer) => drop(answer.send(Err(error))),
            BatchedRequest::Delete(_, answer) => drop(answer.send(Err(error))),
        }
    }
}

/// A request, and the receiver of its answer.
pub(crate) fn with_answer<T>(
    request: impl FnOnce(Answer<T>) -> BatchedRequest,
) -> (BatchedRequest, oneshot::Receiver<ZkResult<T>>) {
    let (answer, answered) = oneshot::channel();
    (request(answer), answered)
}

pub(crate) async fn answer_of<T>(answered: oneshot::Receiver<ZkResult<T>>) -> ZkResult<T> {
    // Only the end of the runtime drops an answer; whether the request was carried out is unknown.
    let ended = || ZkError::UnexpectedError("the runtime of the connection ended".to_owned());
    answered.await.unwrap_or_else(|_| Err(ended().into()))
}
