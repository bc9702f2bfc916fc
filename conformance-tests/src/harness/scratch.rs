//! The part of a user's store that one run works in, and how it goes again: names under a fresh
//! prefix, and in a file store a directory.
//!
//! It is cleared by a client that connected before all others and is asked nothing until the end,
//! so that it knows what the store had before.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencelock_core::url::{Connecting, StoreUrl};
use fencelock_core::{Error, ErrorKind, Locks, Operation, Result, Scratch, Settings, memory};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::Params;

/// Connects to the store that a URL names, as `fencelock::connect` does.
pub type Connect = fn(&str) -> Connecting;

/// How long the store has to remove what a run made: it may have to search millions of keys, and a
/// server may be away at the moment.
const CLEARED_WITHIN: Duration = Duration::from_secs(30);

/// The part of a store that one run works in.
pub struct ScratchStore {
    connect: Connect,
    url: String,
    scratch: Scratch,
    /// Where a file store keeps the locks.
    directory: Mutex<Option<OwnDirectory>>,
    client: Mutex<Option<Locks>>,
}

impl ScratchStore {
    /// A part of the store that `url` names; `word` says for what, to people.
    ///
    /// # Errors
    /// [`InvalidArgument`](ErrorKind::InvalidArgument) for an invalid URL.
    pub fn new(connect: Connect, url: &str, word: &str) -> Result<ScratchStore> {
        let parsed = StoreUrl::parse(url).map_err(|error| error.during(Operation::Connect))?;
        let directory = match parsed.scheme() {
            "file" => OwnDirectory::within(parsed.path(), word),
            _ => None,
        };
        let scratch = Scratch::fresh(&user_prefix(url), word);
        let url = match &directory {
            Some(directory) => inside(url, directory.path()),
            None => url.to_owned(),
        };
        let (directory, client) = (Mutex::new(directory), Mutex::default());
        Ok(ScratchStore { connect, url, scratch, directory, client })
    }

    /// What clients connect to: the user's URL, or that of a directory in it. Without the prefix.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What all names begin with. It begins with the user's own prefix, since access rights may
    /// depend on that.
    #[must_use]
    pub fn prefix(&self) -> &str {
        self.scratch.prefix()
    }

    /// Connects, on the current runtime, which must run on until [`clear`](ScratchStore::clear).
    /// To be called before any other client connects.
    ///
    /// # Errors
    /// When the store cannot be reached: the run is pointless then.
    pub async fn open(&self) -> Result<()> {
        let client = (self.connect)(&Params::prefix_on_url(self.prefix(), &self.url)).await?;
        *lock(&self.client) = Some(client);
        Ok(())
    }

    /// Removes what the run made, when all its clients have ended.
    ///
    /// # Errors
    /// Why something stays.
    pub async fn clear(&self) -> Result<()> {
        let client = lock(&self.client).take();
        let directory = lock(&self.directory).take();
        let Some(client) = client else { return Ok(()) };
        let cleared = match self.ends_with_its_clients() || directory.is_some() {
            true => Ok(()),
            false => client.clear(&self.scratch, CLEARED_WITHIN).await,
        };
        // It has nothing to lose.
        let _ = client.close().await;
        cleared.map_err(|error| {
            let message = format!("not all that begins with {:?} was removed", self.prefix());
            Error::new(error.kind(), message).caused_by(error)
        })?;
        match directory {
            Some(directory) => directory.remove().await,
            None => Ok(()),
        }
    }

    /// Each client of `mem://` has a store of its own.
    fn ends_with_its_clients(&self) -> bool {
        let scheme = self.url.split("://").next().unwrap_or_default();
        memory::SCHEME.names.contains(&scheme)
    }
}

impl fmt::Debug for ScratchStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password.
        f.debug_struct("ScratchStore").field("prefix", &self.prefix()).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `url` with the last part of `directory` below its path.
fn inside(url: &str, directory: &Path) -> String {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let last = directory.file_name().unwrap_or_default().to_string_lossy();
    format!("{}/{last}?{query}", base.trim_end_matches('/'))
}

/// The user's own prefix, decoded as far as StoreUrl shows it.
fn user_prefix(url: &str) -> String {
    let named = || {
        let query = url.split_once('?')?.1;
        let pair = query.split('&').find(|pair| pair.starts_with("prefix="))?;
        let lone = StoreUrl::parse(&format!("x://?{pair}")).ok()?;
        lone.params(&[]).ok()?.text("prefix").map(str::to_owned)
    };
    named().unwrap_or_else(|| Settings::default().key_prefix().to_owned())
}

/// A directory of the run's own in a file store's, where the directories of locks stay for their
/// tokens.
struct OwnDirectory {
    directory: Option<TempDir>,
    /// The store's own, if it was not there before.
    made: Option<PathBuf>,
}

impl OwnDirectory {
    /// None if there can be none: the store then says so itself.
    fn within(path: &str, word: &str) -> Option<OwnDirectory> {
        if path.trim_matches('/').is_empty() {
            return None;
        }
        // The store makes its last part, too.
        let made = std::fs::create_dir(path).is_ok().then(|| PathBuf::from(path));
        let mut own = OwnDirectory { directory: None, made };
        let prefix = format!("{word}-");
        own.directory = Some(tempfile::Builder::new().prefix(&prefix).tempdir_in(path).ok()?);
        Some(own)
    }

    fn path(&self) -> &Path {
        self.directory.as_ref().map_or(Path::new(""), TempDir::path)
    }

    async fn remove(mut self) -> Result<()> {
        let Some(directory) = self.directory.take() else { return Ok(()) };
        let end = Instant::now() + CLEARED_WITHIN;
        loop {
            let Err(cause) = std::fs::remove_dir_all(directory.path()) else {
                let _ = directory.keep();
                return Ok(());
            };
            // A step that a client left behind, on a thread of its own, may yet make the directory of a lock.
            if cause.kind() != io::ErrorKind::DirectoryNotEmpty || Instant::now() > end {
                let path = directory.path().display();
                let message = format!("the directory {path} could not be removed");
                let error = Error::new(ErrorKind::Refused, message).caused_by(cause);
                return Err(error.during(Operation::Clear));
            }
            sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        drop(self.directory.take());
        if let Some(made) = &self.made {
            // Another program's locks may lie there by now; then it is not empty, and stays.
            let _ = std::fs::remove_dir(made);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unused(_: &str) -> Connecting {
        Box::pin(async { Err(Error::new(ErrorKind::Closed, "")) })
    }

    #[test]
    fn a_file_store_is_used_in_a_directory_that_goes_away() {
        let parent = tempfile::tempdir().unwrap();
        let locks = parent.path().join("locks");
        let url = format!("file://{}/?unreachable_after=5s", locks.display());
        let scratch = ScratchStore::new(unused, &url, "bench").unwrap();
        let within = format!("file://{}/bench-", locks.display());
        assert!(scratch.url().starts_with(&within), "{}", scratch.url());
        assert!(scratch.url().ends_with("?unreachable_after=5s"), "{}", scratch.url());
        assert_eq!(std::fs::read_dir(&locks).unwrap().count(), 1);
        drop(scratch);
        assert!(!locks.exists(), "it was not there before");
    }

    #[tokio::test]
    async fn a_directory_stays_that_was_there_or_is_in_use() {
        let parent = tempfile::tempdir().unwrap();
        let (old, new) = (parent.path().join("old"), parent.path().join("new"));
        std::fs::create_dir(&old).unwrap();
        let of = |path: &Path| OwnDirectory::within(path.to_str().unwrap(), "bench").unwrap();
        let (in_old, in_new) = (of(&old), of(&new));
        std::fs::create_dir(new.join("another program's lock")).unwrap();
        in_old.remove().await.unwrap();
        in_new.remove().await.unwrap();
        assert_eq!(std::fs::read_dir(&old).unwrap().count(), 0);
        assert_eq!(std::fs::read_dir(&new).unwrap().count(), 1);
    }

    #[test]
    fn the_users_prefix_stays_in_front() {
        let scratch = ScratchStore::new(unused, "redis://h/?prefix=app%3A&db=1", "bench").unwrap();
        assert!(scratch.prefix().starts_with("app:bench-"), "{}", scratch.prefix());
        assert!(ScratchStore::new(unused, "nonsense", "bench").is_err());
    }
}
