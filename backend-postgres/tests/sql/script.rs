//! The script that creates the schema, in any session, once and again.

use fencelock_postgres::schema;
use uuid::Uuid;

use super::server::{config, connected, fast};
use super::session::text_of;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_can_be_run_again() {
    let server = fast().shared().await.unwrap();
    let client = connected(&config(&server)).await;
    let script = schema::script("fencelock");
    client.batch_execute(&script).await.unwrap();
    let owner = Uuid::from_u128(1);
    let attempt = "SELECT fencelock.attempt_1(
      'a', $1, 'x', 1, 1, 1000000, 'p', '', true, 1, true)";
    let token: i64 = client.query_one(attempt, &[&owner]).await.unwrap().get(0);
    // Rights that were given stay.
    let rights = "SELECT array_agg(proacl::text ORDER BY proname) FROM pg_proc
      WHERE pronamespace = 'fencelock'::regnamespace";
    server.create_role("job", "job").await.unwrap();
    let grant = "GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA fencelock TO job";
    client.batch_execute(grant).await.unwrap();
    let before: Vec<String> = client.query_one(rights, &[]).await.unwrap().get(0);
    client.batch_execute(&script).await.unwrap();
    let after: Vec<String> = client.query_one(rights, &[]).await.unwrap().get(0);
    assert_eq!(before, after);
    assert!(after.iter().all(|rights| rights.contains("job=X")), "{after:?}");
    let again: i64 = client.query_one(attempt, &[&owner]).await.unwrap().get(0);
    assert_eq!(again, token);
    let version: i32 = client.query_one("SELECT fencelock.version()", &[]).await.unwrap().get(0);
    assert_eq!(version, schema::VERSION);
    let left = client.query_one("SHOW check_function_bodies", &[]).await.unwrap();
    assert_eq!(left.get::<_, &str>(0), "on");
}

/// A tool for migrations runs more in the same transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_blocks_no_step_while_its_transaction_is_open() {
    let server = fast().shared().await.unwrap();
    let (migration, client) =
        (connected(&config(&server)).await, connected(&config(&server)).await);
    let script = schema::script("fencelock");
    migration.batch_execute(&script).await.unwrap();
    migration.batch_execute(&format!("BEGIN; {script}")).await.unwrap();
    let attempt = |owner: u8, mode: char| {
        let owner = Uuid::from_u128(owner.into());
        format!(
            "SELECT fencelock.attempt_1('a', '{owner}', '{mode}', 1, 1, 9000000, 'p', '', true, 1, true)"
        )
    };
    let (reader, key) = (Uuid::from_u128(1), "ARRAY['a']::bytea[]");
    client.batch_execute("SET lock_timeout = '2s'").await.unwrap();
    for step in [
        attempt(1, 's'),
        attempt(2, 'x'),
        format!("SELECT fencelock.renew_1({key}, ARRAY['{reader}']::uuid[], ARRAY[9], true)"),
        format!("SELECT fencelock.look_1('p', {key}, '{{}}')"),
        format!("SELECT fencelock.release_1('a', '{reader}')"),
    ] {
        client.batch_execute(&step).await.unwrap_or_else(|error| panic!("{step}: {error:?}"));
    }
    migration.batch_execute("COMMIT").await.unwrap();
}

/// A snapshot from before the wait for another session would show neither whose schema it has made, nor which
/// functions were there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_refuses_a_snapshot_from_before_its_wait() {
    let server = fast().shared().await.unwrap();
    let client = connected(&config(&server)).await;
    let script = schema::script("fencelock");
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        client.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}")).await.unwrap();
        let error = text_of(&client.batch_execute(&script).await.unwrap_err());
        assert!(error.contains("needs the isolation level READ COMMITTED"), "{error}");
        client.batch_execute("ROLLBACK").await.unwrap();
    }
    client.batch_execute(&format!("BEGIN; {script}; COMMIT")).await.unwrap();
}

/// Where each statement is a transaction, the path ends with the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_script_refuses_to_run_statement_by_statement() {
    let server = fast().shared().await.unwrap();
    let client = connected(&config(&server)).await;
    let script = schema::script("fencelock");
    let (first, rest) = script.split_once(", true);\n").unwrap();
    client.batch_execute(&format!("{first}, true)")).await.unwrap();
    let error = text_of(&client.batch_execute(rest).await.unwrap_err());
    assert!(error.contains("needs one transaction"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_name_is_a_schema() {
    let names = [
        "a\"b",
        "A b;c",
        "select",
        "ä",
        "a\n--b\r\"; DROP TABLE x",
        "$$",
        "$1",
        "back\\slash\\'",
        "pg'",
        &"n".repeat(63),
    ];
    // Sessions of programs that were written for another age.
    let settings = "SET standard_conforming_strings = off; SET quote_all_identifiers = on;
      SET escape_string_warning = on; SET backslash_quote = on; SET row_security = off;
      SET DateStyle = 'German, DMY'; SET IntervalStyle = 'sql_standard'";
    let server = fast().shared().await.unwrap();
    let client = connected(&config(&server)).await;
    for (n, name) in names.into_iter().enumerate() {
        if n % 2 == 1 {
            client.batch_execute(settings).await.unwrap();
        } else {
            client.batch_execute("RESET ALL").await.unwrap();
        }
        client.batch_execute(&schema::script(name)).await.unwrap_or_else(|error| {
            panic!("{name:?}: {}", text_of(&error));
        });
        let quoted = format!("\"{}\"", name.replace('"', "\"\""));
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        for (owner, expected) in [(one, 1), (two, -1)] {
            let sql = format!(
                "SELECT sign({quoted}.attempt_1(
                   'a', $1, 'x', 1, 1, 9000000, 'p', '', true, 1, true))::int"
            );
            let reply: i32 = client.query_one(&sql, &[&owner]).await.unwrap().get(0);
            assert_eq!(reply, expected, "{name:?}");
        }
        let sql = format!(
            "SELECT {quoted}.release_1('a', $1), {quoted}.swap_cell_1('a', NULL, $1, '', 0)"
        );
        let row = client.query_one(&sql, &[&one]).await.unwrap();
        assert_eq!((row.get(0), row.get(1)), (1, true), "{name:?}");
    }
    let sql = "SELECT count(*)::int FROM pg_namespace WHERE nspname = ANY ($1)";
    let made: i32 = client.query_one(sql, &[&names.as_slice()]).await.unwrap().get(0);
    assert_eq!(usize::try_from(made).unwrap(), names.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_schema_is_left_as_it_is_and_an_older_one_completed() {
    let server = fast().shared().await.unwrap();
    let client = connected(&config(&server)).await;
    let script = schema::script("fencelock");
    client.batch_execute(&script).await.unwrap();
    for (version, code) in [(schema::VERSION + 1, Some("55000")), (schema::VERSION - 1, None)] {
        let other = format!(
            "CREATE OR REPLACE FUNCTION fencelock.version() RETURNS int LANGUAGE sql STABLE
             AS 'SELECT {version}'; DROP FUNCTION IF EXISTS fencelock.tidy_1"
        );
        client.batch_execute(&other).await.unwrap();
        let done = client.batch_execute(&script).await.map_err(|error| text_of(&error));
        match code {
            Some(code) => assert!(done.unwrap_err().starts_with(code)),
            None => done.unwrap(),
        }
        let row = client
            .query_one("SELECT fencelock.version(), to_regproc('fencelock.tidy_1') IS NULL", &[])
            .await
            .unwrap();
        let expected = version.max(schema::VERSION);
        assert_eq!((row.get(0), row.get(1)), (expected, code.is_some()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_may_only_read_is_refused_by_its_code() {
    let server = fast().shared().await.unwrap();
    let client = connected(&config(&server)).await;
    client.batch_execute(&schema::script("fencelock")).await.unwrap();
    let attempt = "SELECT fencelock.attempt_1(
      'a', gen_random_uuid(), 'x', 1, 1, 9000000, 'p', '', true, 1, true)";
    client.batch_execute(attempt).await.unwrap();
    client.batch_execute("SET default_transaction_read_only = on").await.unwrap();
    let token = "(SELECT token FROM fencelock.inspect_1('a'))";
    for sql in [attempt.to_owned(), format!("SELECT fencelock.check_token('a', {token}, 9)")] {
        let error = client.batch_execute(&sql).await.unwrap_err();
        assert!(text_of(&error).starts_with("25006"), "{sql}: {}", text_of(&error));
    }
}
