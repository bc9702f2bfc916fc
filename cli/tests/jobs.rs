//! The recipes of docs/jobs.md, taken from it word for word: the crontab line on three servers whose
//! clocks differ, the systemd units, the files for Kubernetes. Only paths and the store are replaced.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use fencelock_testkit::servers::TestRedis;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tempfile::TempDir;

const RECIPES: &str = include_str!("../../docs/jobs.md");
const README: &str = include_str!("../../README.md");
const FENCELOCK: &str = env!("CARGO_BIN_EXE_fencelock");
/// Where the recipes expect the program.
const INSTALLED: &str = "/usr/local/bin/fencelock";
/// Longer than anything here takes on a busy machine.
const HANG: Duration = Duration::from_secs(60);

/// The code blocks of a page in this language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    let found: Vec<_> = page
        .split("```")
        .skip(1)
        .step_by(2)
        .filter_map(|block| block.strip_prefix(&fence["```".len()..]))
        .collect();
    assert!(!found.is_empty(), "there is a block of {language}");
    found
}

/// The only line of a page's only crontab.
fn crontab(page: &'static str) -> &'static str {
    let [crontab] = blocks(page, "cron")[..] else { panic!("one crontab") };
    let mut lines = crontab.lines().map(str::trim).filter(|line| !line.is_empty());
    let line = lines.next().expect("a line");
    assert_eq!(lines.next(), None, "one line");
    line
}

/// Three servers that share a Redis, each with a home directory and a clock of its own.
struct Servers {
    redis: TestRedis,
    directory: TempDir,
}

impl Servers {
    async fn start() -> Servers {
        let redis = TestRedis::start().await.expect("redis-server is installed; ./test does that");
        let servers = Servers { redis, directory: tempfile::tempdir().expect("a directory") };
        for server in 0..3 {
            let home = servers.home(server);
            fs::create_dir_all(home.join(".config")).expect("a directory");
            let config = format!("url = {:?}\n", servers.redis.url());
            fs::write(home.join(".config/fencelock.toml"), config).expect("a file");
            // The time of its start, and where.
            let ran = servers.ran();
            executable(&home.join("report.sh"), &format!("echo {server} >> '{}'\n", ran.display()));
        }
        servers
    }

    fn home(&self, server: usize) -> PathBuf {
        self.directory.path().join(format!("server-{server}"))
    }

    /// The file with one line for each run of the job.
    fn ran(&self) -> PathBuf {
        self.directory.path().join("ran")
    }

    fn runs(&self) -> usize {
        fs::read_to_string(self.ran()).unwrap_or_default().lines().count()
    }

    /// A process that waits until the clock of this server shows the line's time, as cron does, and
    /// then runs the line's command with cron's environment.
    fn cron(&self, server: usize, line: &str, clock: &Clock) -> Server {
        let (minute, rest) = line.split_once(' ').expect("a minute");
        let (hour, rest) = rest.split_once(' ').expect("an hour");
        let command = rest.strip_prefix("* * * ").expect("a job of every day");
        let command = command.replacen(INSTALLED, FENCELOCK, 1);
        assert!(command.contains(FENCELOCK), "{command}");
        let wait =
            format!(r#"until [ "$(date '+%-M %-H')" = '{minute} {hour}' ]; do sleep 0.02; done"#);
        // A shell that stays, also at a SIGTERM to all, and runs its exit handlers: in one of them
        // libfaketime removes what it keeps in /dev/shm.
        let script = format!("trap : TERM\n{wait}\n/bin/sh -c \"$0\"\nexit $?");
        let mut cron = Command::new("/bin/bash");
        cron.env_clear()
            .env("HOME", self.home(server))
            .env("LOGNAME", "jobs")
            .env("SHELL", "/bin/sh")
            .env("PATH", "/usr/bin:/bin")
            .env("TZ", "UTC")
            .env("LD_PRELOAD", &clock.library)
            .env("FAKETIME", format!("{:+}s", clock.ahead - server as i64))
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .args(["-c", &script, &command])
            .current_dir(self.home(server))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        Server(Some(cron.spawn().expect("it runs")))
    }
}

fn executable(path: &Path, script: &str) {
    fs::write(path, format!("#!/bin/sh\n{script}")).expect("a file");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("it is ours");
}

/// The wall clocks of the servers: the first is this far ahead of the true time, each further one a
/// second behind the one before.
struct Clock {
    library: PathBuf,
    ahead: i64,
}

impl Clock {
    /// The clock of the first server shows 02:59:58 of the next day.
    fn before_three() -> Clock {
        let places =
            ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
        let libraries = places.map(|place| Path::new(place).join("faketime/libfaketimeMT.so.1"));
        let library = libraries.into_iter().find(|library| library.exists());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        let now = i64::try_from(now.as_secs()).expect("before the end of time");
        let day = 24 * 3600;
        let shown = (now / day + 1) * day + 3 * 3600 - 2;
        let library = library.expect("libfaketime is installed: the Debian package libfaketime");
        Clock { library, ahead: shown - now }
    }
}

/// A server's cron, and what it started.
struct Server(Option<Child>);

impl Server {
    fn has_ended(&mut self) -> bool {
        self.0.as_mut().expect("not yet waited for").try_wait().expect("it is ours").is_some()
    }

    fn output(mut self) -> Output {
        self.0.take().expect("not yet waited for").wait_with_output().expect("it is ours")
    }

    fn terminate(&self) {
        let cron = self.0.as_ref().expect("not yet waited for");
        let group = i32::try_from(cron.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process_group(group, Signal::TERM).expect("it is there");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A failed test leaves nothing behind; fencelock's watchdog ends the job.
        if let Some(cron) = &mut self.0 {
            let _ = cron.kill();
            let _ = cron.wait();
        }
    }
}

async fn eventually(what: &str, mut so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !so() {
        assert!(since.elapsed() < HANG, "gave up waiting until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_crontab_line_runs_once_on_three_servers_whose_clocks_differ() {
    let line = crontab(RECIPES);
    let (servers, clock) = (Servers::start().await, Clock::before_three());
    let mut all: Vec<_> = (0..3).map(|server| servers.cron(server, line, &clock)).collect();
    // One runs the job and then holds the lock, the others are refused.
    eventually("two servers skip the job", || {
        all.iter_mut().filter_map(|server| server.has_ended().then_some(())).count() >= 2
    })
    .await;
    eventually("the job has run", || servers.runs() > 0).await;
    let (skipped, holding): (Vec<_>, Vec<_>) =
        all.into_iter().map(|mut server| (server.has_ended(), server)).partition(|it| it.0);
    for (_, server) in skipped {
        let output = server.output();
        assert!(output.status.success(), "skipping is success: {output:?}");
        assert!(output.stderr.is_empty(), "cron would mail this: {output:?}");
    }
    assert_eq!(holding.len(), 1, "one server holds the lock for --hold-at-least");
    for (_, server) in holding {
        server.terminate();
        server.output();
    }
    assert_eq!(servers.runs(), 1);
}

/// What the option is for, and that the test above can fail. Here each server's clock is behind that of
/// the one before by as long as a job takes there, however slow the machine is.
#[tokio::test]
async fn without_hold_at_least_the_crontab_line_runs_on_each_of_them() {
    let line = crontab(RECIPES).replace("--hold-at-least 5m ", "");
    assert_ne!(line, crontab(RECIPES));
    let servers = Servers::start().await;
    for server in 0..3 {
        let mut cron = servers.cron(server, &line, &Clock::before_three());
        eventually("the job is done", || cron.has_ended()).await;
        let output = cron.output();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(servers.runs(), 3);
}

#[test]
fn the_readme_has_the_same_crontab_line() {
    assert_eq!(crontab(README), crontab(RECIPES));
}

#[test]
fn systemd_accepts_the_units() {
    let directory = tempfile::tempdir().expect("a directory");
    let units = blocks(RECIPES, "ini");
    let [service, timer] = units[..] else { panic!("a service and a timer") };
    let mut paths = Vec::new();
    for (name, text) in [("nightly-report.service", service), ("nightly-report.timer", timer)] {
        assert!(RECIPES.contains(&format!("`/etc/systemd/system/{name}`:")));
        let path = directory.path().join(name);
        fs::write(&path, text.replace(INSTALLED, FENCELOCK)).expect("a file");
        paths.push(path);
    }
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no", "--recursive-errors=yes"]).args(&paths);
    let output = verify.output().expect("systemd-analyze is installed: the package systemd");
    let said = String::from_utf8_lossy(&output.stderr);
    let about_ours = said.lines().find(|line| line.contains("nightly-report"));
    assert!(output.status.success() && about_ours.is_none(), "{output:?}");
}

/// All YAML documents of the page.
fn manifests() -> Vec<Value> {
    let to_json = "import json, sys, yaml; json.dump(yaml.safe_load(sys.argv[1]), sys.stdout)";
    let parse = |text: &&str| {
        let parsed = Command::new("python3").args(["-c", to_json, text]).output();
        let output = parsed.expect("python3 is installed");
        assert!(output.status.success(), "needs the Debian package python3-yaml: {output:?}");
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    blocks(RECIPES, "yaml").iter().map(parse).collect()
}

#[tokio::test]
async fn the_commands_for_kubernetes_run_the_job_under_the_lock() {
    let pods = BTreeMap::from([
        ("CronJob", ("/spec/jobTemplate/spec/template/spec", "containers", "report.sh")),
        ("Deployment", ("/spec/template/spec", "initContainers", "migrate.sh")),
    ]);
    let manifests = manifests();
    assert_eq!(manifests.len(), pods.len());
    let redis = TestRedis::start().await.expect("redis-server is installed; ./test does that");
    for manifest in manifests {
        let (spec, containers, script) = pods[manifest["kind"].as_str().expect("a kind")];
        let pod = manifest.pointer(spec).expect("a pod");
        let container = &pod[containers][0];
        let command: Vec<_> = container["command"].as_array().expect("a command").iter().collect();
        let command: Vec<_> = command.iter().map(|word| word.as_str().expect("a string")).collect();
        let (program, arguments) = command.split_first().expect("a command");
        assert_eq!(*program, "fencelock");

        // What the volume puts where the variable points to.
        let variable = &container["env"][0];
        let mount = &container["volumeMounts"][0];
        assert_eq!(mount["name"], pod["volumes"][0]["name"]);
        let file = variable["value"].as_str().expect("a path");
        let mounted = Path::new(mount["mountPath"].as_str().expect("a path"));
        assert_eq!(Path::new(file).parent(), Some(mounted));

        let directory = tempfile::tempdir().expect("a directory");
        fs::write(directory.path().join("url"), redis.url()).expect("a file");
        executable(&directory.path().join(script), "echo \"ran $FENCELOCK_NAME\"\n");
        let program = directory.path().join("fencelock");
        symlink(FENCELOCK, &program).expect("a link");
        // The tail of --hold-at-least is not waited for.
        let arguments = arguments.iter().map(|word| if *word == "5m" { "1ms" } else { *word });
        let output = Command::new(&program)
            .args(arguments)
            .current_dir(directory.path())
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", directory.path())
            .env(variable["name"].as_str().expect("a name"), directory.path().join("url"))
            .output()
            .expect("it runs");
        assert!(output.status.success() && output.stdout.starts_with(b"ran "), "{output:?}");
    }
}
