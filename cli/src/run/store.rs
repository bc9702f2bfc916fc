//! The store's URL as far as this command looks into it: what may be shown, what tells two stores
//! apart, and the times that its parameters set.

use std::path::Path;
use std::time::Duration;

use fencelock::url::StoreUrl;
use fencelock::{Ttl, parse_duration};

use super::exit::Outcome;

/// A store, by its URL.
#[derive(Debug)]
pub(super) struct Store {
    /// With everything in it; not for people.
    pub(super) url: Secret,
    /// Without password and parameters.
    pub(super) redacted_url: String,
    parsed: StoreUrl,
}

/// Text that `Debug` does not show.
pub(super) struct Secret(String);

impl Secret {
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("…")
    }
}

impl Store {
    pub(super) fn new(url: String) -> Result<Store, Outcome> {
        let parsed = StoreUrl::parse(&url).map_err(Outcome::configuration)?;
        let redacted_url = parsed.to_string();
        Ok(Store { url: Secret(url), redacted_url, parsed })
    }

    /// What is equal for equal locks of equal names, as far as that can be told from here: a
    /// directory by its real path, once it is there.
    pub(super) fn identity(&self) -> String {
        let place = match self.parsed.scheme() {
            "file" if !self.parsed.path().is_empty() => {
                let real = Path::new(self.parsed.path()).canonicalize().ok();
                real.map(|real| format!("file://{}", real.display()))
            }
            _ => None,
        };
        let place = place.unwrap_or_else(|| self.redacted_url.clone());
        match parameter(self.url.reveal(), "prefix") {
            Some(prefix) => format!("{place}?prefix={prefix}"),
            None => place,
        }
    }

    /// How long the store may stay silent, if the URL says so.
    pub(super) fn unreachable_after(&self) -> Result<Option<Duration>, Outcome> {
        let text = parameter(self.url.reveal(), "unreachable_after");
        text.map(parse_duration).transpose().map_err(Outcome::configuration)
    }

    /// The TTL of locks that do not ask for their own.
    pub(super) fn ttl(&self) -> Result<Ttl, Outcome> {
        let Some(text) = parameter(self.url.reveal(), "ttl") else { return Ok(Ttl::default()) };
        parse_duration(text).and_then(Ttl::new).map_err(Outcome::configuration)
    }
}

/// The text of a parameter, as it stands there.
fn parameter<'a>(url: &'a str, name: &str) -> Option<&'a str> {
    let (_, query) = url.split_once('?')?;
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}
