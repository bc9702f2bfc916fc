//! The harness of the toy store: it has every backdoor except other processes.

use std::sync::Arc;

use async_trait::async_trait;
use fencelock_conformance::{Backdoor, Harness, NetworkFault, Params, Store};
use fencelock_core::{LockName, Locks, Result};

use crate::mutant::Mutant;
use crate::server::Server;

pub(crate) struct Toy(pub(crate) Option<Mutant>);

#[async_trait]
impl Harness for Toy {
    fn name(&self) -> &str {
        "toy"
    }

    async fn open(&self, prefix: &str) -> Result<Box<dyn Store>> {
        Ok(Box::new(ToyStore { server: Server::new(self.0), prefix: prefix.to_owned() }))
    }
}

struct ToyStore {
    server: Arc<Server>,
    prefix: String,
}

impl ToyStore {
    fn name(&self, name: &str) -> Result<LockName> {
        LockName::with_prefix(&self.prefix, name)
    }
}

#[async_trait]
impl Store for ToyStore {
    async fn connect(&self, params: &Params) -> Result<Locks> {
        Locks::new(self.server.connected(), "toy://", params.settings()?)
    }

    fn backdoors(&self) -> &[Backdoor] {
        &[
            Backdoor::Inspect,
            Backdoor::Expire,
            Backdoor::CutOff,
            Backdoor::SlowReplies,
            Backdoor::LoseReply,
            Backdoor::LoseData,
        ]
    }

    async fn leftovers(&self) -> Result<Vec<String>> {
        Ok(self.server.leftovers())
    }

    async fn is_locked(&self, name: &str) -> Result<bool> {
        Ok(self.server.is_locked(&self.name(name)?))
    }

    async fn expire(&self, name: &str) -> Result<()> {
        self.server.expire(&self.name(name)?);
        Ok(())
    }

    async fn inject_fault(&self, fault: NetworkFault) -> Result<()> {
        match fault {
            NetworkFault::CutOff => self.server.cut(),
            NetworkFault::SlowReplies(by) => self.server.delay(by),
            NetworkFault::ReplyDropped => self.server.lose_next_reply(),
            other => unreachable!("{other:?} is not offered"),
        }
        Ok(())
    }

    async fn heal(&self) -> Result<()> {
        self.server.heal();
        Ok(())
    }

    async fn lose_data(&self) -> Result<()> {
        self.server.lose_data();
        Ok(())
    }
}
