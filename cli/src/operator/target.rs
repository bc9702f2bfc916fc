//! The lock that a command is about: its name, and the store that has it.

use std::time::Duration;

use fencelock::backend::invalid;
use fencelock::{Error, ErrorKind, Locks, Reach, Result, Snapshot};
use fencelock_cli::say;

use crate::config::{Config, StoreOptions};
use crate::lock_name::lock_name;

/// How long the store may take to be reached: an operator wants to know soon that it is gone.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// The lock and its store. Without `Debug`, since the URL may hold a password.
#[derive(clap::Args)]
pub(super) struct Target {
    /// The lock's name: 1 to 512 bytes, any characters
    #[arg(value_parser = lock_name)]
    name: String,
    #[command(flatten)]
    store: StoreOptions,
}

impl Target {
    /// Connects to the store.
    pub(super) async fn connect(self) -> Result<LockOnStore> {
        let (config, store, locks) = connect(self.store).await?;
        if locks.profile().reach == Reach::Process {
            let message = format!(
                "{store} has the locks of one process only, so this command would always find them \
                 free; expected the store of the lock's holder, such as file:///DIR, redis://HOST, \
                 postgres://USER@HOST/DATABASE or zk://HOST"
            );
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        // A lock that is free on too small a store may be held on the right one.
        let required = config.require_reach(locks.profile(), &store);
        required.map_err(|message| Error::new(ErrorKind::Unsupported, message))?;
        Ok(LockOnStore { name: self.name, store, locks })
    }
}

/// The settings, the store's URL without password and parameters, and the connected store.
pub(super) async fn connect(options: StoreOptions) -> Result<(Config, String, Locks)> {
    let config = Config::read(options).map_err(invalid)?;
    for warning in &config.warnings {
        say(&format!("warning: {warning}"));
    }
    let store = config.parsed_url().map_err(invalid)?.to_string();
    let locks = fencelock::connect_within(config.url(), CONNECT_WITHIN).await?;
    Ok((config, store, locks))
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
