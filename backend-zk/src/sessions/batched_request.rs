//! The requests that may share a call with others: lists and deletes.

use std::sync::Arc;

use fencelock_core::batching::Limits;
use tokio::sync::oneshot;

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
