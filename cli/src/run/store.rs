//! The parts of the store's URL that this command uses: what may be shown, what distinguishes two
//! stores, and the times that its parameters set.

use std::path::Path;
use std::time::Duration;

use fencelock::backend::url::StoreUrl;
use fencelock::{Ttl, parse_duration};

use super::exit::Outcome;

/// A store's URL. Without `Debug`, since it may hold a password.
pub(super) struct Store {
    pub(super) url: String,
    /// Without password and parameters.
    pub(super) redacted_url: String,
    parsed: StoreUrl,
}

impl Store {
    pub(super) fn new(url: String) -> Result<Store, Outcome> {
        let parsed = StoreUrl::parse(&url).map_err(Outcome::configuration)?;
        let redacted_url = parsed.to_string();
        Ok(Store { url, redacted_url, parsed })
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
        match parameter(&self.url, "prefix") {
            Some(prefix) => format!("{place}?prefix={prefix}"),
            None => place,
        }
    }

    /// How long the store may stay silent, if the URL says so.
    pub(super) fn unreachable_after(&self) -> Result<Option<Duration>, Outcome> {
        let text = parameter(&self.url, "unreachable_after");
        text.map(parse_duration).transpose().map_err(Outcome::configuration)
    }

    /// The TTL of locks that do not ask for their own.
    pub(super) fn ttl(&self) -> Result<Ttl, Outcome> {
        let Some(text) = parameter(&self.url, "ttl") else { return Ok(Ttl::default()) };
        parse_duration(text).and_then(Ttl::new).map_err(Outcome::configuration)
    }
}

/// A parameter's value, not decoded.
fn parameter<'a>(url: &'a str, name: &str) -> Option<&'a str> {
    let (_, query) = url.split_once('?')?;
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}
