//! A store and its acquisitions without their types, so that the user's types have no parameter.
//!
//! Only this file turns an acquisition without its type back into the store's own type: a connected
//! client has one store, and passes to it only acquisitions that it has made.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::store::check::Check;
use crate::store::claim::Claim;
use crate::store::distributed_lock::{
    Acquisition, AttemptOutcome, DistributedLock, ParticipantId, ReleaseOutcome, RenewOutcome,
    Snapshot, WaiterCheck,
};
use crate::store::grouping::{self, Report};
use crate::store::profile::Profile;
use crate::store::scratch::Scratch;
use crate::time::moment::Clock;
use crate::types::error::{Error, Result};
use crate::types::name::LockName;
use crate::types::token::FencingToken;

/// A [`DistributedLock`] without its type, which renews and checks many claims at once.
pub(crate) trait ErasedStore: Send + Sync {
    fn profile(&self) -> &Profile;
    fn clock(&self) -> &dyn Clock;
    fn begin(&self, claim: Arc<Claim>) -> Arc<dyn ErasedAcquisition>;
    fn renew<'a>(
        &'a self,
        held: &'a [Arc<dyn ErasedAcquisition>],
        report: Report<'a, RenewOutcome>,
    ) -> BoxFuture<'a, ()>;
    fn check_waiters<'a>(
        &'a self,
        waiting: &'a [Arc<dyn ErasedAcquisition>],
        report: Report<'a, WaiterCheck>,
    ) -> BoxFuture<'a, ()>;
    fn inspect<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Snapshot>>;
    fn inspect_holders<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Snapshot>>;
    fn evict<'a>(
        &'a self,
        name: &'a LockName,
        who: &'a ParticipantId,
    ) -> BoxFuture<'a, Result<ReleaseOutcome>>;
    fn check(&self, name: &LockName, token: FencingToken, within: Duration) -> Option<Check>;
    fn clear<'a>(&'a self, scratch: &'a Scratch) -> BoxFuture<'a, Result<()>>;
    fn stop_attempts(&self);
    fn close(&self) -> BoxFuture<'_, Result<()>>;
}

/// An [`Acquisition`] without its type.
pub(crate) trait ErasedAcquisition: Any + Send + Sync {
    fn claim(&self) -> &Arc<Claim>;
    fn attempt(&self) -> BoxFuture<'_, Result<AttemptOutcome>>;
    fn release(&self) -> BoxFuture<'_, Result<ReleaseOutcome>>;
    fn downgrade(&self) -> BoxFuture<'_, Result<RenewOutcome>>;
    fn unanswered(&self) -> Option<Error>;
    #[cfg(unix)]
    fn keep_alive(&self) -> Option<std::os::fd::BorrowedFd<'_>>;
}

/// `store` without its type.
pub(crate) fn erase<S: DistributedLock>(store: Arc<S>) -> Arc<dyn ErasedStore> {
    Arc::new(Erased(store))
}

struct Erased<S>(Arc<S>);

/// `acquisitions` in the store's own type, which all of them have.
fn own<S: DistributedLock>(acquisitions: &[Arc<dyn ErasedAcquisition>]) -> Vec<&S::Acquisition> {
    let own = acquisitions.iter().filter_map(|acquisition| {
        let any: &dyn Any = &**acquisition;
        any.downcast_ref()
    });
    own.collect()
}

impl<S: DistributedLock> ErasedStore for Erased<S> {
    fn profile(&self) -> &Profile {
        self.0.profile()
    }

    fn clock(&self) -> &dyn Clock {
        self.0.clock()
    }

    fn begin(&self, claim: Arc<Claim>) -> Arc<dyn ErasedAcquisition> {
        Arc::new(self.0.begin(claim))
    }

    fn renew<'a>(
        &'a self,
        held: &'a [Arc<dyn ErasedAcquisition>],
        report: Report<'a, RenewOutcome>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(grouping::renew(&*self.0, own::<S>(held), report))
    }

    fn check_waiters<'a>(
        &'a self,
        waiting: &'a [Arc<dyn ErasedAcquisition>],
        report: Report<'a, WaiterCheck>,
    ) -> BoxFuture<'a, ()> {
        Box::pin(grouping::check_waiters(&*self.0, own::<S>(waiting), report))
    }

    fn inspect<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Snapshot>> {
        Box::pin(self.0.inspect(name))
    }

    fn inspect_holders<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Snapshot>> {
        Box::pin(self.0.inspect_holders(name))
    }

    fn evict<'a>(
        &'a self,
        name: &'a LockName,
        who: &'a ParticipantId,
    ) -> BoxFuture<'a, Result<ReleaseOutcome>> {
        Box::pin(self.0.evict(name, who))
    }

    fn check(&self, name: &LockName, token: FencingToken, within: Duration) -> Option<Check> {
        self.0.check(name, token, within)
    }

    fn clear<'a>(&'a self, scratch: &'a Scratch) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.0.clear(scratch))
    }

    fn stop_attempts(&self) {
        self.0.stop_attempts();
    }

    fn close(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.0.close())
    }
}

impl<A: Acquisition> ErasedAcquisition for A {
    fn claim(&self) -> &Arc<Claim> {
        Acquisition::claim(self)
    }

    fn attempt(&self) -> BoxFuture<'_, Result<AttemptOutcome>> {
        Box::pin(Acquisition::attempt(self))
    }

    fn release(&self) -> BoxFuture<'_, Result<ReleaseOutcome>> {
        Box::pin(Acquisition::release(self))
    }

    fn downgrade(&self) -> BoxFuture<'_, Result<RenewOutcome>> {
        Box::pin(Acquisition::downgrade(self))
    }

    fn unanswered(&self) -> Option<Error> {
        Acquisition::unanswered(self)
    }

    #[cfg(unix)]
    fn keep_alive(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        Acquisition::keep_alive(self)
    }
}
