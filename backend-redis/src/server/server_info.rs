//! The server's settings, read at connect, and what they mean for locks.
//!
//! Risks are logged once as warnings and listed in the profile. A server whose ACL denies `INFO`
//! has unknown settings, which is not an error.

use std::borrow::Cow;
use std::collections::HashMap;

use fencelock_core::{
    CellDurability, Error, ErrorKind, Liveness, Modes, Order, Profile, Reach, RenewalPlan, Result,
    TokenOrder, Ttl,
};
use fencelock_net::words_of_server;
use redis::Value;

use crate::protocol::error::{explain, protocol_error};

/// The oldest server that has the scripts' commands: `SET … KEEPTTL GET` came with 6.2.
const OLDEST: (u32, u32) = (6, 2);

/// A clock before September 2001 was never set; the scripts distinguish µs from ms by their size.
const EARLIEST_US: u64 = 1_000_000_000_000_000;

/// The server's reply to `INFO`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerInfo {
    facts: HashMap<String, String>,
    /// Why there are none.
    denied: Option<Error>,
}

impl ServerInfo {
    /// What a server replied to `INFO`, which its ACL may deny although it allows all that locks need.
    pub(crate) fn told(reply: Value) -> Result<ServerInfo> {
        match reply.extract_error() {
            Ok(info @ (Value::BulkString(_) | Value::VerbatimString { .. })) => {
                Ok(ServerInfo::read(&info))
            }
            // A server that replies OK to everything is not Redis, and would never grant a lock.
            Ok(_) => Err(Error::new(ErrorKind::Refused, protocol_error("INFO").message())),
            // A server that is not ready yet reports that to the first acquisition.
            Err(error) => Ok(ServerInfo { denied: Some(explain(&error)), ..ServerInfo::default() }),
        }
    }

    /// Parses a reply to `INFO`.
    pub(crate) fn read(info: &Value) -> ServerInfo {
        match info {
            Value::BulkString(text) => ServerInfo::parse(&String::from_utf8_lossy(text)),
            Value::VerbatimString { text, .. } => ServerInfo::parse(text),
            _ => ServerInfo::default(),
        }
    }

    fn parse(info: &str) -> ServerInfo {
        let facts = info.lines().filter_map(|line| line.trim_end().split_once(':'));
        let facts = facts.map(|(name, value)| (name.to_owned(), value.to_owned()));
        ServerInfo { facts: facts.collect(), denied: None }
    }

    /// The ID of this run of the server.
    pub(crate) fn run_id(&self) -> Option<&str> {
        self.fact("run_id")
    }

    /// Whether `INFO` is denied, not only at this moment.
    pub(crate) fn is_denied(&self) -> bool {
        self.denied.as_ref().is_some_and(|error| !error.is_retryable())
    }

    fn fact(&self, name: &str) -> Option<&str> {
        self.facts.get(name).map(String::as_str)
    }

    pub(crate) fn is(&self, name: &str, value: &str) -> bool {
        self.fact(name) == Some(value)
    }

    /// Redis and Valkey name it differently, from Valkey 8 on.
    fn mode(&self) -> Option<&str> {
        self.fact("redis_mode").or_else(|| self.fact("server_mode"))
    }

    /// Whether it is Redis Enterprise, which does not report whether a database is Active-Active.
    fn may_be_active_active(&self) -> bool {
        self.fact("rlec_version").is_some()
    }

    /// Refuses a server that cannot carry locks.
    pub(crate) fn require(&self, cluster: bool) -> Result<()> {
        let refused = |message: &str| Err(Error::new(ErrorKind::Refused, message));
        // Valkey continues the numbers of Redis from 7.2, where it was forked.
        if let Some(version) = self.fact("redis_version")
            && let Some(numbers) = version_of(version)
            && numbers < OLDEST
        {
            let version = words_of_server(version);
            return refused(&format!("the server is Redis {version}; 6.2 or newer is needed"));
        }
        if let Some(us) = self.fact("server_time_usec").and_then(|us| us.parse::<u64>().ok())
            && us < EARLIEST_US
        {
            let days = us / 86_400_000_000;
            let clock = format!("the server's clock shows day {days} after 1970 and must be set");
            return refused(&clock);
        }
        // All masters grant the same lock, and reconcile their data only afterwards.
        if self.is("role", "active-replica") {
            return refused(
                "the server is an active replica of KeyDB: each of several masters would grant the \
                 same lock; use one without active-replica",
            );
        }
        match (self.mode(), cluster) {
            (Some("cluster"), false) => {
                refused("the server is part of a cluster; use redis-cluster://")
            }
            (Some("standalone"), true) => {
                refused("the server is not in cluster mode; use redis://")
            }
            (Some("sentinel"), _) => {
                refused("the server is a sentinel; use redis+sentinel://HOST/SERVICE")
            }
            _ => Ok(()),
        }
    }

    /// The conditions under which exclusion fails on this server.
    fn dangers(&self, failover: bool, replicas: u32) -> Vec<&'static str> {
        let mut dangers = vec!["the server's clock jumps"];
        let is_known = !self.facts.is_empty();
        if !is_known {
            dangers.push("the server restarts or evicts, unless its settings (unknown) prevent it");
        } else {
            dangers.push(match self.is("aof_enabled", "1") {
                true => "power fails before the server has synced its log",
                false => "the server restarts: it keeps no append-only file",
            });
            if self.evicts() {
                dangers.push("memory runs out: maxmemory-policy evicts locks");
            }
        }
        if self.may_be_active_active() || !is_known {
            dangers.push("the database is Active-Active: each region grants the same lock");
        }
        let has_replicas = self.fact("connected_slaves").is_some_and(|count| count != "0");
        if failover || has_replicas || !is_known {
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

    /// Logs warnings about settings that weaken locks.
    pub(crate) fn warn(&self, shown: &str) {
        if let (true, Some(error)) = (self.is_denied(), &self.denied) {
            tracing::warn!(
                store = shown,
                %error,
                "cannot check this server, since it denies INFO: it may forget its locks when it restarts, evict them \
                 when its memory runs out, or be one of several masters; allow +info"
            );
        }
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

    /// The warning for a quorum's node, which may restart but must not evict keys.
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
            downgrade: true,
            tokens: TokenOrder::BeyondData,
            // No more tokens than microseconds that a grant takes: they follow the clock.
            max_local_handoffs: 64,
            cells: Some(CellDurability::Data),
            exclusion_fails_when: Cow::Owned(self.dangers(failover, replicas)),
        }
    }
}

fn version_of(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsuitable_server_is_refused_with_advice() {
        for (info, cluster, says) in [
            ("redis_version:6.0.9\r\n", false, "6.2 or newer"),
            ("server_time_usec:2592000000000\r\n", false, "clock shows day 30 after 1970"),
            // Valkey 8 and newer.
            ("redis_version:7.2.4\r\nserver_mode:cluster\r\n", false, "redis-cluster://"),
            ("redis_version:7.2.4\r\nserver_mode:standalone\r\n", true, "use redis://"),
            ("redis_version:7.2.4\r\nserver_mode:sentinel\r\n", false, "redis+sentinel://"),
            // KeyDB.
            ("redis_version:6.3.4\r\nrole:active-replica\r\n", false, "without active-replica"),
        ] {
            let error = ServerInfo::parse(info).require(cluster).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
        }
        ServerInfo::parse("redis_version:6.2.0\r\nrole:master\r\nredis_mode:standalone\r\n")
            .require(false)
            .unwrap();
        ServerInfo::parse("").require(false).unwrap();
    }

    #[test]
    fn the_dangers_depend_on_the_settings() {
        let safe = "maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:1\r\n\
                    connected_slaves:0\r\n";
        let safe = ServerInfo::parse(safe).dangers(false, 0);
        assert_eq!(safe.len(), 2, "{safe:?}");
        let bad = "maxmemory:100\r\nmaxmemory_policy:volatile-lru\r\naof_enabled:0\r\n\
                   connected_slaves:1\r\n";
        let bad = ServerInfo::parse(bad).dangers(false, 0);
        assert_eq!(bad.len(), 4, "{bad:?}");
        let enterprise =
            ServerInfo::parse("rlec_version:7.4.2-54\r\naof_enabled:1\r\nmaxmemory:0\r\n");
        let dangers = enterprise.dangers(false, 0);
        assert!(dangers.iter().any(|danger| danger.contains("Active-Active")), "{dangers:?}");
        assert_eq!(
            ServerInfo::parse("").dangers(false, 0).len(),
            4,
            "unknown settings count as dangers"
        );
    }
}
