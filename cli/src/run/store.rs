//! The store of a run: what of its URL may be shown, what distinguishes two stores, the times that
//! its parameters set, and what is required of it.

use std::path::Path;
use std::time::Duration;

use fencelock::backend::url::StoreUrl;
use fencelock::{Liveness, Locks, Ttl};

use super::exit::Outcome;
use crate::config::Config;

/// The store and its settings. Without `Debug`, since the URL may contain a password.
pub(super) struct Store {
    /// The URL without password and parameters.
    pub(super) redacted_url: String,
    pub(super) config: Config,
    parsed: StoreUrl,
}

impl Store {
    pub(super) fn new(config: Config) -> Result<Store, Outcome> {
        let parsed = config.parsed_url().map_err(Outcome::configuration)?;
        let redacted_url = parsed.to_string();
        Ok(Store { redacted_url, config, parsed })
    }

    pub(super) fn url(&self) -> &str {
        self.config.url()
    }

    /// Refuses a store whose locks exclude too little.
    pub(super) fn require_reach(&self, locks: &Locks) -> Result<(), Outcome> {
        let required = self.config.require_reach(locks.profile(), &self.redacted_url);
        required.map_err(Outcome::Configuration)
    }

    /// That the option `--ttl` has no effect, if so.
    pub(super) fn notice_of_ttl(&self, locks: &Locks) -> Option<String> {
        let why = match locks.profile().liveness {
            Liveness::Lease => return None,
            Liveness::Process => "a lock lasts until this program ends",
            Liveness::Session(_) => "a lock lasts as long as the session (session= in the URL)",
        };
        Some(format!("--ttl has no effect on {}: {why}", self.redacted_url))
    }

    /// Equal for stores in which equal names are the same lock, as far as the URLs show that; a
    /// directory counts by its real path, once it exists.
    pub(super) fn identity(&self) -> String {
        let place = match self.parsed.scheme() {
            "file" if !self.parsed.path().is_empty() => {
                let real = Path::new(self.parsed.path()).canonicalize().ok();
                real.map(|real| format!("file://{}", real.display()))
            }
            _ => None,
        };
        let place = place.unwrap_or_else(|| self.redacted_url.clone());
        match self.parsed.given_params().text("prefix") {
            Some(prefix) => format!("{place}?prefix={prefix}"),
            None => place,
        }
    }

    /// How long the store may stay silent, if the URL says so.
    pub(super) fn unreachable_after(&self) -> Result<Option<Duration>, Outcome> {
        let bound = self.parsed.given_params().duration("unreachable_after");
        bound.map_err(|error| Outcome::Configuration(self.config.about_url(&error)))
    }

    /// The TTL that the URL sets for locks that do not ask for their own.
    pub(super) fn ttl(&self) -> Result<Option<Ttl>, Outcome> {
        let ttl = self.parsed.given_params().ttl();
        ttl.map_err(|error| Outcome::Configuration(self.config.about_url(&error)))
    }
}
