//! Reading a cell, and writing it once, whatever becomes of the replies.
//!
//! Every request may be repeated, so an error is retried until the store has been silent for
//! `unreachable_after`. After a write without an answer the cell is read again:
//!
//! - Its record has the write's stamp: the write was made.
//! - The cell is as it was before: the same write, with the same stamp, is sent again.
//! - Others have written, but no more often than a record remembers: it was not made, and cannot be made
//!   any more, since the stamp that it expects is gone for ever. (A first write expects that nothing is there:
//!   if it is late, it can still be made after others have removed what they wrote; and it may have been made
//!   if it was removed before others wrote.)
//! - Otherwise it is unknown, and the error says so.

use std::sync::Arc;

use crate::cells::record::{Kind, REMEMBERED, Record};
use crate::client::{ClientInner, silent};
use crate::store::cell_store::{Cells, Content, Keep, Notifier, Stamp};
use crate::time::backoff::Backoff;
use crate::time::moment::Moment;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::name::LockName;

/// What is in a cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The stamp that a swap has to expect.
    pub(crate) stamp: Option<Stamp>,
    /// None also when what is there is too old to count.
    pub(crate) record: Option<Record>,
}

impl Seen {
    pub(crate) fn of(content: Option<&Content>, kind: Kind) -> Result<Seen> {
        let Some(content) = content else { return Ok(Seen { stamp: None, record: None }) };
        Ok(Seen { stamp: Some(content.stamp), record: Record::read(content, kind)? })
    }

    fn version(&self) -> u64 {
        self.record.as_ref().map_or(0, |record| record.version)
    }
}

/// A write of a cell.
pub(crate) struct Write<'a> {
    /// What it was computed from.
    pub(crate) from: &'a Seen,
    /// None removes the cell.
    pub(crate) to: Option<&'a Content>,
    pub(crate) keep: Keep,
}

/// A cell of a store, for the length of one operation.
pub(crate) struct Access<'a> {
    pub(crate) client: &'a ClientInner,
    pub(crate) cells: &'a Cells,
    pub(crate) name: &'a LockName,
    pub(crate) kind: Kind,
}

/// The bound on the store's silence, and the pauses between repeated requests.
pub(crate) struct Patience<'a> {
    client: &'a ClientInner,
    ends: Moment,
    backoff: Backoff,
    /// The store's last error: a better reason than that the request after it was cut short.
    last: Option<Error>,
}

impl<'a> Patience<'a> {
    pub(crate) fn start(client: &'a ClientInner) -> Patience<'a> {
        let ends = client.now() + client.settings.unreachable_after;
        Patience { client, ends, backoff: Backoff::start(), last: None }
    }

    /// Pauses after `error`.
    ///
    /// # Errors
    /// The store has been silent for too long, or no retry helps.
    async fn pause_after(&mut self, error: Error) -> Result<()> {
        if !error.is_retryable() {
            return Err(error);
        }
        let now = self.client.now();
        if now >= self.ends {
            return Err(silent(self.client.settings.unreachable_after, Some(error)));
        }
        self.last = Some(error);
        let pause = self.backoff.next(self.client.settings.seed());
        self.client.sleep_until((now + pause).min(self.ends)).await
    }

    /// The answer to a request that is repeated after errors that a retry may help.
    pub(crate) async fn repeat<T, R: Future<Output = Result<T>>>(
        &mut self,
        mut request: impl FnMut() -> R,
    ) -> Result<T> {
        loop {
            match self.answer(request()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => self.pause_after(error).await?,
            }
        }
    }

    /// The answer to one request, which gets no longer than what is left. Closing the client does not end
    /// it: what has begun is finished, as releases are.
    async fn answer<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            answer = request => answer,
            slept = self.client.sleep_until(self.ends) => {
                slept?;
                Err(self.last.clone().unwrap_or_else(|| {
                    Error::new(ErrorKind::Unreachable, "the last request is still unanswered")
                }))
            }
        }
    }
}

impl Access<'_> {
    /// What is there now, by an answer of the store.
    ///
    /// # Errors
    /// The store's; [`ErrorKind::Foreign`].
    pub(crate) async fn read(&self) -> Result<Seen> {
        self.read_within(&mut Patience::start(self.client)).await
    }

    async fn read_within(&self, patience: &mut Patience<'_>) -> Result<Seen> {
        let content = patience.repeat(|| self.cells.0.read(self.name, None)).await?;
        Seen::of(content.as_ref(), self.kind)
    }

    /// Makes `write`; `false` when the cell was another one by then, and the write was not made.
    ///
    /// # Errors
    /// The store's. The error says when it is unknown whether the write was made.
    pub(crate) async fn write(&self, write: Write<'_>) -> Result<bool> {
        let mut patience = Patience::start(self.client);
        let mut is_unsure = false;
        loop {
            let swap = self.cells.0.swap(self.name, write.from.stamp, write.to, write.keep);
            match patience.answer(swap).await {
                Ok(true) => return Ok(true),
                Ok(false) if !is_unsure => return Ok(false),
                Ok(false) => {}
                // It was not made, and no earlier request can have made it.
                Err(error) if !error.is_retryable() && !is_unsure => return Err(error),
                Err(error) => {
                    patience.pause_after(error).await.map_err(maybe_made)?;
                    is_unsure = true;
                }
            }
            let now = self.read_within(&mut patience).await;
            match write.fate(&now.map_err(maybe_made)?) {
                Fate::Made => return Ok(true),
                Fate::NotMade => return Ok(false),
                Fate::SendAgain => {}
                Fate::Unknown => {
                    let message =
                        "the store gave no answer, and others have changed the cell since";
                    let error = Error::new(ErrorKind::Unreachable, message).retryable(false);
                    return Err(maybe_made(error));
                }
            }
        }
    }

    /// Reads the cell once, and has `notifier` notified of the next change.
    pub(crate) async fn read_and_watch(&self, notifier: &Arc<Notifier>) -> Result<Seen> {
        let content = Patience::start(self.client)
            .answer(self.cells.0.read(self.name, Some(notifier)))
            .await?;
        Seen::of(content.as_ref(), self.kind)
    }
}

/// Adds that the change may have been made to an error after which that is unknown.
fn maybe_made(error: Error) -> Error {
    error.adding("; the change may or may not have been made")
}

/// What became of a write without an answer.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Made,
    NotMade,
    SendAgain,
    Unknown,
}

impl Write<'_> {
    /// By what is there `now`.
    fn fate(&self, now: &Seen) -> Fate {
        let before = self.from;
        if now.stamp == before.stamp {
            return Fate::SendAgain;
        }
        let Some(to) = self.to else {
            return match (&now.record, &before.record) {
                // Others have changed it, so it was not removed.
                (Some(now), Some(before)) if now.born == before.born => Fate::NotMade,
                // It was removed, if not by this write.
                _ => Fate::Made,
            };
        };
        let Some(record) = &now.record else { return Fate::Unknown };
        if record.recent.contains(&to.stamp) {
            return Fate::Made;
        }
        let is_same = before.record.as_ref().is_none_or(|before| before.born == record.born);
        let writes = record.version.saturating_sub(before.version());
        if is_same && writes <= REMEMBERED as u64 { Fate::NotMade } else { Fate::Unknown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(before: Option<&Seen>) -> Seen {
        let stamp = Stamp::fresh();
        let before = before.and_then(|seen| seen.record.as_ref());
        let record = Record::next(before, stamp, Kind::Cell, 0, Keep::Forever, vec![]);
        Seen { stamp: Some(stamp), record: Some(record) }
    }

    fn content(seen: &Seen) -> Content {
        seen.record.clone().expect("a record").into_content(seen.stamp.expect("a stamp"))
    }

    fn fate(from: &Seen, to: Option<&Seen>, now: &Seen) -> Fate {
        let to = to.map(content);
        Write { from, to: to.as_ref(), keep: Keep::Forever }.fate(now)
    }

    #[test]
    fn a_write_without_an_answer_is_found_by_its_stamp_as_long_as_it_is_remembered() {
        let before = written(None);
        let mine = written(Some(&before));
        assert_eq!(fate(&before, Some(&mine), &before), Fate::SendAgain);
        let (mut after, mut instead) = (mine.clone(), written(Some(&before)));
        for others in 0..20 {
            let found = fate(&before, Some(&mine), &after);
            let expected = if others < REMEMBERED { Fate::Made } else { Fate::Unknown };
            assert_eq!(found, expected, "made, and {others} writes after it");
            let found = fate(&before, Some(&mine), &instead);
            let expected = if others < REMEMBERED { Fate::NotMade } else { Fate::Unknown };
            assert_eq!(found, expected, "not made, and {others} other writes after the first");
            (after, instead) = (written(Some(&after)), written(Some(&instead)));
        }
    }

    #[test]
    fn of_a_cell_that_was_removed_nobody_can_tell() {
        let nothing = Seen { stamp: None, record: None };
        let before = written(None);
        let mine = written(Some(&before));
        assert_eq!(fate(&before, Some(&mine), &nothing), Fate::Unknown);
        let another = written(None);
        assert_eq!(fate(&before, Some(&mine), &another), Fate::Unknown);
        // A first write is not there, and another one is.
        assert_eq!(fate(&nothing, Some(&mine), &nothing), Fate::SendAgain);
        assert_eq!(fate(&nothing, Some(&written(None)), &another), Fate::NotMade);
    }

    #[test]
    fn a_removal_is_made_when_what_was_there_is_gone() {
        let (nothing, before) = (Seen { stamp: None, record: None }, written(None));
        assert_eq!(fate(&before, None, &before), Fate::SendAgain);
        assert_eq!(fate(&before, None, &nothing), Fate::Made);
        assert_eq!(fate(&before, None, &written(None)), Fate::Made);
        assert_eq!(fate(&before, None, &written(Some(&before))), Fate::NotMade);
    }
}
