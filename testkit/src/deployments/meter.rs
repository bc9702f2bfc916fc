//! The statistics that a deployment's servers report: versions, and usage so far.

use std::io;

use super::lines::{Lines, Traffic};
use crate::servers::process::cpu_ticks;
use crate::servers::{TestPostgres, TestRedis, ZooKeeperServer};

/// The usage of all servers of a store so far. `None`: the store does not have or report it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Meter {
    /// Where there are proxies.
    pub traffic: Option<Traffic>,
    /// Commands that the servers have carried out, with those inside of scripts, and their own; of Postgres
    /// its transactions, as far as it has counted them.
    pub commands: Option<u64>,
    /// How many transaction ids Postgres has given out.
    pub transaction_ids: Option<u64>,
    /// What their data takes in memory; of Postgres the size of its tables.
    pub memory_bytes: Option<u64>,
    /// How many things they store, of whatever kind: of Redis keys, of ZooKeeper nodes, of Postgres rows of
    /// claims, locks and cells, of a directory files and directories.
    pub keys: Option<u64>,
    /// What they have used of all processors, in seconds.
    pub cpu_s: Option<f64>,
}

impl Meter {
    fn of_servers(lines: &Lines, [commands, memory_bytes, keys]: [u64; 3], cpu_s: f64) -> Meter {
        Meter {
            traffic: lines.traffic(),
            commands: Some(commands),
            transaction_ids: None,
            memory_bytes: Some(memory_bytes),
            keys: Some(keys),
            cpu_s: Some(cpu_s),
        }
    }

    pub(super) async fn of_redis<'a>(
        servers: impl IntoIterator<Item = &'a TestRedis>,
        lines: &Lines,
    ) -> io::Result<Meter> {
        let (mut commands, mut memory_bytes, mut keys, mut cpu_s) = (0, 0, 0, 0.0);
        for server in servers {
            let info = server.command(&["INFO", "everything"]).await?;
            commands += number(&info, "total_commands_processed", ':')?;
            memory_bytes += number(&info, "used_memory", ':')?;
            let size = server.command(&["DBSIZE"]).await?;
            keys += size.parse::<u64>().map_err(io::Error::other)?;
            cpu_s += cpu_of(server.pid())?;
        }
        Ok(Meter::of_servers(lines, [commands, memory_bytes, keys], cpu_s))
    }

    pub(super) async fn of_zookeeper(
        servers: &[ZooKeeperServer],
        lines: &Lines,
    ) -> io::Result<Meter> {
        let (mut commands, mut memory_bytes, mut keys, mut cpu_s) = (0, 0, 0, 0.0);
        for server in servers {
            let counts = server.four_letter("mntr").await?;
            commands += number(&counts, "zk_packets_received", '\t')?;
            // Each server has a copy of the tree; the heap around it says nothing of locks.
            memory_bytes += number(&counts, "zk_approximate_data_size", '\t')?;
            keys += number(&counts, "zk_znode_count", '\t')?;
            cpu_s += cpu_of(server.pid())?;
        }
        Ok(Meter::of_servers(lines, [commands, memory_bytes, keys], cpu_s))
    }

    pub(super) async fn of_postgres<'a>(
        servers: impl IntoIterator<Item = &'a TestPostgres>,
        lines: &Lines,
    ) -> io::Result<Meter> {
        let (mut commands, mut memory_bytes, mut keys, mut cpu_s) = (0, 0, 0, 0.0);
        let mut transaction_ids = 0;
        for server in servers {
            let given = server.sql("SELECT pg_snapshot_xmax(pg_current_snapshot())").await?;
            transaction_ids += given.parse::<u64>().map_err(io::Error::other)?;
            let counted =
                server.sql("SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database");
            commands += counted.await?.parse::<u64>().map_err(io::Error::other)?;
            let size = server.sql(
                "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class
                 WHERE relnamespace = to_regnamespace('fencelock') AND relkind = 'r'",
            );
            memory_bytes += size.await?.parse::<u64>().map_err(io::Error::other)?;
            keys += rows_of(server).await?;
            cpu_s += cpu_of(server.pid())?;
        }
        let meter = Meter::of_servers(lines, [commands, memory_bytes, keys], cpu_s);
        Ok(Meter { transaction_ids: Some(transaction_ids), ..meter })
    }
}

/// How many rows the store's tables have, those that only count until the next step on their lock included.
async fn rows_of(server: &TestPostgres) -> io::Result<u64> {
    // None before the library first connects. Whether a process has a row depends on whether it has waited.
    let counts = server.sql(
        "SELECT string_agg(format('SELECT count(*) AS n FROM %I.%I', schemaname, tablename), ' UNION ALL ')
         FROM pg_tables WHERE schemaname = 'fencelock' AND tablename IN ('claims', 'locks', 'cells')",
    );
    match counts.await? {
        counts if counts.is_empty() => Ok(0),
        counts => {
            let sum = server.sql(&format!("SELECT sum(n) FROM ({counts}) AS counts")).await?;
            sum.parse().map_err(io::Error::other)
        }
    }
}

/// As `PostgreSQL 15.18`.
pub(super) async fn version_of_postgres(server: &TestPostgres) -> io::Result<String> {
    // Debian adds the version of its package.
    let version = server.sql("SHOW server_version").await?;
    Ok(format!("PostgreSQL {}", version.split(' ').next().unwrap_or_default()))
}

/// As `Redis 7.0.15`.
pub(super) async fn version_of_redis(server: &TestRedis) -> io::Result<String> {
    let info = server.command(&["INFO", "server"]).await?;
    Ok(format!("Redis {}", field(&info, "redis_version", ':')?))
}

/// As `ZooKeeper 3.8.0`.
pub(super) async fn version_of_zookeeper(server: &ZooKeeperServer) -> io::Result<String> {
    let counts = server.four_letter("mntr").await?;
    let version = field(&counts, "zk_version", '\t')?;
    let short: String =
        version.chars().take_while(|it| it.is_ascii_digit() || *it == '.').collect();
    Ok(format!("ZooKeeper {short}"))
}

fn field<'a>(text: &'a str, name: &str, separator: char) -> io::Result<&'a str> {
    let found = text.lines().filter_map(|line| line.trim_end().split_once(separator));
    let mut found = found.filter(|(key, _)| *key == name).map(|(_, value)| value);
    found.next().ok_or_else(|| io::Error::other(format!("the server reports no {name}")))
}

fn number(text: &str, name: &str, separator: char) -> io::Result<u64> {
    field(text, name, separator)?.parse().map_err(io::Error::other)
}

/// What a process and its children have used of all processors, in seconds.
#[expect(clippy::cast_precision_loss, reason = "seconds for people")]
pub(super) fn cpu_of(process: u32) -> io::Result<f64> {
    Ok(cpu_ticks(process)? as f64 / rustix::param::clock_ticks_per_second() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let info = "used_memory_rss:7\r\nused_memory:5\r\n";
        assert_eq!(number(info, "used_memory", ':').unwrap(), 5);
        assert!(number(info, "memory", ':').is_err());
    }

    #[test]
    fn this_process_uses_a_processor() {
        let before = cpu_of(std::process::id()).unwrap();
        while cpu_of(std::process::id()).unwrap() <= before {
            std::hint::black_box((0..100_000).sum::<u64>());
        }
    }
}
