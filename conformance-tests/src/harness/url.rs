//! Any store that a URL names, which may be a user's own: the suite touches nothing there but
//! what begins with its random prefix.

use std::fmt;

use async_trait::async_trait;
use fencelock_core::url::StoreUrl;
use fencelock_core::{Locks, Result, memory};

use super::memory::MemoryHarness;
use super::scratch::{Connect, ScratchStore};
use super::{Backdoor, Harness, Params, Store};

/// A store by its URL. Its only backdoor is other processes.
pub struct UrlHarness {
    name: String,
    connect: Connect,
    /// A peer has none: its parent passes it the URL.
    scratch: Option<ScratchStore>,
}

impl UrlHarness {
    /// The store that `url` names.
    ///
    /// # Errors
    /// [`InvalidArgument`](fencelock_core::ErrorKind::InvalidArgument) for an invalid URL.
    pub fn new(connect: Connect, url: &str) -> Result<UrlHarness> {
        let scratch = ScratchStore::new(connect, url, "conformance")?;
        let name = StoreUrl::parse(url)?.scheme().to_owned();
        Ok(UrlHarness { name, connect, scratch: Some(scratch) })
    }

    /// Connects once, to fail early when the store cannot be reached.
    pub(crate) async fn open_store(&self) -> Result<()> {
        match &self.scratch {
            Some(scratch) => scratch.open().await,
            None => Ok(()),
        }
    }

    /// Removes what the suite made, when all its clients have ended.
    pub(crate) async fn clear(&self) -> Result<()> {
        match &self.scratch {
            Some(scratch) => scratch.clear().await,
            None => Ok(()),
        }
    }

    /// For [`peer_main_if_asked`](crate::peer_main_if_asked): a peer gets its URL from its
    /// parent.
    pub(crate) fn of_peer(connect: Connect) -> UrlHarness {
        UrlHarness { name: "peer".to_owned(), connect, scratch: None }
    }

    fn url(&self) -> &str {
        self.scratch.as_ref().map_or("", ScratchStore::url)
    }
}

impl fmt::Debug for UrlHarness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password.
        f.debug_struct("UrlHarness").field("name", &self.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl Harness for UrlHarness {
    fn name(&self) -> &str {
        &self.name
    }

    fn stem(&self) -> &str {
        self.scratch.as_ref().map_or("", ScratchStore::prefix)
    }

    async fn open(&self, prefix: &str) -> Result<Box<dyn Store>> {
        if memory::SCHEME.names.contains(&self.name.as_str()) {
            // Each connect to mem:// is a store of its own; the suite needs clients of one.
            return MemoryHarness.open(prefix).await;
        }
        Ok(Box::new(UrlStore {
            url: self.url().to_owned(),
            connect: self.connect,
            password: StoreUrl::parse(self.url())?.password().map(str::to_owned),
        }))
    }

    async fn connect_peer(&self, address: &str, params: &Params) -> Result<Locks> {
        (self.connect)(&params.on_url(address)).await
    }
}

struct UrlStore {
    url: String,
    connect: Connect,
    password: Option<String>,
}

#[async_trait]
impl Store for UrlStore {
    async fn connect(&self, params: &Params) -> Result<Locks> {
        (self.connect)(&params.on_url(&self.url)).await
    }

    fn backdoors(&self) -> &[Backdoor] {
        &[Backdoor::Processes]
    }

    fn secrets(&self) -> Vec<String> {
        self.password.iter().cloned().collect()
    }

    fn peer_address(&self) -> String {
        self.url.clone()
    }
}
