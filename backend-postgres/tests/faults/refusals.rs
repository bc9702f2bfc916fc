//! Servers that refuse: a login, a right, a schema, one more connection.

use fencelock_core::{Error, ErrorKind};
use fencelock_postgres::schema::VERSION;
use fencelock_testkit::proxy::{Proxy, framing};
use fencelock_testkit::servers::{PostgresOptions, TestPostgres};

use crate::support::*;

/// The name and the URL of another role. Roles belong to all databases of a server.
async fn role(server: &TestPostgres) -> (String, String) {
    let name = format!("role_of_{}", server.database_name());
    server.create_role(&name, "pw").await.expect("it is created");
    let whole = format!("fencelock:{}@", server.password());
    let url = server.url().replace(&whole, &format!("{name}:pw@"));
    (name, url)
}

/// How many sessions of this database wait for a lock.
const WAITING: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'";

fn assert_refused(error: &Error, says: &str) {
    assert_kind(error, ErrorKind::Refused);
    assert!(!error.is_retryable());
    assert!(error_chain(error).contains(says), "{}", error_chain(error));
}

/// Row 41, lesson 30.
/// Fault 41: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_login_is_final_at_once_and_its_password_is_not_shown() {
    let server = database().await;
    let proxy = Proxy::framed(server.addr(), framing::postgres).await.unwrap();
    for (login, says) in [
        ("fencelock:wr0ng@", "check the URL's user and password"),
        ("nobody:wr0ng@", "check the URL's user and password"),
        ("fencelock@", "check the URL's user and password"),
    ] {
        let before = proxy.stats().accepted;
        let url = format!("postgres://{login}{}/{}", proxy.addr(), server.database_name());
        // An attempt that a busy machine makes late would be made again.
        let url = format!("{url}?connect_timeout=20s");
        let error = soon("it is refused", try_connect(&url)).await.unwrap_err();
        assert_refused(&error, says);
        assert_eq!(proxy.stats().accepted, before + 1, "it was asked again");
        let shown = format!("{error} {error:?} {error:#?} {}", error_chain(&error));
        assert!(!shown.contains("wr0ng"), "{shown}");
    }
    let url = server.url().replace(server.database_name(), "elsewhere");
    let url = url.replace("postgres://", "postgresql://");
    assert_refused(&try_connect(&url).await.unwrap_err(), "database that does not exist");
}

/// A database whose name needs percent-encoding, and a password that no message can carry.
/// Fault 41: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_database_can_be_named_and_no_password_with_nul() {
    let server = database().await;
    sql(&server, "CREATE DATABASE \"a/b c\" OWNER fencelock").await;
    let url = server.url().replace(server.database_name(), "a%2Fb%20c");
    let locks = connect(&url).await;
    release(acquire(&locks, "lock").await).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "a\0b").unwrap();
    let url = format!(
        "postgres://fencelock@{}/postgres?password_file={}",
        server.addr(),
        file.path().display()
    );
    let error = try_connect(&url).await.unwrap_err();
    assert_says(&error, ErrorKind::InvalidArgument, "password contains NUL");
}

/// Row 41: a password that is changed at the server first. Clients notice when they reconnect, and
/// wait for as long as for a server that is down.
/// Fault 41: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_is_being_changed_is_waited_for() {
    let server = own_server().await;
    let patient = direct(&server, "ttl=60s").await;
    let hasty = direct(&server, "ttl=60s&unreachable_after=1s").await;
    let (held, waiter) = contested(&patient, &patient, "held").await;
    sql(&server, "ALTER ROLE fencelock PASSWORD 'changed'").await;
    server.end_sessions().await.unwrap();
    let fresh = spawn_waiter(&patient, "fresh");
    let releasing = tokio::spawn(held.release());
    until("it is refused", async || {
        let error = soon("it ends", hasty.lock("lock").acquire()).await.expect_err("refused");
        error.kind() == ErrorKind::Refused
            && error_chain(&error).contains("check the URL's user and password")
    })
    .await;
    assert!(!fresh.is_finished() && !waiter.is_finished() && !releasing.is_finished());
    let back = format!("ALTER ROLE fencelock PASSWORD '{}'", server.password());
    sql(&server, &back).await;
    soon("the release succeeds", releasing).await.unwrap().unwrap();
    release(until_granted(fresh).await).await;
    release(until_granted(waiter).await).await;
    drained(&server).await;
}

/// A role without the right to create the schema, or to use it.
/// Faults 41, 59: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_without_rights_is_refused_with_the_command_and_works_with_those_that_it_names() {
    let server = database().await;
    let (name, jobs) = role(&server).await;
    // The schema is missing, and the role may not create it.
    assert_refused(&try_connect(&jobs).await.unwrap_err(), "fencelock postgres schema");
    drop(direct(&server, "").await);
    assert_refused(&try_connect(&jobs).await.unwrap_err(), "a right is missing");
    let script = fencelock_postgres::schema::script("fencelock");
    let grants = script.lines().filter_map(|line| line.strip_prefix("--   "));
    // Those of a program; an operator's follow.
    let grants = grants.filter(|line| line.starts_with("GRANT") && line.ends_with(" PROGRAM;"));
    let grants: String = grants.map(|line| line.replace("PROGRAM", &name)).collect();
    assert!(grants.contains("GRANT EXECUTE"), "{script}");
    sql(&server, &grants).await;
    let locks = connect(&format!("{jobs}?ttl=9s")).await;
    let (held, waiter) = contested(&locks, &locks, "lock").await;
    until_renewed(&locks, &held, ms(9000)).await;
    release(held).await;
    let held = until_granted(waiter).await;
    // One of version 2, which an upgrade by the owner of the schema does not grant.
    sql(&server, &format!("REVOKE EXECUTE ON FUNCTION fencelock.holders_1 FROM {name}")).await;
    for _ in 0..2 {
        assert_eq!(locks.inspect_holders("lock").await.unwrap().holders.len(), 1);
    }
    release(held).await;
    // A right that is taken back is an error at once, too.
    let revoke = format!("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA fencelock FROM {name}");
    sql(&server, &revoke).await;
    let error = soon("it is refused", locks.lock("lock").acquire()).await.unwrap_err();
    assert_refused(&error, "a right is missing");
    drained(&server).await;
}

/// A schema that the owner's migrations make.
/// Fault 59: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_or_older_schema_is_refused_with_the_command_unless_it_may_be_made() {
    let server = database().await;
    let never = with_params(&server, "create=never");
    assert_refused(&try_connect(&never).await.unwrap_err(), "fencelock postgres schema");
    assert_eq!(sql(&server, "SELECT to_regnamespace('fencelock')").await, "");
    // Half of it, of another program: the functions are missing.
    sql(&server, "CREATE SCHEMA fencelock AUTHORIZATION fencelock").await;
    assert_refused(&try_connect(&never).await.unwrap_err(), "fencelock postgres schema");
    user(&server)
        .await
        .batch_execute(&fencelock_postgres::schema::script("fencelock"))
        .await
        .unwrap();
    let locks = connect(&never).await;
    release(acquire(&locks, "lock").await).await;
    let version = |version: i32| {
        format!(
            "CREATE OR REPLACE FUNCTION fencelock.version() RETURNS int LANGUAGE sql AS 'SELECT {version}'"
        )
    };
    sql(&server, &version(VERSION - 1)).await;
    assert_refused(&try_connect(&never).await.unwrap_err(), "fencelock postgres schema");
    // A newer one has the functions of this version too.
    sql(&server, &version(VERSION + 1)).await;
    for url in [&never, &server.url()] {
        let locks = connect(url).await;
        release(acquire(&locks, "lock").await).await;
    }
    assert_eq!(sql(&server, "SELECT fencelock.version()").await, (VERSION + 1).to_string());
    // The bodies of an older one are replaced, where that is allowed, under a program that uses them.
    let older =
        "DO $$ BEGIN EXECUTE replace(pg_get_functiondef('fencelock.settle(boolean)'::regprocedure),
        'pg_current_xact_id_if_assigned()::text', '''yes'''); END $$";
    sql(&server, &format!("{older}; {}", version(VERSION - 1))).await;
    let held = acquire(&locks, "lock").await;
    let newer = connect(&server.url()).await;
    let is_new =
        "SELECT pg_get_functiondef('fencelock.settle(boolean)'::regprocedure) LIKE '%assigned%'
        AND fencelock.version() = ";
    assert_eq!(sql(&server, &format!("{is_new} {VERSION}")).await, "t");
    let waiters = [spawn_waiter(&newer, "lock"), spawn_waiter(&locks, "lock")];
    until_queued(&locks, "lock", 2).await;
    release(held).await;
    in_turns(waiters).await;
    drained(&server).await;
}

/// A role that may create in the database has made the schema first: its function would run with the rights of each
/// program that connects, also a superuser's. Or it has made one function, in a schema that may be trusted.
/// Fault 59: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_runs_of_a_schema_that_a_stranger_has_made() {
    let server = database().await;
    let (stranger, of_stranger) = role(&server).await;
    let boss = format!("boss_of_{}", server.database_name());
    server.create_role(&boss, "pw").await.unwrap();
    let rights = format!(
        "ALTER ROLE {boss} SUPERUSER; GRANT CREATE ON DATABASE {} TO {stranger}; \
         CREATE TABLE public.ran (by text); GRANT INSERT ON public.ran TO PUBLIC",
        server.database_name()
    );
    sql(&server, &rights).await;
    let schema = "CREATE SCHEMA fencelock; GRANT USAGE ON SCHEMA fencelock TO PUBLIC";
    let version = "CREATE FUNCTION fencelock.version() RETURNS int LANGUAGE sql AS \
                   'INSERT INTO public.ran VALUES (current_user); SELECT 1'";
    let client = user_at(&of_stranger).await.unwrap();
    client.batch_execute(&format!("{schema}; {version}")).await.unwrap();
    let of_boss = of_stranger.replace(&format!("{stranger}:"), &format!("{boss}:"));
    let urls = [server.url(), with_params(&server, "create=never"), of_boss];
    for url in &urls {
        let error = try_connect(url).await.unwrap_err();
        assert_refused(&error, "it belongs to the role");
        assert_refused(&error, &format!("owner={stranger}"));
    }
    // Everybody's schema, as `public` is on PostgreSQL 14.
    let open = format!(
        "DROP SCHEMA fencelock CASCADE; {schema}; GRANT CREATE ON SCHEMA fencelock TO PUBLIC"
    );
    sql(&server, &open).await;
    client.batch_execute(version).await.unwrap();
    for url in &urls {
        let error = try_connect(url).await.unwrap_err();
        assert_refused(&error, "its function version belongs to the role");
    }
    // The database's owner is no superuser: what it has made is a stranger's to one.
    sql(&server, "DROP SCHEMA fencelock CASCADE").await;
    user(&server).await.batch_execute(&format!("{schema}; {version}")).await.unwrap();
    let error = try_connect(&urls[2]).await.unwrap_err();
    assert_refused(&error, "owner=fencelock");
    // An operator that fits better than PostgreSQL's own would run with the owner's rights.
    sql(&server, "DROP SCHEMA fencelock CASCADE").await;
    drop(direct(&server, "").await);
    sql(&server, &format!("GRANT CREATE, USAGE ON SCHEMA fencelock TO {stranger}")).await;
    let operator = "CREATE OPERATOR fencelock.= (LEFTARG = bytea, RIGHTARG = bytea, FUNCTION = pg_catalog.byteaeq)";
    client.batch_execute(operator).await.unwrap();
    let error = try_connect(&urls[0]).await.unwrap_err();
    assert_refused(&error, "its operator = belongs to the role");
    let table = "DROP OPERATOR fencelock.= (bytea, bytea); CREATE TABLE fencelock.x ()";
    client.batch_execute(table).await.unwrap();
    let error = try_connect(&urls[0]).await.unwrap_err();
    assert_refused(&error, "its table x belongs to the role");
    assert_eq!(sql(&server, "SELECT by FROM public.ran").await, "");
}

/// A role that creates the schema by connecting is no stranger to those who name it.
/// Fault 59: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_is_trusted_where_the_url_names_it() {
    let server = database().await;
    let (owner, of_owner) = role(&server).await;
    sql(&server, &format!("GRANT CREATE ON DATABASE {} TO {owner}", server.database_name())).await;
    release(acquire(&connect(&of_owner).await, "lock").await).await;
    let grants = "GRANT USAGE ON SCHEMA fencelock TO PUBLIC; \
                  GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fencelock TO PUBLIC";
    sql(&server, grants).await;
    for wrong in ["", "owner=fencelock", "owner=pg_monitor"] {
        let error = try_connect(&with_params(&server, wrong)).await.unwrap_err();
        assert_refused(&error, &format!("owner={owner}"));
    }
    let locks = direct(&server, &format!("owner={owner}")).await;
    let held = acquire(&locks, "lock").await;
    // Asked again at each connection.
    sql(&server, "ALTER SCHEMA fencelock OWNER TO pg_monitor").await;
    end_ours(&server).await;
    refused_with(&locks, "other", "owner=pg_monitor").await;
    sql(&server, &format!("ALTER SCHEMA fencelock OWNER TO {owner}")).await;
    until_renewed(&locks, &held, ms(30_000)).await;
    release(held).await;
    drained(&server).await;
}

/// The schema of another program, which has a function of that name.
/// Fault 59: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_of_another_type_is_refused_and_waited_for_by_those_who_are_connected() {
    let server = database().await;
    let locks = direct(&server, "ttl=30s").await;
    let held = acquire(&locks, "lock").await;
    let user = user(&server).await;
    let as_text = "ALTER FUNCTION fencelock.version() RENAME TO version_of_locks; \
                   CREATE FUNCTION fencelock.version() RETURNS text LANGUAGE sql AS 'SELECT ''7''::text'";
    user.batch_execute(as_text).await.unwrap();
    let error = try_connect(&server.url()).await.unwrap_err();
    assert_refused(&error, "name another one in the URL");
    // The connected client meets it too, and reconnects when it is right again.
    end_ours(&server).await;
    refused_with(&locks, "other", "name another one in the URL").await;
    let as_number = "DROP FUNCTION fencelock.version(); \
                     ALTER FUNCTION fencelock.version_of_locks() RENAME TO version";
    user.batch_execute(as_number).await.unwrap();
    until_renewed(&locks, &held, ms(30_000)).await;
    release(held).await;
    drained(&server).await;
}

/// Many programs that start at once, with no schema there.
/// Fault 59: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_start_at_once_make_one_schema() {
    let server = database().await;
    let url = server.url();
    let all = (0..8).map(|_| connect_once(&url));
    let all = soon("all connect", futures_util::future::join_all(all)).await;
    for locks in all {
        release(acquire(&locks.unwrap(), "lock").await).await;
    }
    drained(&server).await;
}

/// Another session is creating the schema, and does not end: the server ends the wait, and no backend is left
/// behind. A client that may not create it finds it complete afterwards.
/// Fault 59: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_another_session_is_creating_is_waited_for() {
    let server = database().await;
    let (name, jobs) = role(&server).await;
    let owner = user(&server).await;
    let lock = "SELECT pg_advisory_lock(hashtextextended('fencelock schema fencelock', 0))";
    owner.batch_execute(lock).await.unwrap();
    for _ in 0..2 {
        // On a busy machine the time may be over before the script is asked for.
        until("the reason is named", async || {
            let error = connect_error(&format!("{}?connect_timeout=500ms", server.url())).await;
            assert_kind(&error, ErrorKind::Unreachable);
            error_chain(&error).contains("another session creates the schema")
        })
        .await;
    }
    until("no backend is left", async || sessions(&server).await == 0).await;
    let late =
        tokio::spawn(async move { try_connect(&format!("{jobs}?connect_timeout=30s")).await });
    until("it waits", async || sql(&server, WAITING).await == "1").await;
    let grants = format!(
        "GRANT USAGE ON SCHEMA fencelock TO {name}; \
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fencelock TO {name}"
    );
    owner.batch_execute(&fencelock_postgres::schema::script("fencelock")).await.unwrap();
    owner.batch_execute(&grants).await.unwrap();
    owner.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    let locks = soon("it connects", late).await.unwrap().unwrap();
    release(acquire(&locks, "lock").await).await;
    drained(&server).await;
}

/// A session that does not know our lock makes the schema, or a part of it, at the same time.
/// Fault 59: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_a_session_creates_without_our_lock_is_waited_for() {
    let schema = "CREATE SCHEMA fencelock";
    let table =
        "CREATE TABLE fencelock.processes (proc text PRIMARY KEY, deadline bigint NOT NULL)";
    for (before, meanwhile) in [("", schema), (schema, table)] {
        let server = database().await;
        let owner = user(&server).await;
        owner.batch_execute(before).await.unwrap();
        owner.batch_execute(&format!("BEGIN; {meanwhile}")).await.unwrap();
        let url = server.url();
        let late = tokio::spawn(async move { try_connect(&url).await });
        until("it waits", async || sql(&server, WAITING).await == "1").await;
        owner.batch_execute("COMMIT").await.unwrap();
        let locks = soon("it connects", late).await.unwrap().unwrap_or_else(|error| {
            panic!("{meanwhile}: {}", error_chain(&error));
        });
        release(acquire(&locks, "lock").await).await;
        drained(&server).await;
    }
}

/// Row 40.
/// Fault 40: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_room_for_connections_is_reported_and_waited_for() {
    let options = PostgresOptions::new().setting("max_connections", "10");
    let server = options.setting("max_wal_senders", "0").start().await.unwrap();
    let locks = direct(&server, "ttl=20s").await;
    let kept = acquire(&locks, "lock").await;
    let mut others = Vec::new();
    let full = async {
        while let Ok(client) = user_at(&server.url()).await {
            others.push(client);
        }
    };
    soon("it is full", full).await;
    let error = connect_error(&server.url()).await;
    assert_says(&error, ErrorKind::Unreachable, "no more connections");
    // The connected client works, until it has to reconnect.
    release(acquire(&locks, "other").await).await;
    end_ours(&server).await;
    // For which it needs the one slot that it had.
    release(acquire(&locks, "other").await).await;
    end_ours(&server).await;
    others.extend(user_at(&server.url()).await);
    let fresh = spawn_waiter(&locks, "lock");
    drop(others);
    until_queued(&locks, "lock", 1).await;
    until_renewed(&locks, &kept, ms(20_000)).await;
    hand_over(kept, fresh).await;
    drained(&server).await;
}

/// The schema of another program, whose tables have names of ours or others: nothing is created in it, and no
/// role loses a right there.
/// Fault 43: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_schema_of_another_program_is_refused_and_left_as_it_is() {
    let server = database().await;
    let (reader, _) = role(&server).await;
    let foreign = "CREATE SCHEMA fencelock; CREATE TABLE fencelock.locks (theirs int); \
                   INSERT INTO fencelock.locks VALUES (7); GRANT SELECT ON fencelock.locks TO reader; \
                   CREATE SCHEMA own; CREATE TABLE own.stock (theirs int); GRANT SELECT ON own.stock TO reader; \
                   CREATE SCHEMA steps; CREATE FUNCTION steps.tidy_up() RETURNS int LANGUAGE sql AS 'SELECT 1'; \
                   CREATE SCHEMA kinds; CREATE TYPE kinds.kind AS ENUM ('one'); \
                   CREATE SCHEMA views; CREATE VIEW views.locks AS SELECT true AS crowd; \
                   CREATE SCHEMA version; CREATE TABLE version.turns (key int, token text); \
                   CREATE FUNCTION version.version() RETURNS int LANGUAGE sql AS 'SELECT 0'";
    let foreign = foreign.replace("reader", &reader);
    user(&server).await.batch_execute(&foreign).await.unwrap();
    let all = "SELECT string_agg(relname || coalesce(relacl::text, ''), ' ' ORDER BY relname) FROM pg_class \
               WHERE relnamespace IN ('fencelock'::regnamespace, 'own'::regnamespace, 'steps'::regnamespace)";
    let before = sql(&server, all).await;
    for (schema, says) in [
        ("fencelock", "its table locks"),
        ("own", "its table stock"),
        ("steps", "its function tidy_up"),
        ("kinds", "its type kind"),
        ("views", "its view locks"),
        ("version", "its function version"),
    ] {
        let url = with_params(&server, &format!("schema={schema}"));
        let error = try_connect(&url).await.unwrap_err();
        assert_refused(&error, &format!("the schema {schema} is another program's"));
        assert_refused(&error, says);
    }
    assert_eq!(sql(&server, all).await, before);
    assert_eq!(sql(&server, "SELECT theirs FROM fencelock.locks").await, "7");
}
