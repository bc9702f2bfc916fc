//! Any store that a URL names, which may be a user's own: the suite touches nothing there but
//! what begins with its random prefix.

use std::fmt;

use async_trait::async_trait;
use fencelock_core::url::{Connecting, StoreUrl};
use fencelock_core::{Locks, Operation, Result, memory};

use super::memory::MemoryHarness;
use super::{Door, Harness, Params, Store};

/// Connects to the store that a URL names, as `fencelock::connect` does.
pub type Connect = fn(&str) -> Connecting;

/// A store by its URL. It has no back doors but other processes.
pub struct UrlHarness {
    name: String,
    url: String,
    /// What the user's own prefix was: access rights may hang on it.
    stem: String,
    connect: Connect,
}

impl UrlHarness {
    /// The store that `url` names.
    ///
    /// # Errors
    /// [`InvalidArgument`](fencelock_core::ErrorKind::InvalidArgument) for what is no URL.
    pub fn new(connect: Connect, url: &str) -> Result<UrlHarness> {
        let parsed = StoreUrl::parse(url).map_err(|error| error.during(Operation::Connect))?;
        let name = parsed.scheme().to_owned();
        let stem = user_prefix(url).unwrap_or_default();
        Ok(UrlHarness { name, url: url.to_owned(), stem, connect })
    }

    /// For [`peer_main_if_asked`](crate::peer_main_if_asked): a peer is told its URL by its
    /// parent.
    pub(crate) fn of_peer(connect: Connect) -> UrlHarness {
        UrlHarness { name: "peer".to_owned(), url: String::new(), stem: String::new(), connect }
    }
}

/// The user's own prefix, decoded as far as StoreUrl shows it.
fn user_prefix(url: &str) -> Option<String> {
    let query = url.split_once('?')?.1;
    let pair = query.split('&').find(|pair| pair.starts_with("prefix="))?;
    let lone = StoreUrl::parse(&format!("x://?{pair}")).ok()?;
    lone.params(&[]).ok()?.text("prefix").map(str::to_owned)
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
        &self.stem
    }

    async fn open(&self, prefix: &str) -> Result<Box<dyn Store>> {
        if memory::SCHEME.names.contains(&self.name.as_str()) {
            // Each connect to mem:// is a store of its own; the suite needs clients of one.
            return MemoryHarness.open(prefix).await;
        }
        Ok(Box::new(UrlStore {
            url: self.url.clone(),
            connect: self.connect,
            password: StoreUrl::parse(&self.url)?.password().map(str::to_owned),
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

    fn doors(&self) -> &[Door] {
        &[Door::Processes]
    }

    fn secrets(&self) -> Vec<String> {
        self.password.iter().cloned().collect()
    }

    fn peer_address(&self) -> String {
        self.url.clone()
    }
}
