//! The lists and deletes of a crowd, many in one request.
//!
//! A request costs the servers far more than what most do: with 64 claims of one process under way,
//! their lists and deletes take longer than their creates. Creates are not shared: in one
//! transaction they would have one czxid, which is the fencing token.

use std::collections::HashMap;
use std::sync::Arc;

use fencelock_core::batching::{BatchTransport, Batcher, Dispatch, Limits, SendOrderGuard};
use futures_util::future::{OptionFuture, join, join_all};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use zookeeper_client::{Error as ZkError, MultiReadResult};

use crate::error::{Certainty, RequestError, ZkResult};
use crate::order::Listing;
use crate::session::Session;

pub(crate) const LIMITS: Limits = Limits { direct: 6, calls: 2, per_call: 64 };

/// A lock's nodes, for all who asked at the same time.
pub(crate) type Names = Arc<Listing>;

type Answer<T> = oneshot::Sender<ZkResult<T>>;

/// A request that may go with others.
#[derive(Debug)]
pub(crate) enum BatchedRequest {
    List(String, Answer<Names>),
    Delete(String, Answer<()>),
}

impl BatchedRequest {
    fn fail(self, error: RequestError) {
        // Nobody may listen any more: its claim's release follows.
        match self {
            BatchedRequest::List(_, answer) => drop(answer.send(Err(error))),
            BatchedRequest::Delete(_, answer) => drop(answer.send(Err(error))),
        }
    }
}

/// A step, and where its answer will be.
fn waiting<T>(
    step: impl FnOnce(Answer<T>) -> BatchedRequest,
) -> (BatchedRequest, oneshot::Receiver<ZkResult<T>>) {
    let (answer, answered) = oneshot::channel();
    (step(answer), answered)
}

async fn answer_of<T>(answered: oneshot::Receiver<ZkResult<T>>) -> ZkResult<T> {
    // Only the end of the runtime drops an answer: nobody knows what became of the request.
    let ended = || ZkError::UnexpectedError("the runtime of the connection ended".to_owned());
    answered.await.unwrap_or_else(|_| Err(ended().into()))
}

impl Session {
    /// The names of the children of `lock`, all of those whose creation was sent before.
    pub(crate) async fn list(self: &Arc<Self>, lock: &str) -> ZkResult<Names> {
        match self.dispatch(|| waiting(|answer| BatchedRequest::List(lock.to_owned(), answer))) {
            Dispatch::Direct(_permit) => self.list_alone(lock).await,
            Dispatch::Batched(answered) => answer_of(answered).await,
        }
    }

    /// Deletes a node.
    pub(crate) async fn delete(self: &Arc<Self>, path: &str) -> ZkResult<()> {
        match self.dispatch(|| waiting(|answer| BatchedRequest::Delete(path.to_owned(), answer))) {
            Dispatch::Direct(_permit) => self.delete_alone(path).await,
            Dispatch::Batched(answered) => answer_of(answered).await,
        }
    }

    /// The same in a request that is sent at once.
    pub(crate) async fn list_alone(&self, lock: &str) -> ZkResult<Names> {
        let client = self.client()?;
        let names = self.read(client.list_children(lock)).await?;
        Ok(Arc::new(Listing::new(names)))
    }

    async fn delete_alone(&self, path: &str) -> ZkResult<()> {
        let client = self.client()?;
        let sent = self.mark_sent();
        self.write(sent, client.delete(path, None)).await
    }

    async fn list_all(&self, lists: HashMap<String, Vec<Answer<Names>>>) {
        let tell = |answers: Vec<Answer<Names>>, names: ZkResult<Names>| {
            answers.into_iter().for_each(|answer| drop(answer.send(names.clone())));
        };
        let listed = match self.has_multi_read() {
            true => self.try_list_all(lists.keys()).await,
            false => Err(ZkError::Unimplemented.into()),
        };
        match listed {
            Ok(all) => {
                lists.into_values().zip(all).for_each(|(answers, names)| tell(answers, names));
            }
            Err(error) if error.certainty() == Certainty::Declined => {
                if error.is_unimplemented() {
                    self.set_no_multi_read();
                }
                let lists = lists.into_iter();
                join_all(
                    lists.map(async |(lock, answers)| tell(answers, self.list_alone(&lock).await)),
                )
                .await;
            }
            Err(error) => {
                lists.into_values().for_each(|answers| tell(answers, Err(error.clone())));
                self.fail_waiting(&error);
            }
        }
    }

    async fn try_list_all(
        &self,
        locks: impl Iterator<Item = &String>,
    ) -> ZkResult<Vec<ZkResult<Names>>> {
        let client = self.client()?;
        let mut reader = client.new_multi_reader();
        for lock in locks {
            reader.add_get_children(lock)?;
        }
        let all = self.read(reader.commit()).await?;
        let names = |result| match result {
            MultiReadResult::Children { children } => Ok(Arc::new(Listing::new(children))),
            MultiReadResult::Error { err } => Err(err.into()),
            other => Err(ZkError::UnexpectedError(format!("no list: {other:?}")).into()),
        };
        Ok(all.into_iter().map(names).collect())
    }

    async fn delete_all(&self, deletes: Vec<(String, Answer<()>)>) {
        match self.try_delete_all(&deletes).await {
            Ok(()) => deletes.into_iter().for_each(|(_, answer)| drop(answer.send(Ok(())))),
            // One of them is gone, and none was deleted.
            Err(error) if error.certainty() == Certainty::Declined => {
                let deletes = deletes.into_iter();
                join_all(deletes.map(async |(path, answer)| {
                    let _ = answer.send(self.delete_alone(&path).await);
                }))
                .await;
            }
            Err(error) => {
                let deletes = deletes.into_iter();
                deletes.for_each(|(_, answer)| drop(answer.send(Err(error.clone()))));
                self.fail_waiting(&error);
            }
        }
    }

    /// Of one at least: no request would be no sign of life.
    async fn try_delete_all(&self, deletes: &[(String, Answer<()>)]) -> ZkResult<()> {
        let client = self.client()?;
        let mut writer = client.new_multi_writer();
        for (path, _) in deletes {
            writer.add_delete(path, None)?;
        }
        let sent = self.mark_sent();
        self.write(sent, writer.commit()).await.map(drop)
    }

    /// They have waited for the same.
    fn fail_waiting(&self, error: &RequestError) {
        self.batcher.take_waiting().into_iter().for_each(|step| step.fail(error.clone()));
    }
}

impl BatchTransport for Session {
    type Request = BatchedRequest;

    fn batcher(&self) -> &Batcher<BatchedRequest> {
        &self.batcher
    }

    fn runtime(&self) -> &Handle {
        &self.runtime
    }

    async fn send(self: Arc<Self>, steps: Vec<BatchedRequest>, leaving: SendOrderGuard<Self>) {
        // Nothing overtakes them to anybody's harm: a claim's list and delete are asked for after
        // its create was sent.
        drop(leaving);
        let mut lists: HashMap<_, Vec<_>> = HashMap::new();
        let mut deletes = Vec::new();
        for step in steps {
            match step {
                // Nobody listens any more: its claim's release follows.
                BatchedRequest::List(_, answer) if answer.is_closed() => {}
                BatchedRequest::Delete(_, answer) if answer.is_closed() => {}
                BatchedRequest::List(lock, answer) => lists.entry(lock).or_default().push(answer),
                BatchedRequest::Delete(path, answer) => deletes.push((path, answer)),
            }
        }
        join(
            OptionFuture::from((!deletes.is_empty()).then(|| self.delete_all(deletes))),
            OptionFuture::from((!lists.is_empty()).then(|| self.list_all(lists))),
        )
        .await;
    }
}
