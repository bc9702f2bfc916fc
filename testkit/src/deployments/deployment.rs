//! What each kind of store does for a run: the trait, and what its implementations share.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencelock_conformance::{ScratchStore, ServerClock};
use fencelock_core::Result;
use fencelock_core::url::Connecting;
use futures_util::future::BoxFuture;

use super::fault::Fault;
use super::meter::Meter;

/// The prefix of the lock names, in a store that was started for the run.
pub(super) const PREFIX: &str = "torture:";

/// The functions of the library that a deployment needs.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    /// Connects to the store that a URL names, as `fencelock::connect` does.
    pub connect: fn(&str) -> Connecting,
    /// Declares the fresh nodes of a quorum new, as `redlock::init` does.
    pub declare_new: fn(&str) -> BoxFuture<'static, Result<()>>,
}

/// The servers of one store.
#[async_trait(?Send)]
pub trait Deployment: Send + Sync {
    /// Where clients connect, in each of their processes.
    fn url(&self) -> String;

    /// The prefix of all lock names.
    fn prefix(&self) -> String {
        PREFIX.to_owned()
    }

    /// The servers' settings that matter for locks.
    fn settings(&self) -> String;

    /// Its servers' versions, such as `Redis 7.0.15`, each version once. Empty where there is none,
    /// or it is not ours to ask.
    ///
    /// # Errors
    /// When the servers cannot be asked.
    async fn versions(&self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// The servers' usage so far.
    ///
    /// # Errors
    /// When the servers cannot be asked.
    async fn meter(&self) -> io::Result<Meter> {
        Ok(Meter::default())
    }

    /// The faults of the servers.
    fn faults(&self) -> Vec<Fault> {
        Vec::new()
    }

    /// The wall clocks of its servers that can be stepped:
    /// [`Fault::ServerClockStepped`], which [`inflict`](Deployment::inflict) does not know.
    fn clocks(&self) -> &[ServerClock] {
        &[]
    }

    /// Whether this store's profile says that two may hold together under this fault.
    fn may_overlap(&self, _fault: Fault) -> bool {
        false
    }

    /// Whether this store's profile says that its cells may be lost under this fault, or their last writes.
    fn may_lose_data(&self, fault: Fault) -> bool {
        self.may_overlap(fault)
    }

    /// The ports of the current masters, where servers elect them and may fail over by themselves:
    /// also when a master was only stalled for a moment.
    ///
    /// # Errors
    /// When the servers cannot be asked.
    async fn masters(&self) -> io::Result<Vec<u16>> {
        Ok(Vec::new())
    }

    /// Runs statements as the administrator of the database that the locks are in, on its primary, and returns
    /// the last one's rows. `None` where the store is not in a database that was started for the run.
    ///
    /// # Errors
    /// When the server cannot be asked, or answers with an error.
    async fn sql(&self, _statements: &str) -> io::Result<Option<String>> {
        Ok(None)
    }

    /// How many processes can share the store.
    fn shares_between_processes(&self) -> bool {
        true
    }

    /// Injects `fault` for the duration `during`, and heals the servers. They serve again on
    /// return.
    ///
    /// # Errors
    /// When it cannot be done, or the servers do not come back.
    async fn inflict(&self, fault: Fault, _during: Duration) -> io::Result<()> {
        Err(unknown(fault))
    }

    /// What holders and waiters left in the servers, read without the library. Empty once all
    /// clients have left, and where only the library can read it.
    ///
    /// # Errors
    /// When the servers cannot be asked.
    async fn leftovers(&self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// The part of a user's store that the run works in, to be cleared when all its clients have
    /// ended. Servers that were started for the run end with it.
    fn scratch(&self) -> Option<Arc<ScratchStore>> {
        None
    }
}

pub(super) fn unknown(fault: Fault) -> io::Error {
    io::Error::other(format!("this store has no fault {fault:?}"))
}
