//! Faults of a whole machine: lost packets, a full disk, no descriptors. Each test has namespaces of its own.

// Tests without the attribute, which the lint looks for.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::time::Duration;

use fencelock_core::{ErrorKind, Locks, Result, url};
use fencelock_postgres::SCHEME;
use fencelock_testkit::apart;
use fencelock_testkit::helpers::*;
use fencelock_testkit::netns::promises::{
    lost_packets_only_slow_down, missing_descriptors_are_named,
};
use fencelock_testkit::netns::{
    MOUNTS_OF_OTHER_USERS, OTHER_USERS, PACKETS_OF_OTHER_USERS, fill, main as main_of, small_disk,
};
use fencelock_testkit::servers::TestPostgres;

const PATIENCE_WITH_LOSS: Duration = Duration::from_secs(120);
/// A lost connection takes a while to be replaced, and renewals need one.
const WITH_LOSS: &str = "ttl=60s&unreachable_after=110s&connect_timeout=20s&answer_timeout=10s";

fn main() {
    main_of(&[
        apart!(PACKETS_OF_OTHER_USERS, a_third_of_the_packets_lost_only_slows_down),
        apart!(MOUNTS_OF_OTHER_USERS, a_full_disk_is_waited_for),
        apart!(OTHER_USERS, without_a_free_descriptor_the_error_says_so_and_what_is_held_stays),
    ]);
}

async fn connect(server: &TestPostgres, params: &str) -> Result<Locks> {
    url::connect(&[SCHEME], &format!("{}?{params}", server.url())).await
}

async fn drained(server: &TestPostgres) {
    until("nothing is left", async || {
        server.tables("fencelock").claims("").await.unwrap().is_empty()
    })
    .await;
}

/// Row 14.
/// Fault 14: postgres
async fn a_third_of_the_packets_lost_only_slows_down() {
    let server = TestPostgres::start().await.unwrap();
    let clients = [connect(&server, WITH_LOSS).await, connect(&server, WITH_LOSS).await];
    lost_packets_only_slow_down(&clients.map(Result::unwrap), 5, PATIENCE_WITH_LOSS).await;
    drained(&server).await;
}

/// Row 38: no lock can be made that was never there; all others work.
/// Fault 38: postgres
async fn a_full_disk_is_waited_for() {
    let server = TestPostgres::start().await.unwrap();
    drop(connect(&server, "").await.unwrap());
    let place = tempfile::tempdir().unwrap();
    small_disk(place.path(), 4 << 20);
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o711)).unwrap();
    let space = place.path().join("space");
    std::fs::create_dir(&space).unwrap();
    let home = server.directory().join("home").metadata().unwrap();
    chown(&space, Some(home.uid()), Some(home.gid())).unwrap();
    let on_it = format!("CREATE TABLESPACE small LOCATION '{}'", space.display());
    server.sql(&on_it).await.unwrap();
    server.sql("ALTER TABLE fencelock.locks SET TABLESPACE small").await.unwrap();
    let locks = connect(&server, "ttl=9s").await.unwrap();
    let held = acquire(&locks, "held").await;
    let ballast = place.path().join("ballast");
    fill(&ballast);
    // Until a page of the table is full.
    let mut made = 0;
    let error = loop {
        let name = format!("lock-{made}");
        let lock = locks.lock(&name).wait_at_most(ms(1000));
        match soon("it ends", lock.acquire()).await {
            Ok(guard) => release(guard).await,
            Err(error) => break error,
        }
        made += 1;
        assert!(made < 1000, "the disk is not full");
    };
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(error_chain(&error).contains("the server's disk is full"), "{}", error_chain(&error));
    until_renewed(&locks, &held, ms(9000)).await;
    release(held).await;
    release(acquire(&locks, "held").await).await;
    let fresh = spawn_waiter(&locks, "fresh");
    std::fs::remove_file(&ballast).unwrap();
    release(until_granted(fresh).await).await;
    drained(&server).await;
}

/// Row 40.
/// Fault 40: postgres
async fn without_a_free_descriptor_the_error_says_so_and_what_is_held_stays() {
    let server = TestPostgres::start().await.unwrap();
    let locks = connect(&server, "ttl=5s").await.unwrap();
    let once = async || {
        let url = format!("{}?ttl=5s", server.url());
        url::connect_within(&[SCHEME], &url, ms(5000)).await
    };
    missing_descriptors_are_named(&locks, once).await;
    drained(&server).await;
}
