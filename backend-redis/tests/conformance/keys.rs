//! The keys in a server, read without the library under test.

use fencelock_conformance::Params;
use fencelock_core::{Locks, Result, url};
use fencelock_redis::{REDLOCK_SCHEME, SCHEME};
use fencelock_testkit::proxied::cannot;
use fencelock_testkit::servers::TestRedis;

/// Connects like a user's program.
pub(crate) async fn connect(address: &str, params: &Params) -> Result<Locks> {
    url::connect(&[SCHEME, REDLOCK_SCHEME], &params.on_url(address)).await
}

async fn ask(server: &TestRedis, command: &[&str]) -> Result<String> {
    server.command(command).await.map_err(|cause| cannot("ask the server", cause))
}

/// The key of the lock of this prefix and name, which clients in all languages share.
pub(crate) fn key(prefix: &str, name: &str) -> String {
    let key = format!("{prefix}{name}");
    key.replace('%', "%25").replace('{', "%7B").replace('}', "%7D")
}

pub(crate) async fn is_locked(server: &TestRedis, prefix: &str, name: &str) -> Result<bool> {
    Ok(ask(server, &["EXISTS", &key(prefix, name)]).await? == "1")
}

pub(crate) async fn expire(server: &TestRedis, prefix: &str, name: &str) -> Result<()> {
    ask(server, &["DEL", &key(prefix, name)]).await.map(drop)
}

/// What FLUSHALL is to the clients of this prefix: other behaviours use the server, too.
pub(crate) async fn lose_data(server: &TestRedis, prefix: &str) -> Result<()> {
    let lose = "for _, key in ipairs(redis.call('KEYS', '*' .. ARGV[1] .. '*')) do
        redis.call('DEL', key)
    end";
    ask(server, &["EVAL", lose, "0", prefix]).await.map(drop)
}
