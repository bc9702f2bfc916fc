//! Any store that a URL names, which may be a user's own: the suite touches nothing there but
//! what begins with its random prefix.

use std::fmt;
use std::path::Path;

use async_trait::async_trait;
use fencelock_core::url::{Connecting, StoreUrl};
use fencelock_core::{Locks, Operation, Result, memory};
use tempfile::TempDir;

use super::memory::MemoryHarness;
use super::{Door, Harness, Params, Store};

/// Connects to the store that a URL names, as `fencelock::connect` does.
pub type Connect = fn(&str) -> Connecting;

/// A store by its URL. It has no back doors but other processes.
pub struct UrlHarness {
    name: String,
    url: String,
    /// Where a file store keeps the suite's locks, whose directories stay for their tokens: one of
    /// the suite's own, which goes with the harness.
    _directory: Option<TempDir>,
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
        let directory = match name.as_str() {
            "file" => own_directory(parsed.path()),
            _ => None,
        };
        let url = match &directory {
            Some(directory) => inside(url, directory.path()),
            None => url.to_owned(),
        };
        Ok(UrlHarness { name, url, _directory: directory, stem, connect })
    }

    /// What clients connect to: the user's, or a directory in it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Connects once, to find out whether there is any sense in the suite.
    pub(crate) async fn probe(&self) -> Result<()> {
        let prefix = format!("{}conformance-{:016x}:", self.stem, crate::seed::fresh());
        (self.connect)(&Params::under(&prefix).on_url(&self.url)).await?.close().await
    }

    /// For [`peer_main_if_asked`](crate::peer_main_if_asked): a peer is told its URL by its
    /// parent.
    pub(crate) fn of_peer(connect: Connect) -> UrlHarness {
        UrlHarness {
            name: "peer".to_owned(),
            url: String::new(),
            _directory: None,
            stem: String::new(),
            connect,
        }
    }
}

/// A fresh directory in a file store's own, if the URL names that. A store that cannot be is left
/// to say so itself.
fn own_directory(path: &str) -> Option<TempDir> {
    if path.trim_matches('/').is_empty() {
        return None;
    }
    // The store makes its last part, too.
    let _ = std::fs::create_dir(path);
    tempfile::Builder::new().prefix("conformance-").tempdir_in(path).ok()
}

/// `url` with the last part of `directory` below its path.
fn inside(url: &str, directory: &Path) -> String {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let last = directory.file_name().unwrap_or_default().to_string_lossy();
    format!("{}/{last}?{query}", base.trim_end_matches('/'))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn unused(_: &str) -> Connecting {
        Box::pin(async { Err(fencelock_core::Error::new(fencelock_core::ErrorKind::Closed, "")) })
    }

    #[test]
    fn a_file_store_is_tested_in_a_directory_that_goes_away() {
        let parent = tempfile::tempdir().unwrap();
        let stays = parent.path().join("locks");
        let url = format!("file://{}/?unreachable_after=5s", stays.display());
        let harness = UrlHarness::new(unused, &url).unwrap();
        let within = format!("file://{}/conformance-", stays.display());
        assert!(harness.url.starts_with(&within), "{}", harness.url);
        assert!(harness.url.ends_with("?unreachable_after=5s"), "{}", harness.url);
        assert_eq!(std::fs::read_dir(&stays).unwrap().count(), 1);
        drop(harness);
        assert_eq!(std::fs::read_dir(&stays).unwrap().count(), 0);
    }

    #[test]
    fn the_users_prefix_stays_in_front() {
        let harness = UrlHarness::new(unused, "redis://h/?prefix=app%3A&db=1").unwrap();
        assert_eq!((harness.stem(), harness.name()), ("app:", "redis"));
        assert!(UrlHarness::new(unused, "nonsense").is_err());
    }
}
