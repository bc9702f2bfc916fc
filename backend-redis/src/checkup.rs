//! A look at the server's settings at connect: what they mean for locks.
//!
//! What is found is said once as a warning and stands in the profile. A server that refuses to
//! tell, by its ACL, is unknown and no error.

use std::borrow::Cow;
use std::collections::HashMap;

use fencelock_core::{
    Error, ErrorKind, Liveness, Modes, Order, Profile, Reach, RenewalPlan, Result, TokenOrder, Ttl,
};
use redis::Value;

use crate::connection::SupervisedConnection;
use crate::protocol::error::{meaning_of, protocol_error};

/// The oldest server whose commands the scripts use: `SET … KEEPTTL GET` is of 6.2.
const OLDEST: (u32, u32) = (6, 2);

/// A clock before September 2001 was never set; the scripts tell µs from ms by their size.
const EARLIEST_US: u64 = 1_000_000_000_000_000;

/// What the server said about itself.
#[derive(Debug, Default)]
pub(crate) struct ServerInfo {
    facts: HashMap<String, String>,
}

impl ServerInfo {
    /// Asks over `link`.
    pub(crate) async fn of(link: &SupervisedConnection) -> Result<ServerInfo> {
        match link.send(&redis::cmd("INFO")).await? {
            Ok(info @ (Value::BulkString(_) | Value::VerbatimString { .. })) => {
                Ok(ServerInfo::read(&info))
            }
            // What says OK to everything is no Redis, and would never grant a lock.
            Ok(_) => Err(Error::new(ErrorKind::Refused, protocol_error("INFO").message())),
            // The ACL may deny INFO and allow all that locks need; a server that is not ready yet
            // will be asked for locks soon enough.
            Err(error) => {
                let meaning = meaning_of(&error);
                tracing::debug!(?meaning, "the server does not tell its settings");
                Ok(ServerInfo::default())
            }
        }
    }

    /// What an answer to `INFO` says.
    pub(crate) fn read(info: &Value) -> ServerInfo {
        let facts = match info {
            Value::BulkString(text) => read(&String::from_utf8_lossy(text)),
            Value::VerbatimString { text, .. } => read(text),
            _ => HashMap::new(),
        };
        ServerInfo { facts }
    }

    /// Which run of the server this is.
    pub(crate) fn run_id(&self) -> Option<&str> {
        self.fact("run_id")
    }

    fn fact(&self, name: &str) -> Option<&str> {
        self.facts.get(name).map(String::as_str)
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.fact(name) == Some(value)
    }

    /// Redis and Valkey call it differently, from Valkey 8 on.
    fn mode(&self) -> Option<&str> {
        self.fact("redis_mode").or_else(|| self.fact("server_mode"))
    }

    /// Whether it is Redis Enterprise, which does not say of a database that it is Active-Active.
    fn may_be_active_active(&self) -> bool {
        self.fact("rlec_version").is_some()
    }

    /// Refuses a server that cannot carry locks.
    pub(crate) fn require(&self, cluster: bool) -> Result<()> {
        let refused = |message: String| Err(Error::new(ErrorKind::Refused, message));
        // Valkey goes on counting where Redis was when they parted, at 7.2.
        if let Some(version) = self.fact("redis_version")
            && let Some(numbers) = version_of(version)
            && numbers < OLDEST
        {
            return refused(format!("the server is Redis {version}; 6.2 or newer is needed"));
        }
        if let Some(us) = self.fact("server_time_usec").and_then(|us| us.parse::<u64>().ok())
            && us < EARLIEST_US
        {
            let days = us / 86_400_000_000;
            return refused(format!(
                "the server's clock shows day {days} after 1970 and must be set"
            ));
        }
        // Both grant the same lock, and agree which grant it was when all is over.
        if self.is("role", "active-replica") {
            return refused(
                "the server is an active replica of KeyDB: each of several masters would grant the \
                 same lock; use one without active-replica"
                    .to_owned(),
            );
        }
        match (self.mode(), cluster) {
            (Some("cluster"), false) => {
                refused("the server is part of a cluster; use redis-cluster://".to_owned())
            }
            (Some("standalone"), true) => {
                refused("the server is no part of a cluster; use redis://".to_owned())
            }
            (Some("sentinel"), _) => {
                let url = "redis+sentinel://HOST/SERVICE";
                refused(format!("the server is a sentinel; use {url}"))
            }
            _ if self.is("role", "slave") && !cluster => {
                refused("the server is a replica; use its master, or redis+sentinel://".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// When exclusion fails on this server.
    fn dangers(&self, failover: bool, replicas: u32) -> Vec<&'static str> {
        let mut dangers = vec!["the server's clock jumps"];
        let known = !self.facts.is_empty();
        if !known {
            dangers.push("the server restarts or evicts, unless its settings (unknown) prevent it");
        } else {
            match self.is("aof_enabled", "1") {
                true => dangers.push("power fails before the server has synced its log"),
                false => dangers.push("the server restarts: it keeps no append-only file"),
            }
            if self.evicts() {
                dangers.push("memory runs out: maxmemory-policy evicts locks");
            }
        }
        if self.may_be_active_active() {
            dangers.push("the database is Active-Active: each region grants the same lock");
        }
        let has_replicas = self.fact("connected_slaves").is_some_and(|count| count != "0");
        if failover || has_replicas || !known {
            dangers.push(match replicas {
                0 => "a failover loses the last writes",
                _ => "a failover chooses a replica without the last writes",
            });
        }
        dangers
    }

    fn evicts(&self) -> bool {
        let policy = self.fact("maxmemory_policy");
        policy.is_some_and(|policy| policy != "noeviction") && !self.is("maxmemory", "0")
    }

    /// Warns of settings that make locks less than a user may think.
    pub(crate) fn warn(&self, shown: &str) {
        self.warn_of_eviction(shown);
        if self.may_be_active_active() {
            tracing::warn!(
                store = shown,
                "this is Redis Enterprise: if the database is Active-Active, each region grants the \
                 same lock; use a database of one region"
            );
        }
        if self.is("aof_enabled", "0") {
            tracing::warn!(
                store = shown,
                "redis loses its locks when it restarts; set appendonly yes, or rely on fencing \
                 tokens"
            );
        }
    }

    /// The same of what one node of a quorum must not do, though it may restart.
    pub(crate) fn warn_of_eviction(&self, shown: &str) {
        if self.evicts() {
            tracing::warn!(
                store = shown,
                policy = self.fact("maxmemory_policy"),
                "redis may evict locks when its memory runs out; set maxmemory-policy noeviction"
            );
        }
    }

    /// The profile of a store on this server.
    pub(crate) fn profile(&self, failover: bool, replicas: u32) -> Profile {
        Profile {
            store: "redis",
            reach: Reach::Network,
            liveness: Liveness::Lease,
            renewal: RenewalPlan::ThirdOfTtl,
            longest_ttl: Ttl::MAX,
            order: Order::Arrival,
            modes: Modes::ALL,
            tokens: TokenOrder::BeyondData,
            exclusion_fails_when: Cow::Owned(self.dangers(failover, replicas)),
        }
    }
}

fn read(info: &str) -> HashMap<String, String> {
    let pairs = info.lines().filter_map(|line| line.trim_end().split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn version_of(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server_info(info: &str) -> ServerInfo {
        ServerInfo { facts: read(info) }
    }

    #[test]
    fn what_cannot_carry_locks_is_refused_with_a_way_out() {
        for (info, cluster, says) in [
            ("redis_version:6.0.9\r\n", false, "6.2 or newer"),
            ("redis_version:7.0.15\r\nredis_mode:cluster\r\n", false, "redis-cluster://"),
            ("redis_version:7.0.15\r\nredis_mode:standalone\r\n", true, "use redis://"),
            ("redis_version:7.0.15\r\nredis_mode:sentinel\r\n", false, "redis+sentinel://"),
            ("redis_version:7.0.15\r\nrole:slave\r\n", false, "is a replica"),
            ("server_time_usec:2592000000000\r\n", false, "clock shows day 30 after 1970"),
            // Valkey 8 and newer.
            ("redis_version:7.2.4\r\nserver_mode:cluster\r\n", false, "redis-cluster://"),
            ("redis_version:7.2.4\r\nserver_mode:standalone\r\n", true, "use redis://"),
            ("redis_version:7.2.4\r\nserver_mode:sentinel\r\n", false, "redis+sentinel://"),
            // KeyDB.
            ("redis_version:6.3.4\r\nrole:active-replica\r\n", false, "without active-replica"),
        ] {
            let error = server_info(info).require(cluster).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
        server_info("redis_version:6.2.0\r\nrole:master\r\nredis_mode:standalone\r\n")
            .require(false)
            .unwrap();
        server_info("").require(false).unwrap();
    }

    #[test]
    fn dangers_follow_from_the_settings() {
        let safe = "maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:1\r\n\
                    connected_slaves:0\r\n";
        let safe = server_info(safe).dangers(false, 0);
        assert_eq!(safe.len(), 2, "{safe:?}");
        let bad = "maxmemory:100\r\nmaxmemory_policy:volatile-lru\r\naof_enabled:0\r\n\
                   connected_slaves:1\r\n";
        let bad = server_info(bad).dangers(false, 0);
        assert_eq!(bad.len(), 4, "{bad:?}");
        let enterprise = server_info("rlec_version:7.4.2-54\r\naof_enabled:1\r\nmaxmemory:0\r\n");
        let dangers = enterprise.dangers(false, 0);
        assert!(dangers.iter().any(|danger| danger.contains("Active-Active")), "{dangers:?}");
        assert_eq!(server_info("").dangers(false, 0).len(), 3, "what is unknown counts");
    }
}
