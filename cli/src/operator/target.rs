//! The lock that a command is about: its name, and the store that has it.

use std::time::Duration;

use fencelock::url::StoreUrl;
use fencelock::{Error, ErrorKind, LockName, Locks, Reach, Result, Snapshot};

/// How long the store may take to be reached: an operator wants to know soon that it is gone.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// The lock and its store. Without `Debug`, since the URL may hold a password.
#[derive(clap::Args)]
pub(super) struct Target {
    /// The lock's name: 1 to 512 bytes, any characters
    #[arg(value_parser = name)]
    name: String,
    /// Store URL, such as redis://HOST or file:///DIR; the default, file://, is a per-user
    /// directory on this machine
    #[arg(short, long, env = fencelock::URL_VARIABLE, default_value = "file://", hide_env_values = true)]
    url: String,
}

fn name(text: &str) -> Result<String> {
    LockName::new(text).map(|_| text.to_owned())
}

impl Target {
    /// The store's URL. The only place that knows where it comes from.
    fn url(&self) -> Result<String> {
        Ok(self.url.clone())
    }

    /// Connects to the store.
    pub(super) async fn connect(self) -> Result<LockOnStore> {
        let url = self.url()?;
        let store = StoreUrl::parse(&url)?.to_string();
        let locks = fencelock::connect_within(&url, CONNECT_WITHIN).await?;
        if locks.profile().reach == Reach::Process {
            let message = format!(
                "{store} has the locks of one process only, so this command would always find them \
                 free; expected the store of the lock's holder, such as file:///DIR, redis://HOST or \
                 zk://HOST"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(LockOnStore { name: self.name, store, locks })
    }
}

/// A lock on a connected store.
pub(super) struct LockOnStore {
    pub(super) name: String,
    /// The URL without password and parameters.
    pub(super) store: String,
    pub(super) locks: Locks,
}

impl LockOnStore {
    /// The holders and waiters.
    pub(super) async fn inspect(&self) -> Result<Snapshot> {
        self.locks.inspect(&self.name).await
    }
}

/// `"backup" on redis://db1`
impl std::fmt::Display for LockOnStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} on {}", self.name, self.store)
    }
}
