//! What roles can do: programs, operators, strangers, and one that wants the rights of the owner.

use std::time::Duration;

use fencelock_postgres::schema;
use fencelock_testkit::servers::TestPostgres;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::server::{config, connected, connected_as, fast, reconnected_as};
use super::session::text_of;

/// The functions that programs call, in an order in which each has something to do.
const OF_PROGRAMS: [&str; 15] = [
    "version()",
    "attempt_1('k', gen_random_uuid(), 'x', 1, 1, 9000000, 'p', '', true, 1, true)",
    "attempt_1('k', gen_random_uuid(), 's', 1, 1, 9000000, 'p', '', true, 1, true)",
    "release_1('k', gen_random_uuid())",
    "downgrade_1('k', gen_random_uuid(), 0)",
    "renew_1(ARRAY['k'::bytea], ARRAY[gen_random_uuid()], ARRAY[1000], true)",
    "batch_1(ARRAY['a']::\"char\"[], ARRAY['k']::bytea[], ARRAY[gen_random_uuid()], ARRAY['x']::\"char\"[],
       ARRAY[1], ARRAY[1], ARRAY[1], ARRAY['']::bytea[], ARRAY[true], ARRAY[1], 'p')",
    "look_1('p', ARRAY['k']::bytea[], ARRAY[gen_random_uuid()])",
    "inspect_1('k')",
    "holders_1('k')",
    "read_cell_1('k')",
    "swap_cell_1('k', NULL, gen_random_uuid(), '', 0)",
    "tidy_1('', '')",
    "check_token('k', (SELECT token FROM fencelock.inspect_1('k') WHERE holds), 1000)",
    "fence('r', 1)",
];

const OF_OPERATORS: [&str; 3] = [
    "evict_1('k', 'h1')",
    "evict_1('k', (SELECT max(id) FROM fencelock.inspect_1('k')))",
    "clear_1('')",
];

/// What they are made of.
const OF_NOBODY: [&str; 3] = [
    "remove_claim('k', gen_random_uuid(), true)",
    "contend('k', gen_random_uuid(), 's', 1, 1, 1, 'p', '', true, 1, true)",
    "us()",
];

/// The statements of the script's comment, for these two roles.
fn grants(script: &str) -> String {
    let lines = script.lines().take_while(|line| line.starts_with("--"));
    let grants = lines.filter_map(|line| line.strip_prefix("--   ")).collect::<Vec<_>>().join("\n");
    assert_eq!(grants.matches("GRANT ").count(), 3, "{grants}");
    let for_operator = grants.replace("PROGRAM", "operator");
    let for_job = grants.lines().take(2).collect::<Vec<_>>().join("\n").replace("PROGRAM", "job");
    for_job + &for_operator.replace("OPERATOR", "operator")
}

async fn created(server: &TestPostgres, script: &str) -> Client {
    let owner = connected(&config(server)).await;
    owner.batch_execute(script).await.unwrap();
    owner
}

/// The owner, and two roles with the rights of the comment.
async fn granted(server: &TestPostgres, script: &str) -> [Client; 3] {
    let owner = created(server, script).await;
    let roles = [connected_as(server, "job").await, connected_as(server, "operator").await];
    owner.batch_execute(&grants(script)).await.unwrap();
    let [job, operator] = roles;
    [owner, job, operator]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_can_do_what_the_comment_says_and_touch_no_table() {
    let server = fast().start().await.unwrap();
    let [owner, job, operator] = granted(&server, &schema::script("fencelock")).await;
    let stranger = connected_as(&server, "stranger").await;
    let select = |call: &str| format!("SELECT * FROM fencelock.{call}");
    for call in OF_PROGRAMS {
        for client in [&job, &operator] {
            allowed(client, &select(call)).await;
        }
    }
    for call in OF_OPERATORS {
        refused(&job, &select(call)).await;
        allowed(&operator, &select(call)).await;
    }
    for call in OF_PROGRAMS.into_iter().chain(OF_OPERATORS) {
        refused(&stranger, &select(call)).await;
    }
    for client in [&job, &operator, &stranger] {
        for call in OF_NOBODY {
            refused(client, &select(call)).await;
        }
        for table in ["locks", "claims", "processes", "fences", "turns", "cells"] {
            for sql in ["SELECT FROM", "DELETE FROM", "TRUNCATE"] {
                refused(client, &format!("{sql} fencelock.{table}")).await;
            }
            refused(client, &format!("COPY fencelock.{table} TO STDOUT")).await;
            let trigger = format!(
                "CREATE TRIGGER t BEFORE UPDATE ON fencelock.{table}
                 EXECUTE FUNCTION suppress_redundant_updates_trigger()"
            );
            refused(client, &trigger).await;
        }
        let function = "CREATE FUNCTION fencelock.own() RETURNS int LANGUAGE sql AS 'SELECT 1'";
        refused(client, function).await;
    }
    // What docs/guarantees.md says of a program, and of its end.
    allowed(&job, &select("fence('r', 9223372036854775807)")).await;
    let error = operator.batch_execute(&select("fence('r', 1)")).await.unwrap_err();
    assert_eq!(error.code().map(SqlState::code), Some("FL001"));
    owner.batch_execute("DELETE FROM fencelock.fences").await.unwrap();
    allowed(&operator, &select("fence('r', 1)")).await;
}

/// The body of a function is read, and runs, with the settings of its caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_function_works_in_sessions_of_any_settings() {
    let settings = [
        "standard_conforming_strings = off",
        "transform_null_equals = on",
        "array_nulls = off",
        "bytea_output = 'escape'",
        "exit_on_error = on",
        "plan_cache_mode = force_custom_plan",
        "enable_indexscan = off",
        "plpgsql.extra_errors = 'all'",
        "plpgsql.extra_warnings = 'all'",
        "client_min_messages = 'debug5'",
        "DateStyle = 'German, DMY'",
    ];
    let server = fast().start().await.unwrap();
    drop(created(&server, &schema::script("fencelock")).await);
    for setting in settings {
        let client = connected(&config(&server)).await;
        // The name is known when the language has run.
        client.batch_execute("DO 'BEGIN END'").await.unwrap();
        client.batch_execute(&format!("SET {setting}")).await.unwrap();
        client.batch_execute(&schema::script("fencelock")).await.unwrap();
        for call in OF_PROGRAMS.into_iter().chain(OF_OPERATORS) {
            let sql = format!("SELECT * FROM fencelock.{call}");
            client.batch_execute(&sql).await.unwrap_or_else(|error| {
                panic!("{setting}: {call}: {}", text_of(&error));
            });
        }
    }
}

/// Its owner is all that it takes to release a claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_reads_no_owner_of_another() {
    let server = fast().start().await.unwrap();
    let [owner, job, _operator] = granted(&server, &schema::script("fencelock")).await;
    let secrets = ["00000000-0000-4000-8000-00000000abc1", "00000000-0000-4000-8000-00000000abc2"];
    for secret in secrets {
        let sql = format!(
            "SELECT fencelock.attempt_1('k', '{secret}', 'x', 1, 1, 9000000, 'fl_1', '', true, 1, true)"
        );
        owner.batch_execute(&sql).await.unwrap();
    }
    let questions = [
        "SELECT i::text FROM fencelock.inspect_1('k') i",
        "SELECT l::text FROM fencelock.look_1('fl_2', ARRAY['k']::bytea[], '{}') l",
        "SELECT a::text FROM fencelock.attempt_1(
           'k', gen_random_uuid(), 's', 1, 1, 9000000, 'fl_2', '', true, 1, true) a",
        "SELECT query FROM pg_stat_activity",
    ];
    for question in questions {
        for row in job.query(question, &[]).await.unwrap() {
            let shown: Option<&str> = row.get(0);
            assert!(!shown.unwrap_or_default().contains("abc"), "{question}: {shown:?}");
        }
    }
}

/// The owner's default privileges, as tools for migrations set them, are for tables of data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_privileges_give_nobody_a_right() {
    let server = fast().start().await.unwrap();
    let job = connected_as(&server, "job").await;
    let owner = connected(&config(&server)).await;
    let defaults = "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO job, PUBLIC;
      ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO job";
    owner.batch_execute(defaults).await.unwrap();
    let script = schema::script("fencelock");
    owner.batch_execute(&script).await.unwrap();
    owner.batch_execute("GRANT USAGE ON SCHEMA fencelock TO job").await.unwrap();
    for call in OF_PROGRAMS.into_iter().chain(OF_OPERATORS).chain(OF_NOBODY) {
        refused(&job, &format!("SELECT * FROM fencelock.{call}")).await;
    }
    let given = "SELECT count(*) FROM pg_class c, aclexplode(c.relacl) a
      WHERE c.relnamespace = 'fencelock'::regnamespace AND a.grantee <> c.relowner";
    assert_eq!(owner.query_one(given, &[]).await.unwrap().get::<_, i64>(0), 0);
    // A report that the owner has put beside the tables is the owner's business.
    owner.batch_execute("CREATE TABLE fencelock.report (n int)").await.unwrap();
    owner.batch_execute(&script).await.unwrap();
    allowed(&job, "SELECT FROM fencelock.report").await;
    owner.batch_execute("GRANT SELECT (owner) ON fencelock.locks TO job").await.unwrap();
    owner.batch_execute(&script).await.unwrap();
    refused(&job, "SELECT FROM fencelock.locks").await;
    refused(&job, "SELECT owner FROM fencelock.locks").await;
    let trigger = "CREATE TRIGGER t BEFORE UPDATE ON fencelock.locks
      EXECUTE FUNCTION suppress_redundant_updates_trigger()";
    refused(&job, trigger).await;
    // One that was made in spite of that runs with the owner's rights.
    owner.batch_execute("GRANT TRIGGER ON fencelock.locks TO job").await.unwrap();
    job.batch_execute(trigger).await.unwrap();
    let error = text_of(&owner.batch_execute(&script).await.unwrap_err());
    assert!(
        error.starts_with("42501") && error.contains("trigger t of its table locks"),
        "{error}"
    );
    owner.batch_execute("DROP TRIGGER t ON fencelock.locks").await.unwrap();
    owner.batch_execute(&script).await.unwrap();
    refused(&job, trigger).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_role_that_may_create_makes_the_schema() {
    let server = fast().start().await.unwrap();
    let script = schema::script("mine");
    let client = connected_as(&server, "maker").await;
    refused(&client, &script).await;
    client.batch_execute("ROLLBACK").await.unwrap();
    server.sql("GRANT CREATE ON DATABASE postgres TO maker").await.unwrap();
    allowed(&client, &script).await;
    allowed(&client, &script).await;
    // What it owns it completes without that right.
    server.sql("REVOKE CREATE ON DATABASE postgres FROM maker").await.unwrap();
    allowed(&client, &script).await;
    server.sql("CREATE SCHEMA given AUTHORIZATION maker").await.unwrap();
    allowed(&client, &schema::script("given")).await;
    // One that may create, too.
    refused(&connected(&config(&server)).await, &script).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_privileges_to_schemas_give_no_right_to_create_in_that_of_the_locks() {
    let server = fast().start().await.unwrap();
    let owner = connected(&config(&server)).await;
    connected_as(&server, "jobs").await;
    let defaults = "ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO jobs, PUBLIC";
    owner.batch_execute(defaults).await.unwrap();
    allowed(&owner, &schema::script("fencelock")).await;
    let rights = "SELECT has_schema_privilege('jobs', 'fencelock', 'USAGE'),
      has_schema_privilege('jobs', 'fencelock', 'CREATE')";
    assert_eq!(server.sql(rights).await.unwrap(), "t|f");
    allowed(&owner, &schema::script("fencelock")).await;
}

/// Made before the owner comes, each by a role that may create schemas, or in the owner's own.
const SNARES: [&str; 5] = [
    "CREATE SCHEMA fencelock",
    "CREATE SCHEMA fencelock; CREATE TABLE fencelock.locks (key bytea); ALTER SCHEMA fencelock OWNER TO fencelock",
    "CREATE SCHEMA fencelock;
     CREATE FUNCTION fencelock.us() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
     ALTER SCHEMA fencelock OWNER TO fencelock",
    "CREATE SCHEMA fencelock; CREATE TYPE fencelock.claims AS (key bytea);
     ALTER SCHEMA fencelock OWNER TO fencelock",
    "CREATE SCHEMA fencelock; ALTER SCHEMA fencelock OWNER TO fencelock; SET ROLE fencelock;
     GRANT CREATE ON SCHEMA fencelock TO PUBLIC",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_in_which_another_role_has_a_hand_is_refused() {
    let server = fast().start().await.unwrap();
    let owner = connected(&config(&server)).await;
    connected_as(&server, "mallory").await;
    server
        .sql("GRANT CREATE ON DATABASE postgres TO mallory; GRANT fencelock TO mallory")
        .await
        .unwrap();
    for snare in SNARES {
        let mallory = reconnected_as(&server, "mallory").await;
        allowed(&mallory, snare).await;
        let script = schema::script("fencelock");
        refused(&owner, &script).await;
        // A superuser, whom no right would stop.
        let error = server.sql(&script).await.unwrap_err();
        assert!(error.to_string().starts_with("42501"), "{snare}: {error}");
        server.sql("DROP SCHEMA fencelock CASCADE").await.unwrap();
    }
    allowed(&owner, &schema::script("fencelock")).await;
}

/// All that the functions use, under the same names, in schemas that this role can put in front.
const TRAP_OF_MALLORY: &str = "
    CREATE SCHEMA mallory;
    CREATE FUNCTION mallory.spring() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
      IF current_user <> 'job' THEN RAISE EXCEPTION 'runs as %', current_user USING ERRCODE = 'XX999'; END IF;
      RETURN true;
    END $$;
    CREATE FUNCTION mallory.sprung() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      PERFORM mallory.spring(); RETURN new;
    END $$;
    CREATE FUNCTION mallory.us() RETURNS bigint LANGUAGE sql AS 'SELECT mallory.spring()::int::bigint';
    CREATE FUNCTION mallory.same(bytea, bytea) RETURNS boolean LANGUAGE sql AS 'SELECT mallory.spring()';
    CREATE OPERATOR mallory.= (leftarg = bytea, rightarg = bytea, function = mallory.same);
    CREATE FUNCTION mallory.times(numeric, int) RETURNS numeric LANGUAGE sql AS 'SELECT mallory.spring()::int::numeric';
    CREATE OPERATOR mallory.* (leftarg = numeric, rightarg = int, function = mallory.times);
    CREATE FUNCTION mallory.set_config(text, text, boolean) RETURNS text LANGUAGE sql
      AS 'SELECT mallory.spring()::text';
    CREATE FUNCTION mallory.current_setting(text) RETURNS text LANGUAGE sql AS 'SELECT mallory.spring()::text';
    CREATE TEMP TABLE locks (LIKE fencelock.locks INCLUDING ALL);
    CREATE TEMP TABLE claims (LIKE fencelock.claims INCLUDING ALL);
    CREATE TEMP TABLE processes (LIKE fencelock.processes INCLUDING ALL);
    CREATE TRIGGER t BEFORE INSERT OR UPDATE ON locks FOR EACH ROW EXECUTE FUNCTION mallory.sprung();
    CREATE TRIGGER t BEFORE INSERT OR UPDATE ON claims FOR EACH ROW EXECUTE FUNCTION mallory.sprung();
    CREATE TRIGGER t BEFORE INSERT OR UPDATE ON processes FOR EACH ROW EXECUTE FUNCTION mallory.sprung();
    GRANT USAGE ON SCHEMA mallory TO fencelock; GRANT ALL ON locks, claims, processes TO fencelock;
    SET search_path = mallory, pg_temp, fencelock, pg_catalog";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_program_runs_its_code_as_the_owner() {
    let path = "SET search_path = \"fencelock\", pg_catalog, pg_temp\n";
    let safe = schema::script("fencelock");
    // Without the path, and with temporary tables before the others, as they are by default: the trap works.
    let unsafe_ones = [
        safe.replace(path, "\n"),
        safe.replace(path, "SET search_path = \"fencelock\", pg_catalog\n"),
    ];
    for (script, is_safe) in
        std::iter::once((safe, true)).chain(unsafe_ones.map(|script| (script, false)))
    {
        let server = fast().start().await.unwrap();
        let [owner, job, _operator] = granted(&server, &script).await;
        // As much as a program could have, beyond the comment.
        owner.batch_execute("GRANT SELECT ON ALL TABLES IN SCHEMA fencelock TO job").await.unwrap();
        server.sql("GRANT CREATE ON DATABASE postgres TO job").await.unwrap();
        allowed(&job, TRAP_OF_MALLORY).await;
        let mut sprung = 0;
        for call in OF_PROGRAMS {
            let sql = format!("SELECT * FROM fencelock.{call}");
            let done = job.batch_execute(&sql).await.map_err(|error| text_of(&error));
            sprung += usize::from(done.as_ref().is_err_and(|error| error.starts_with("XX999")));
            assert!(!is_safe || done.is_ok(), "{call}: {done:?}");
        }
        assert_eq!(sprung == 0, is_safe, "{sprung} sprung");
    }
}

/// As PUBLIC may do in the schema `public` of a database that PostgreSQL 14 or an older one has made. Each fits
/// arguments that are used better than PostgreSQL's own of the same name does.
const SNARES_IN_PUBLIC: &str = "
    CREATE TABLE public.caught (who text); GRANT ALL ON public.caught TO PUBLIC;
    CREATE FUNCTION public.catch() RETURNS text LANGUAGE sql AS 'INSERT INTO public.caught VALUES (current_user) RETURNING who';
    CREATE FUNCTION public.format(text, text) RETURNS text LANGUAGE sql AS 'SELECT public.catch()';
    CREATE FUNCTION public.format(text, name) RETURNS text LANGUAGE sql AS 'SELECT public.catch()';
    CREATE FUNCTION public.to_regclass(name) RETURNS regclass LANGUAGE sql AS 'SELECT public.catch()::regclass';
    CREATE FUNCTION public.concat(text, text) RETURNS text LANGUAGE sql AS 'SELECT public.catch()';
    CREATE OPERATOR public.|| (leftarg = text, rightarg = name, function = public.format);
    CREATE FUNCTION public.same(name, name) RETURNS boolean LANGUAGE sql AS 'SELECT public.catch() IS NOT NULL';
    CREATE OPERATOR public.= (leftarg = name, rightarg = name, function = public.same);
    CREATE FUNCTION public.same(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT public.catch() IS NOT NULL';
    CREATE OPERATOR public.= (leftarg = text, rightarg = text, function = public.same);
    CREATE FUNCTION public.pg_terminate_backend(int, int) RETURNS boolean LANGUAGE sql
      AS 'SELECT public.catch() IS NULL'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_stranger_runs_its_code_as_the_one_that_creates_the_schema_or_reconnects() {
    let server = fast().start().await.unwrap();
    server.sql("GRANT CREATE ON SCHEMA public TO PUBLIC").await.unwrap();
    let mallory = connected_as(&server, "mallory").await;
    allowed(&mallory, SNARES_IN_PUBLIC).await;
    let caught = async || -> i64 {
        mallory.query_one("SELECT count(*) FROM public.caught", &[]).await.unwrap().get(0)
    };
    let owner = connected(&config(&server)).await;
    allowed(&owner, "SELECT format('%s', 'x'::text)").await;
    assert_eq!(caught().await, 1, "the trap works");
    for path in [r#""$user", public"#, "public, pg_catalog", r#""a b", "C""#] {
        allowed(&owner, &format!("SET search_path = {path}")).await;
        for _ in 0..2 {
            allowed(&owner, &schema::script("fencelock")).await;
        }
        let row = owner.query_one("SHOW search_path", &[]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), path);
    }
    // That of the transaction alone ends with it.
    allowed(&owner, "RESET search_path; BEGIN; SET LOCAL search_path = public, pg_catalog").await;
    allowed(&owner, &schema::script("fencelock")).await;
    for (sql, path) in [("", "public, pg_catalog"), ("COMMIT", r#""$user", public"#)] {
        allowed(&owner, sql).await;
        let row = owner.query_one("SHOW search_path", &[]).await.unwrap();
        assert_eq!(row.get::<_, &str>(0), path);
    }
    server.sql("ALTER ROLE fencelock SET search_path = public, pg_catalog").await.unwrap();
    let url = format!("{}?schema=other", server.url());
    let locks = fencelock_core::url::connect(&[fencelock_postgres::SCHEME], &url).await.unwrap();
    locks.lock("lock").acquire().await.unwrap().release().await.unwrap();
    // One of its sessions is left while it reconnects, and is ended by the next.
    let sql =
        "SELECT application_name FROM pg_stat_activity WHERE application_name ~ '^fencelock_'";
    let name = server.sql(sql).await.unwrap();
    let left = config(&server).application_name(&name).clone();
    let (_left, connection) = left.connect(tokio_postgres::NoTls).await.unwrap();
    let left = tokio::spawn(connection);
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
      WHERE application_name ~ '^fencelock_' ORDER BY backend_start LIMIT 1";
    server.sql(sql).await.unwrap();
    locks.lock("lock").acquire().await.unwrap().release().await.unwrap();
    assert_eq!(caught().await, 1);
    let ended = tokio::time::timeout(Duration::from_secs(20), left).await;
    assert!(ended.expect("it is ended").unwrap().is_err());
}

async fn allowed(client: &Client, sql: &str) {
    client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {}", text_of(&error)));
}

async fn refused(client: &Client, sql: &str) {
    match client.batch_execute(sql).await {
        Ok(()) => panic!("not refused: {sql}"),
        Err(error) => assert!(text_of(&error).starts_with("42501"), "{sql}: {}", text_of(&error)),
    }
}
