//! The deployments of PostgreSQL, without the library: what each fault leaves of the data, and that all can
//! be used again after it.

use std::time::Duration;

use fencelock_core::url::Connecting;
use fencelock_core::{Error, ErrorKind};
use fencelock_testkit::deployments::{Deployment, Fault, Kind, Library, Wiring};
use tokio_postgres::{Client, NoTls};

use crate::within;

const NONE: Library = Library { connect: no_store, declare_new: |_| Box::pin(async { Ok(()) }) };
const OF_LINES: [Fault; 8] = [
    Fault::CutOff,
    Fault::RequestsLost,
    Fault::RepliesLost,
    Fault::ConnectionsReset,
    Fault::Flapping,
    Fault::SlowReplies,
    Fault::RepliesDropped,
    Fault::Stalled,
];
const SHORT: Duration = Duration::from_millis(300);

fn no_store(_: &str) -> Connecting {
    Box::pin(async { Err(Error::new(ErrorKind::Unsupported, "there is no store")) })
}

/// A client of the server that accepts writes, as the store connects.
async fn connect(deployment: &dyn Deployment) -> Client {
    let url = format!("{}?target_session_attrs=read-write", deployment.url());
    let connecting = async {
        loop {
            if let Ok((client, connection)) = tokio_postgres::connect(&url, NoTls).await {
                tokio::spawn(connection);
                // A pooler may have sessions that have ended.
                if client.batch_execute("SELECT 1").await.is_ok() {
                    return client;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(connecting).await
}

/// Through a pooler no statement can be prepared.
pub(crate) async fn value(client: &Client, query: &str) -> String {
    let rows = client.simple_query(query).await.unwrap();
    let rows = rows.into_iter().filter_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    rows.last().unwrap()
}

const TABLES: &str = "
    CREATE SCHEMA fencelock;
    CREATE TABLE fencelock.locks (key bytea PRIMARY KEY, owner uuid, until bigint, crowd boolean,
        grp \"char\", n int);
    CREATE TABLE fencelock.claims (owner uuid, key bytea, state \"char\", proc text, until bigint);
    CREATE TABLE fencelock.processes (proc text, deadline bigint);
    CREATE TABLE fencelock.cells (key bytea);";

/// Inflicts each fault of the servers, and looks whether what was committed before is there.
async fn keeps_its_data(kind: Kind) -> Box<dyn Deployment> {
    let deployment = within(kind.start(NONE, Wiring::Proxied)).await.unwrap();
    assert!(deployment.versions().await.unwrap()[0].starts_with("PostgreSQL 1"));
    assert!(deployment.leftovers().await.unwrap().is_empty());
    connect(&*deployment).await.batch_execute(TABLES).await.unwrap();
    let faults = deployment.faults();
    assert!(faults.len() >= 13, "{faults:?}");
    // The other faults of lines are those of every proxy.
    for fault in faults.into_iter().filter(|it| *it == Fault::CutOff || !OF_LINES.contains(it)) {
        let client = connect(&*deployment).await;
        let insert = "TRUNCATE fencelock.locks; INSERT INTO fencelock.locks (key) VALUES ('k')";
        client.batch_execute(insert).await.unwrap();
        within(deployment.inflict(fault, SHORT)).await.unwrap();
        let client = connect(&*deployment).await;
        let rows = value(&client, "SELECT count(*) FROM fencelock.locks").await;
        let is_lost = fault == Fault::DataLost;
        assert_eq!(rows, if is_lost { "0" } else { "1" }, "{kind}: {fault}");
        assert!(!is_lost || deployment.may_lose_data(fault));
    }
    let meter = deployment.meter().await.unwrap();
    assert!(meter.cpu_s.unwrap() > 0.0 && meter.memory_bytes.unwrap() > 0, "{meter:?}");
    assert!(meter.commands.unwrap() > 0 && meter.traffic.unwrap().requests > 0, "{meter:?}");
    let held = "INSERT INTO fencelock.locks VALUES ('h', gen_random_uuid(), 9e18, false, NULL, 0)";
    connect(&*deployment).await.batch_execute(held).await.unwrap();
    assert_eq!(deployment.leftovers().await.unwrap().len(), 1);
    deployment
}

#[tokio::test]
async fn one_server_keeps_its_data_and_its_clock_steps() {
    let deployment = keeps_its_data(Kind::Postgres).await;
    let client = connect(&*deployment).await;
    let seconds = async || {
        let now = value(&client, "SELECT extract(epoch FROM clock_timestamp())::bigint").await;
        now.parse::<i64>().unwrap()
    };
    let [clock] = deployment.clocks() else { panic!("a C compiler makes one clock") };
    assert!(clock.is_in_use().unwrap());
    let before = seconds().await;
    clock.is_ahead_by(1000).unwrap();
    assert!((before + 1000..before + 1100).contains(&seconds().await));
    clock.is_ahead_by(-1000).unwrap();
    assert!(seconds().await < before);
}

/// Counts for as long as the server answers, and returns what it last said was committed.
async fn count(client: &Client) -> u64 {
    let mut counted = 0;
    let add = "UPDATE fencelock.locks SET n = n + 1 RETURNING n";
    while let Ok(rows) = client.simple_query(add).await {
        for row in rows {
            if let tokio_postgres::SimpleQueryMessage::Row(row) = row {
                counted = row.get(0).unwrap().parse().unwrap();
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    counted
}

/// What was committed before a failover, and what is left of it.
async fn counted_and_left(kind: Kind, fault: Fault) -> (u64, u64) {
    let deployment = within(kind.start(NONE, Wiring::Proxied)).await.unwrap();
    let client = connect(&*deployment).await;
    client.batch_execute(TABLES).await.unwrap();
    let insert = "INSERT INTO fencelock.locks (key, n) VALUES ('k', 0)";
    client.batch_execute(insert).await.unwrap();
    // A standby that lacks the table says nothing of what was counted.
    let replayed = async {
        let asked = async |query: &str| deployment.sql(query).await.unwrap().unwrap();
        let written = asked("SELECT pg_current_wal_lsn()").await;
        let query =
            format!("SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= '{written}'");
        while asked(&query).await == "0" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(replayed).await;
    let (counted, inflicted) =
        within(async { tokio::join!(count(&client), deployment.inflict(fault, SHORT)) }).await;
    inflicted.unwrap();
    let client = connect(&*deployment).await;
    let left =
        value(&client, "SELECT coalesce(max(n), 0) FROM fencelock.locks").await.parse().unwrap();
    (counted, left)
}

#[tokio::test]
async fn only_an_asynchronous_standby_that_takes_over_from_a_crash_loses_commits() {
    let (counted, left) = counted_and_left(Kind::PostgresFailover, Fault::MasterKilled).await;
    assert!(counted > left, "{counted} were committed and {left} are left");
    let (counted, left) = counted_and_left(Kind::PostgresFailover, Fault::MasterReplaced).await;
    assert!(counted <= left, "{counted} were committed and {left} are left");
}

#[tokio::test]
async fn a_synchronous_standby_loses_nothing() {
    keeps_its_data(Kind::PostgresSync).await;
    for fault in [Fault::MasterKilled, Fault::MasterReplaced] {
        let (counted, left) = counted_and_left(Kind::PostgresSync, fault).await;
        assert!(counted <= left, "{fault}: {counted} were committed and {left} are left");
    }
}
