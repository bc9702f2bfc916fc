//! The store that a command uses: one that it starts itself, by its name, or one of the user's.

use std::fmt;
use std::io;
use std::str::FromStr;

use fencelock::backend::url::StoreUrl;
use fencelock::{Error, ErrorKind, Result};
use fencelock_testkit::deployments::{self, Deployment, Kind, Library, Wiring};

/// What deployments use of this library.
pub(crate) const LIBRARY: Library = Library { connect: crate::conformance::connect, declare_new };

#[derive(Clone, Debug)]
pub(crate) enum StoreSpec {
    Started(Kind),
    Named(String),
}

impl StoreSpec {
    /// Starts its servers, or connects to the user's.
    pub(crate) async fn start(&self, wiring: Wiring) -> io::Result<Box<dyn Deployment>> {
        match self {
            StoreSpec::Started(kind) => kind.start(LIBRARY, wiring).await,
            StoreSpec::Named(url) => deployments::named(url, LIBRARY, wiring).await,
        }
    }

    /// What its user must run, if that is known.
    pub(crate) fn to_run(&self) -> Option<&'static str> {
        let StoreSpec::Started(kind) = self else { return None };
        Some(match kind {
            Kind::Memory => "nothing",
            Kind::File => "nothing; a directory on a local disk",
            Kind::Postgres => "1 PostgreSQL server",
            Kind::PostgresPgbouncer => "1 PostgreSQL server and pgbouncer",
            Kind::PostgresFailover => "2 PostgreSQL servers, and what promotes a standby",
            Kind::PostgresSync => {
                "2 PostgreSQL servers, and what promotes a standby and lets go of it"
            }
            Kind::Redis => "1 redis-server",
            Kind::RedisAof => "1 redis-server with a disk that it can trust",
            Kind::RedisFailover => "2 redis-servers, and what moves their address",
            Kind::RedisSentinel => "3 redis-servers and 3 sentinels, on 3 machines",
            Kind::RedisCluster => "6 redis-servers, on 3 machines",
            Kind::Redlock3 => "3 independent redis-servers, on 3 machines with good clocks",
            Kind::Redlock5 => "5 independent redis-servers, on 5 machines with good clocks",
            Kind::ZooKeeper => "1 JVM with a disk",
            Kind::ZooKeeper3 => "3 JVMs with disks, on 3 machines",
        })
    }

    /// The error that the store could not be used; the library's own error, if that was the cause.
    pub(crate) fn failed(&self, what: &str, cause: io::Error) -> Error {
        match cause.downcast::<Error>() {
            Ok(error) => error,
            Err(cause) => {
                let message = format!("{self} could not be {what}: {cause}");
                Error::new(ErrorKind::Refused, message).caused_by(cause)
            }
        }
    }
}

impl FromStr for StoreSpec {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<StoreSpec, String> {
        match text.contains("://") {
            true => Ok(StoreSpec::Named(text.to_owned())),
            false => text
                .parse()
                .map(StoreSpec::Started)
                .map_err(|why| format!("{why}, or the URL of your own store")),
        }
    }
}

/// Without the password of a URL.
impl fmt::Display for StoreSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreSpec::Started(kind) => kind.fmt(f),
            StoreSpec::Named(url) => match StoreUrl::parse(url) {
                Ok(url) => url.fmt(f),
                Err(_) => write!(f, "{}://…", url.split("://").next().unwrap_or_default()),
            },
        }
    }
}

fn declare_new(url: &str) -> futures_util::future::BoxFuture<'static, Result<()>> {
    let url = url.to_owned();
    Box::pin(async move { fencelock::redlock::init(&url).await.map(drop) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for url in ["redis://u:hunter2@h/0?ttl=5s", "redis://:hunter2@h", "redis:// :hunter2@"] {
            let shown = url.parse::<StoreSpec>().expect("a spec").to_string();
            assert!(!shown.contains("hunter2") && shown.starts_with("redis://"), "{shown}");
        }
        assert!("reddis".parse::<StoreSpec>().is_err());
    }
}
