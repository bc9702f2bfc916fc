//! One of several guards of one acquisition: the last of them to end releases it.
//!
//! A share may end before the acquisition, by a limit of its own, and never after it.

use std::sync::{Arc, Weak};

use tokio_util::task::AbortOnDropHandle;

use crate::claim::hold::{Ending, Hold};
use crate::client::ClientInner;
use crate::client::owned_hold::not_held;
use crate::guard::base::Base;
use crate::sync::Mutex;
use crate::time::moment::Moment;
use crate::types::error::{Error, ErrorKind, LostReason, Result};
use crate::types::token::FencingToken;

/// What several guards own together. Dropping the last reference releases it in the background.
pub(crate) struct Shared {
    pub(crate) base: Base,
    /// When each of its shares ends at the latest.
    pub(crate) limit: Moment,
    /// Dropped with it.
    pub(crate) _registered: Option<Box<dyn Send + Sync>>,
}

/// The part of one guard in what is [`Shared`].
pub(crate) struct Share {
    pub(crate) client: Arc<ClientInner>,
    pub(crate) hold: Arc<Hold>,
    pub(crate) token: FencingToken,
    limit: Moment,
    part: Arc<Part>,
    /// Ends the share at its limit, also when its guard was forgotten.
    timer: Option<AbortOnDropHandle<()>>,
}

/// Empty after the end of the share.
type Part = Mutex<Option<Arc<Shared>>>;

impl Share {
    pub(crate) fn new(shared: Arc<Shared>) -> Share {
        let limit = shared.limit;
        let share = Share {
            limit: Moment::NEVER,
            client: shared.base.client().clone(),
            hold: shared.base.hold().clone(),
            token: shared.base.token(),
            part: Arc::new(Mutex::new(Some(shared))),
            timer: None,
        };
        share.end_at(limit)
    }

    /// Ends it no later than at `limit`.
    pub(crate) fn end_at(mut self, limit: Moment) -> Share {
        if limit < self.limit {
            let ending = end_at(limit, &self.client, self.hold.clone(), Arc::downgrade(&self.part));
            let timer = self.client.reaper.runtime.spawn(ending);
            (self.limit, self.timer) = (limit, Some(AbortOnDropHandle::new(timer)));
        }
        self
    }

    /// Whether no other guard has a share of the hold.
    pub(crate) fn is_sole(&self) -> bool {
        let part = self.part.lock();
        part.as_ref().is_none_or(|shared| Arc::strong_count(shared) == 1)
    }

    /// The end of the validity, or `None` after the end of the share.
    pub(crate) fn valid_until(&self, now: Moment) -> Option<Moment> {
        if now >= self.limit {
            return None;
        }
        self.hold.valid_until().map(|until| until.min(self.limit))
    }

    pub(crate) fn is_held(&self, now: Moment) -> bool {
        now < self.limit && self.hold.is_held(now)
    }

    /// Why it was lost, if it was.
    pub(crate) fn lost(&self, now: Moment) -> Option<LostReason> {
        match self.hold.ending() {
            Some(Ending::Lost(reason)) => Some(reason),
            _ if now >= self.limit => Some(LostReason::HoldLimit),
            _ => None,
        }
    }

    /// Completes with `changed`, or when the limit is reached.
    pub(crate) async fn until_limit(&self, changed: impl Future<Output = ()>) {
        if self.limit == Moment::NEVER {
            return changed.await;
        }
        tokio::select! {
            () = changed => {}
            () = self.client.store.clock().sleep_until(self.limit) => {}
        }
    }

    /// Ends the share. The last one gives back what they shared, to be released.
    ///
    /// # Errors
    /// It was lost.
    pub(crate) fn finish(&self) -> Result<Option<Base>> {
        let now = self.client.now();
        if now >= self.limit {
            end(&self.part, &self.hold);
            return Err(Error::new(ErrorKind::NotHeld, LostReason::HoldLimit.to_string()));
        }
        let shared = self.part.lock().take();
        match shared.and_then(Arc::into_inner) {
            Some(last) => Ok(Some(last.base)),
            None if self.hold.is_held(now) => Ok(None),
            None => Err(not_held(&self.hold)),
        }
    }
}

/// Ends a share that is still there at its limit.
fn end_at(
    limit: Moment,
    client: &ClientInner,
    hold: Arc<Hold>,
    part: Weak<Part>,
) -> impl Future<Output = ()> + Send + use<> {
    let store = client.store.clone();
    async move {
        store.clock().sleep_until(limit).await;
        if store.clock().now() < limit {
            // The clock has ended with its runtime, and all holds are about to: the guard believes that
            // it holds the lock until then.
            return;
        }
        if let Some(part) = part.upgrade() {
            end(&part, &hold);
        }
    }
}

/// Ends a share at its limit, and reports it: once, whether its timer comes first or its guard's end.
fn end(part: &Part, hold: &Hold) {
    let ended = part.lock().take();
    if let Some(Shared { base, .. }) = ended.as_deref()
        && hold.valid_until().is_some()
    {
        hold.report_lost_share(base.span(), base.token());
    }
}

/// A guard that was dropped as soon as it was told of its limit may end before the timer.
impl Drop for Share {
    fn drop(&mut self) {
        if self.client.now() >= self.limit {
            end(&self.part, &self.hold);
        }
    }
}
