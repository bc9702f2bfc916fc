//! `fencelock postgres schema`: its script is all that an owner runs, and a role with the rights in its first
//! lines all that a program needs.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use fencelock_testkit::servers::TestPostgres;

use crate::support::{Scratch, said};

/// A name that has to be quoted.
const SCHEMA: &str = "our \"locks\"";
const IN_URL: &str = "our%20%22locks%22";
const PASSWORD: &str = "password-of-all";

fn fencelock(arguments: &[&str]) -> Output {
    let here = Scratch::new();
    here.program(env!("CARGO_BIN_EXE_fencelock")).args(arguments).output().expect("it runs")
}

fn script() -> String {
    let (code, printed, complaints) = said(&fencelock(&["postgres", "schema", "--schema", SCHEMA]));
    assert_eq!((code, &*complaints), (0, ""));
    printed
}

/// Runs statements as `role`, in the way that the command's help shows.
fn psql(server: &TestPostgres, role: &str, statements: &str) -> (i32, String, String) {
    let mut psql = Command::new("psql")
        .args(["-1", "-v", "ON_ERROR_STOP=1", "-At", "-X", "-h", "127.0.0.1", "-U", role])
        .args(["-p", &server.port().to_string(), "-d", "postgres"])
        .env("PGPASSWORD", PASSWORD)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("psql is installed");
    psql.stdin.take().expect("piped").write_all(statements.as_bytes()).expect("it reads");
    said(&psql.wait_with_output().expect("it ends"))
}

/// The GRANT statements in the script's first lines, for these roles.
fn grants(script: &str, program: &str, operator: &str) -> (String, String) {
    let grants = script.lines().filter_map(|line| line.strip_prefix("--   GRANT "));
    let grants: Vec<_> = grants.map(|grant| format!("GRANT {grant}\n")).collect();
    let of = |role: &str, is: &str| {
        let own: String =
            grants.iter().filter(|it| it.contains(&format!(" TO {role};"))).cloned().collect();
        own.replace(&format!(" TO {role};"), &format!(" TO {is};"))
    };
    (of("PROGRAM", program), of("OPERATOR", operator))
}

/// A server on which `migrations` owns the schema, and these roles can log in.
async fn server(roles: &[&str]) -> TestPostgres {
    let server = TestPostgres::start().await.expect("a PostgreSQL server starts");
    for role in ["migrations"].iter().chain(roles) {
        server.create_role(role, PASSWORD).await.expect("created");
    }
    server.sql("GRANT CREATE ON DATABASE postgres TO migrations").await.expect("granted");
    server
}

fn url(server: &TestPostgres, role: &str) -> String {
    format!(
        "postgres://{role}:{PASSWORD}@{}/postgres?schema={IN_URL}&owner=migrations",
        server.addr()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_and_its_grants_are_all_that_programs_and_operators_need() {
    let server = server(&["jobs", "oncall"]).await;
    let (jobs, oncall) = (url(&server, "jobs"), url(&server, "oncall"));
    let script = script();
    let (code, _, complaints) = psql(&server, "migrations", &script);
    assert_eq!(code, 0, "{complaints}");

    // A role without the rights is told which are missing.
    let ask = |url: &str| said(&fencelock(&["run", "--url", url, "job", "--", "true"]));
    let (code, _, complaints) = ask(&jobs);
    assert_eq!((code, complaints.lines().count()), (78, 1), "{complaints}");
    assert!(complaints.contains("GRANT"), "{complaints}");
    assert!(!complaints.contains(PASSWORD), "{complaints}");

    let (programs, operators) = grants(&script, "jobs, oncall", "oncall");
    assert!(programs.lines().count() == 2 && operators.lines().count() == 1, "{script}");
    let (code, _, complaints) = psql(&server, "migrations", &(programs + &operators));
    assert_eq!(code, 0, "{complaints}");

    let print_token = ["--", "sh", "-c", "echo $FENCELOCK_TOKEN"];
    for command in
        [&["run", "-s"][..], &["run", "--permits", "1", "--limit", "2"], &["run"], &["elect"]]
    {
        let job = [command, &["--url", &jobs, "job"], &print_token].concat();
        let (code, printed, complaints) = said(&fencelock(&job));
        assert_eq!((code, &*complaints), (0, ""), "{command:?}");
        assert!(printed.trim().parse::<u64>().is_ok_and(|token| token > 0), "{printed}");
    }
    let tick = ["once", "--url", &jobs, "nightly", "--", "echo", "ran"];
    assert_eq!(said(&fencelock(&tick)), (0, "ran\n".to_owned(), String::new()));
    assert_eq!(said(&fencelock(&tick)), (0, String::new(), String::new()), "once");

    // A right that is missing is named before the job is lost for it.
    let renew = "FUNCTION \"our \"\"locks\"\"\".renew_1";
    psql(&server, "migrations", &format!("REVOKE EXECUTE ON {renew} FROM jobs"));
    let (code, _, complaints) =
        said(&fencelock(&["run", "-v", "--url", &jobs, "job", "--", "true"]));
    assert_eq!(code, 0, "{complaints}");
    assert!(complaints.contains("warning") && complaints.contains("renew_1"), "{complaints}");
    psql(&server, "migrations", &format!("GRANT EXECUTE ON {renew} TO jobs"));

    // Only an operator takes a lock from its holder; a program cannot, by no means.
    let locks = fencelock::connect(&jobs).await.expect("connected");
    let held = locks.lock("job").acquire().await.expect("granted");
    let take =
        |url: &str| said(&fencelock(&["break", "-u", url, "job", "--reason", "a test", "--yes"]));
    let (code, _, complaints) = take(&jobs);
    assert_eq!(code, 78, "{complaints}");
    assert!(complaints.contains("permission denied for function evict_1"), "{complaints}");
    assert!(held.is_held());
    for statement in [
        "SELECT owner FROM \"our \"\"locks\"\"\".locks",
        "UPDATE \"our \"\"locks\"\"\".locks SET until = 0",
        "TRUNCATE \"our \"\"locks\"\"\".claims",
    ] {
        let (code, _, complaints) = psql(&server, "jobs", statement);
        assert!(code != 0 && complaints.contains("permission denied for table"), "{complaints}");
    }
    let (code, _, complaints) = take(&oncall);
    assert_eq!(code, 0, "{complaints}");
    assert_eq!(held.lost().await, fencelock::LostReason::TakenAway);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_script_may_be_run_again_while_a_lock_is_held() {
    let server = server(&[]).await;
    let script = script();
    let apply = || psql(&server, "migrations", &script);
    assert_eq!(apply().0, 0);
    let locks = fencelock::connect(&url(&server, "migrations")).await.expect("connected");
    let held = locks.lock("job").acquire().await.expect("granted");
    let (code, _, complaints) = apply();
    assert_eq!(code, 0, "{complaints}");
    assert!(locks.lock("job").try_acquire().await.expect("an answer").is_none());
    held.release().await.expect("released");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_schema_is_asked_for_by_the_command_that_prints_it() {
    let server = server(&["jobs"]).await;
    for create in ["auto", "never"] {
        let url = format!("{}&create={create}", url(&server, "jobs"));
        let (code, _, complaints) = said(&fencelock(&["run", "--url", &url, "job", "--", "true"]));
        assert_eq!((code, complaints.lines().count()), (78, 1), "{complaints}");
        assert!(complaints.contains("fencelock postgres schema"), "create={create}: {complaints}");
        assert!(!complaints.contains(PASSWORD), "{complaints}");
    }
}

#[test]
fn a_name_that_no_schema_can_have_is_a_usage_error() {
    let long = "x".repeat(64);
    for (name, says) in [("", "empty"), ("pg_locks", "PostgreSQL's own"), (&*long, "63 bytes")] {
        let (code, printed, complaints) =
            said(&fencelock(&["postgres", "schema", "--schema", name]));
        assert_eq!((code, &*printed), (64, ""), "{complaints}");
        assert!(complaints.contains(says), "{name}: {complaints}");
    }
    assert!(script().contains("CREATE TABLE IF NOT EXISTS \"our \"\"locks\"\"\".locks"));
    let (_, printed, _) = said(&fencelock(&["postgres", "schema"]));
    assert_eq!(printed, fencelock::postgres::schema::script("fencelock"));
}
