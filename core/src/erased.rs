//! A store and its contenders without their types, so that users' types have no parameter.
//!
//! This is the only place that turns a contender without its type back into the store's own: a
//! connected client has one store, and gives it only what that store made.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use crate::backend::{
    Acquisition, AttemptOutcome, DistributedLock, ParticipantId, ReleaseOutcome, RenewOutcome,
    Snapshot, WaiterCheck,
};
use crate::batch;
use crate::claim::Claim;
use crate::error::{Error, Result};
use crate::name::LockName;
use crate::profile::Profile;
use crate::scratch::Scratch;
use crate::validity::Clock;

pub(crate) type Answer<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
/// Takes the answer about one claim, as soon as it is known.
pub(crate) type Told<'a, T> = &'a (dyn Fn(&Arc<Claim>, Result<T>) + Send + Sync);

/// As [`DistributedLock`], with renewals and looks for many claims at once.
pub(crate) trait Store: Send + Sync {
    fn profile(&self) -> &Profile;
    fn clock(&self) -> &dyn Clock;
    fn begin(&self, claim: Arc<Claim>) -> Arc<dyn AnyContender>;
    fn renew<'a>(
        &'a self,
        held: &'a [Arc<dyn AnyContender>],
        told: Told<'a, RenewOutcome>,
    ) -> Answer<'a, ()>;
    fn look<'a>(
        &'a self,
        waiting: &'a [Arc<dyn AnyContender>],
        told: Told<'a, WaiterCheck>,
    ) -> Answer<'a, ()>;
    fn inspect<'a>(&'a self, name: &'a LockName) -> Answer<'a, Result<Snapshot>>;
    fn evict<'a>(
        &'a self,
        name: &'a LockName,
        who: &'a ParticipantId,
    ) -> Answer<'a, Result<ReleaseOutcome>>;
    fn clear<'a>(&'a self, scratch: &'a Scratch) -> Answer<'a, Result<()>>;
    fn close(&self) -> Answer<'_, Result<()>>;
}

/// As [`Acquisition`].
pub(crate) trait AnyContender: Any + Send + Sync {
    fn claim(&self) -> &Arc<Claim>;
    fn attempt(&self) -> Answer<'_, Result<AttemptOutcome>>;
    fn release(&self) -> Answer<'_, Result<ReleaseOutcome>>;
    fn unanswered(&self) -> Option<Error>;
    #[cfg(unix)]
    fn keep_alive(&self) -> Option<std::os::fd::BorrowedFd<'_>>;
}

pub(crate) fn erase<S: DistributedLock>(store: Arc<S>) -> Arc<dyn Store> {
    Arc::new(Erased(store))
}

struct Erased<S>(Arc<S>);

/// The store's own among `contenders`, which are all of them.
fn own<S: DistributedLock>(contenders: &[Arc<dyn AnyContender>]) -> Vec<&S::Contender> {
    let own = contenders.iter().filter_map(|contender| {
        let any: &dyn Any = &**contender;
        any.downcast_ref()
    });
    own.collect()
}

impl<S: DistributedLock> Store for Erased<S> {
    fn profile(&self) -> &Profile {
        self.0.profile()
    }

    fn clock(&self) -> &dyn Clock {
        self.0.clock()
    }

    fn begin(&self, claim: Arc<Claim>) -> Arc<dyn AnyContender> {
        Arc::new(self.0.begin(claim))
    }

    fn renew<'a>(
        &'a self,
        held: &'a [Arc<dyn AnyContender>],
        told: Told<'a, RenewOutcome>,
    ) -> Answer<'a, ()> {
        Box::pin(batch::renew(&*self.0, own::<S>(held), told))
    }

    fn look<'a>(
        &'a self,
        waiting: &'a [Arc<dyn AnyContender>],
        told: Told<'a, WaiterCheck>,
    ) -> Answer<'a, ()> {
        Box::pin(batch::look(&*self.0, own::<S>(waiting), told))
    }

    fn inspect<'a>(&'a self, name: &'a LockName) -> Answer<'a, Result<Snapshot>> {
        Box::pin(self.0.inspect(name))
    }

    fn evict<'a>(
        &'a self,
        name: &'a LockName,
        who: &'a ParticipantId,
    ) -> Answer<'a, Result<ReleaseOutcome>> {
        Box::pin(self.0.evict(name, who))
    }

    fn clear<'a>(&'a self, scratch: &'a Scratch) -> Answer<'a, Result<()>> {
        Box::pin(self.0.clear(scratch))
    }

    fn close(&self) -> Answer<'_, Result<()>> {
        Box::pin(self.0.close())
    }
}

impl<C: Acquisition> AnyContender for C {
    fn claim(&self) -> &Arc<Claim> {
        Acquisition::claim(self)
    }

    fn attempt(&self) -> Answer<'_, Result<AttemptOutcome>> {
        Box::pin(Acquisition::attempt(self))
    }

    fn release(&self) -> Answer<'_, Result<ReleaseOutcome>> {
        Box::pin(Acquisition::release(self))
    }

    fn unanswered(&self) -> Option<Error> {
        Acquisition::unanswered(self)
    }

    #[cfg(unix)]
    fn keep_alive(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        Acquisition::keep_alive(self)
    }
}
