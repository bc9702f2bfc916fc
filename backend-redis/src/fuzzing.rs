//! Parsers of external input, without a server: for the property tests and the fuzz targets in
//! `fuzz/`, which feed them garbage. Not part of this crate's interface.

use std::time::Duration;

use fencelock_core::url::StoreUrl;
use fencelock_core::{AttemptOutcome, Error, Moment, Result};
use redis::{RedisError, Value};

use crate::connection::HostPort;
use crate::connection::PushHandler;
use crate::connection::access::AddressMap;
use crate::protocol::error::explain;
use crate::protocol::identity::{Identity, Keys};
use crate::protocol::snapshot;
use crate::redlock::incarnation::{Deployment, verdict};
use crate::redlock::node::waiters::Waiters;
use crate::redlock::rules::rejections::{Rejection, Rejections};
use crate::redlock::{self, RedlockStore};
use crate::server::cluster::{read_map, redirection};
use crate::server::server_info::ServerInfo;
use crate::single::acquisition::read_attempt;
use crate::single::backend;
use crate::single::cells;
use crate::single::notifications::Notifications;
use crate::{REDLOCK_SCHEME, RedisStore};

/// The keys of the lock `key`: its own, its queue's and its token's.
#[must_use]
pub fn keys(key: &str) -> [String; 3] {
    Keys::of(key).all().map(str::to_owned)
}

/// Parses a URL of this crate's schemes, the first step of connecting.
///
/// # Errors
/// As connecting.
pub fn url(url: &StoreUrl) -> Result<()> {
    match REDLOCK_SCHEME.names.contains(&url.scheme()) {
        true => RedlockStore::from_url(url).map(drop),
        false => RedisStore::from_url(url).map(drop),
    }
}

/// What a reply grants, by the request that it is taken to answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Granted {
    /// The token, as the reply to an attempt.
    pub attempt: Option<u64>,
    /// The token, as the reply to a request for a vote.
    pub vote: Option<u64>,
}

/// Reads one reply in RESP as the reply to each kind of request, and as a push.
#[must_use]
pub fn reply(bytes: &[u8]) -> Granted {
    let value = match redis::parse_redis_value(bytes).and_then(Value::extract_error) {
        Ok(value) => value,
        Err(error) => {
            refused(&error);
            return Granted::default();
        }
    };
    settings(&value);
    pushed(&value);
    let _ = backend::read_check(value.clone());
    let _ = cells::read_content(value.clone(), "{l}:c");
    let _ = redlock::read_waiter_check(&value);
    let _ = read_map(&value, &asked(), &AddressMap::default());
    if let Some(seen) = snapshot::read(value.clone()) {
        let again = snapshot::read(value.clone());
        let _ = snapshot::LockContents::merge([seen].into_iter().chain(again).collect(), 2)
            .into_snapshot();
    }
    if let Some(rejection) = Rejection::read(&value) {
        let mut rejections = Rejections::default();
        rejections.add(rejection);
        let _ = rejections.check_after(2, 0);
    }
    if let Value::Array(values) = &value
        && let Some((text, now_us)) = redlock::read_record(values)
    {
        let ours = Deployment { nodes: 3, epoch: 1, delay: Duration::from_secs(60) };
        let _ = verdict(text.as_deref(), "run", now_us, ours);
    }
    let attempt = read_attempt(&value, Moment::from_nanos(1), Duration::from_secs(1), 1);
    Granted {
        attempt: match attempt {
            Some(AttemptOutcome::Granted { token, .. }) => Some(token.get()),
            _ => None,
        },
        vote: redlock::read_token(&value),
    }
}

/// The node that a reply is assumed to come from.
fn asked() -> HostPort {
    HostPort { name: "h".to_owned(), port: 6379 }
}

fn refused(error: &RedisError) -> Error {
    let _ = redirection(error, &asked(), &AddressMap::default());
    explain(error)
}

fn settings(info: &Value) {
    let server_info = ServerInfo::read(info);
    let _ = server_info.require(true).and(server_info.require(false));
    let _ = server_info.profile(true, 1);
}

fn pushed(value: &Value) {
    let notifications = Notifications::default();
    notifications.on_invalidate(value);
    if let Value::BulkString(text) = value {
        notifications.on_message(text);
        Waiters::at(3).on_message(0, text);
        let _ = Identity::parse(text);
    }
}
