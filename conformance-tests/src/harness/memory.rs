//! The memory store: a new one for each behaviour, since it costs nothing.

use async_trait::async_trait;
use fencelock_core::memory::Memory;
use fencelock_core::{Locks, Result};

use super::{Backdoor, Harness, Params, Store};

/// The memory store.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryHarness;

#[async_trait]
impl Harness for MemoryHarness {
    fn name(&self) -> &str {
        "memory"
    }

    async fn open(&self, prefix: &str) -> Result<Box<dyn Store>> {
        Ok(Box::new(MemoryStore { store: Memory::new(), prefix: prefix.to_owned() }))
    }
}

struct MemoryStore {
    store: Memory,
    prefix: String,
}

#[async_trait]
impl Store for MemoryStore {
    async fn connect(&self, params: &Params) -> Result<Locks> {
        self.store.locks(params.settings()?)
    }

    fn backdoors(&self) -> &[Backdoor] {
        &[Backdoor::Inspect]
    }

    fn why_not(&self, backdoor: Backdoor) -> String {
        match backdoor {
            Backdoor::Processes => "the memory store lives in one process".to_owned(),
            Backdoor::CutOff
            | Backdoor::SlowReplies
            | Backdoor::LoseReply
            | Backdoor::NetworkFaults => "nothing lies between it and its clients".to_owned(),
            Backdoor::LoseData => {
                "the memory store's data is lost only with its process".to_owned()
            }
            _ => format!("the memory store {}", backdoor.absent()),
        }
    }

    async fn leftovers(&self) -> Result<Vec<String>> {
        let left = self.store.len();
        Ok(match left {
            0 => Vec::new(),
            _ => vec![format!("{left} locks with a holder or waiter")],
        })
    }

    async fn is_locked(&self, name: &str) -> Result<bool> {
        // Its own client, since what it keeps is private.
        let apart = self.store.locks(Params::under(&self.prefix).settings()?)?;
        Ok(!apart.inspect(name).await?.holders.is_empty())
    }
}
