//! Databases, roles and servers with settings of their own.

use fencelock_core::{ErrorKind, Locks};
use fencelock_testkit::proxy::{AfterDrop, DropReply};
use fencelock_testkit::servers::{PostgresOptions, TestPostgres};

use crate::support::*;

/// A waiter behind a holder in two clients, with renewals, readers, and what is left.
async fn works(one: &Locks, other: &Locks) {
    let held = acquire(one, "lock").await;
    let waiters = [spawn_waiter(other, "lock"), spawn_waiter(one, "lock")];
    until_queued(one, "lock", 2).await;
    until_renewed(one, &held, ms(6000)).await;
    let token = held.fencing_token();
    release(held).await;
    let tokens = in_turns(waiters).await;
    assert!(tokens.len() == 2 && tokens[0] > token, "{tokens:?}");
    let readers = [one.rw_lock("doc").read(), other.rw_lock("doc").read()];
    for reader in readers {
        release(soon("a reader is granted", reader.acquire()).await.expect("granted")).await;
    }
}

/// A database of this encoding.
async fn in_encoding(encoding: &str) -> TestPostgres {
    let options = format!("ENCODING '{encoding}' TEMPLATE template0");
    database().await.database(&options).await.expect("it is made")
}

/// Fault 58: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_of_the_role_change_nothing() {
    let server = database().await;
    // From 17 on.
    let known = "SELECT count(*) FROM pg_settings WHERE name = 'transaction_timeout'";
    let newer = (sql(&server, known).await == "1").then_some("transaction_timeout = '50ms'");
    let all = [
        "statement_timeout = '50ms'",
        "idle_session_timeout = '200ms'",
        "idle_in_transaction_session_timeout = '10ms'",
        "lock_timeout = '1ms'",
        "synchronous_commit = off",
        "search_path = ''",
        "bytea_output = 'escape'",
        "client_encoding = 'LATIN1'",
        "timezone = 'Asia/Kathmandu'",
        "standard_conforming_strings = off",
        "application_name = 'other'",
        "fencelock.notified = 'yes'",
    ];
    // A schema that an earlier build made has another mark.
    let earlier =
        "DO $$ BEGIN EXECUTE replace(pg_get_functiondef('fencelock.settle(boolean)'::regprocedure),
        'pg_current_xact_id_if_assigned()::text', '''yes'''); END $$";
    for isolation in ["serializable", "repeatable read"] {
        let isolation = format!("default_transaction_isolation = '{isolation}'");
        for setting in all.into_iter().chain(newer).chain([isolation.as_str()]) {
            set_for_clients(&server, &format!("SET {setting}")).await;
        }
        let (one, other) = (direct(&server, "ttl=6s").await, direct(&server, "ttl=6s").await);
        works(&one, &other).await;
        // Longer than a session may be idle.
        tokio::time::sleep(ms(300)).await;
        works(&other, &one).await;
        drained(&server).await;
        sql(&server, earlier).await;
    }
}

/// Limits that end what the library must ask before it can set its own: the error says which setting it is.
/// Fault 58: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_statement_timeout_that_nothing_meets_is_named() {
    let server = database().await;
    direct(&server, "").await;
    set_for_clients(&server, "SET statement_timeout = 1").await;
    // What is asked waits for it.
    sql(&server, "ALTER FUNCTION fencelock.version() RENAME TO version_of").await;
    let slow = "CREATE FUNCTION fencelock.version() RETURNS int LANGUAGE sql AS 'SELECT 1 FROM pg_sleep(1)'";
    sql(&server, slow).await;
    sql(&server, "GRANT EXECUTE ON FUNCTION fencelock.version() TO fencelock").await;
    let error = connect_error(&server.url()).await;
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(error_chain(&error).contains("statement_timeout"), "{error}");
}

/// The name of a schema that the database cannot store.
/// Fault 42: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_the_encoding_lacks_is_refused_by_name() {
    let server = in_encoding("LATIN1").await;
    let error = try_connect(&with_params(&server, "schema=日本")).await.unwrap_err();
    assert_kind(&error, ErrorKind::InvalidArgument);
    assert!(error_chain(&error).contains("name another one in the URL"), "{error}");
    release(acquire(&direct(&server, "schema=été").await, "lock").await).await;
}

/// A program that listens and does not read holds up the notifications of the whole server, whose queue is full then.
/// No step fails, nor a connect; and what could be read again is used again. (Before 17 the queue is 8 GB.)
/// Fault 58: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_queue_of_notifications_fails_nothing() {
    let known = "SELECT count(*) FROM pg_settings WHERE name = 'max_notify_queue_pages'";
    if sql(&database().await, known).await == "0" {
        return;
    }
    let options = PostgresOptions::new().setting("max_notify_queue_pages", "64");
    let server = options.start().await.expect("a server starts");
    let (one, other) = (direct(&server, "ttl=6s").await, direct(&server, "ttl=6s").await);
    let deaf = user(&server).await;
    deaf.batch_execute("LISTEN noise").await.unwrap();
    deaf.batch_execute("BEGIN; SELECT 1").await.unwrap();
    let noisy = "SELECT pg_notify('noise', repeat('x', 7000))";
    while server.sql(noisy).await.is_ok() {}
    works(&one, &other).await;
    works(&direct(&server, "ttl=6s").await, &other).await;
    let (cell, evicted) = (one.cell("cell"), acquire(&one, "evicted").await);
    assert!(cell.compare_and_set(None, *b"content").await.unwrap());
    let seen = other.inspect("evicted").await.unwrap();
    assert!(other.evict("evicted", &seen.holders[0].id).await.unwrap());
    let still_full = server.sql(noisy).await.unwrap_err().to_string();
    assert!(still_full.contains("54000"), "{still_full}");
    drop(deaf);
    let late = hand_overs(&one, &other).await;
    assert!(late[0] < ms(300), "no notification has come: {late:?}");
    drop(evicted);
    drained(&server).await;
}

/// Fault 58: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_made_although_its_notification_is_refused() {
    let server = database().await;
    let locks = direct(&server, "").await;
    assert_eq!(locks.counter("hits").add(1).await.unwrap(), 1);
    sql(&server, "REVOKE EXECUTE ON FUNCTION pg_notify FROM PUBLIC").await;
    assert_eq!(locks.counter("hits").add(1).await.unwrap(), 2);
}

/// A user whose sessions have another role: a new one ends that which it replaces, although the network does
/// not say that this is dead.
/// Faults 10, 58: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_of_another_role_ends_the_one_that_it_replaces() {
    let testbed = Testbed::start().await;
    let database = testbed.server.database_name();
    let roles = format!(
        "CREATE ROLE app; GRANT app TO fencelock; GRANT CREATE ON DATABASE {database} TO app"
    );
    sql(&testbed.server, &roles).await;
    set_for_clients(&testbed.server, "SET role = 'app'").await;
    let locks = testbed.through_proxy("ttl=9s").await;
    let held = acquire(&locks, "lock").await;
    let pid = format!("SELECT pid FROM pg_stat_activity WHERE {IS_OURS}");
    let pid = sql(&testbed.server, &pid).await;
    // New connections are not affected.
    testbed.proxy.drop_reply(DropReply::first(AfterDrop::BlackHole)).unwrap();
    soon("a reply vanishes", testbed.proxy.dropped_reply()).await;
    until_renewed(&locks, &held, ms(9000)).await;
    let left = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid}");
    assert_eq!(sql(&testbed.server, &left).await, "0");
    let owner = "SELECT nspowner::regrole FROM pg_namespace WHERE nspname = 'fencelock'";
    assert_eq!(sql(&testbed.server, owner).await, "app");
    release(held).await;
    drained(&testbed.server).await;
}

/// A role that may only read by default: an error that says so.
/// Fault 58: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_only_role_is_refused_with_the_reason() {
    let server = database().await;
    set_for_clients(&server, "SET default_transaction_read_only = on").await;
    let error = connect_error(&server.url()).await;
    assert_kind(&error, ErrorKind::Unreachable);
    assert!(error_chain(&error).contains("is read-only"), "{error}");
}

/// Names are bytes, whatever the database makes of texts.
/// Fault 42: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_name_is_a_lock_of_its_own_in_databases_of_any_encoding() {
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let server = in_encoding(encoding).await;
        let locks = direct(&server, "").await;
        let other = direct(&server, "").await;
        let names = ["ä", "a\u{308}", "€", "日本", "\u{1F512}", "a'b\"c\\d", "A", "a", "\u{7f}"];
        let mut held = Vec::new();
        for name in names {
            held.push(acquire(&locks, name).await);
        }
        for name in names {
            assert!(is_busy(&other, name).await, "{name:?} in {encoding}");
        }
        for guard in held {
            release(guard).await;
        }
        drained(&server).await;
    }
}

/// fsync and full_page_writes are reported in the profile, as is a standby for which no commit waits.
/// Fault 58: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_that_weaken_locks_are_reported_in_the_profile() {
    let server = PostgresOptions::new().durable().start().await.unwrap();
    for off in ["none", "fsync", "full_page_writes"] {
        if off != "none" {
            sql(&server, &format!("ALTER SYSTEM SET {off} = off")).await;
            sql(&server, "SELECT pg_reload_conf()").await;
            let shown = format!("SHOW {off}");
            until("it is off", async || sql(&server, &shown).await == "off").await;
        }
        let dangers = direct(&server, "").await.profile().exclusion_fails_when.join("; ");
        assert_eq!(dangers.contains("fsync or full_page_writes is off"), off != "none", "{off}");
        assert!(!dangers.contains("pg_control_system"), "{dangers}");
        sql(&server, "ALTER SYSTEM RESET ALL").await;
    }
    sql(&server, "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC").await;
    let dangers = direct(&server, "").await.profile().exclusion_fails_when.join("; ");
    assert!(
        dangers.contains("does not tell this user its timeline (pg_control_system)"),
        "{dangers}"
    );
}
