//! The recipes of docs/jobs.md, taken from it word for word: the crontab lines on three servers whose
//! clocks differ, the systemd units, the files for Kubernetes. Only paths and the store are replaced.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use fencelock_testkit::servers::TestRedis;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tempfile::TempDir;

const RECIPES: &str = include_str!("../../../docs/jobs.md");
const README: &str = include_str!("../../../README.md");
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

/// The crontabs of a page, each of one line.
fn crontabs(page: &'static str) -> Vec<&'static str> {
    let line = |crontab: &'static str| {
        let mut lines = crontab.lines().map(str::trim).filter(|line| !line.is_empty());
        let line = lines.next().expect("a line");
        assert_eq!(lines.next(), None, "one line");
        line
    };
    blocks(page, "cron").into_iter().map(line).collect()
}

/// The line with `fencelock once`, and the one with `fencelock run`.
fn recipes() -> (&'static str, &'static str) {
    let [once, run] = crontabs(RECIPES)[..] else { panic!("two crontabs") };
    assert!(once.contains(" once ") && run.contains(" run "));
    (once, run)
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
            servers.configure(server, &servers.redis.url());
            // The time of its start, and where.
            let ran = servers.ran();
            executable(&home.join("report.sh"), &format!("echo {server} >> '{}'\n", ran.display()));
        }
        servers
    }

    fn configure(&self, server: usize, url: &str) {
        let config = format!("url = {url:?}\n");
        fs::write(self.home(server).join(".config/fencelock.toml"), config).expect("a file");
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
    /// then runs the line's command with cron's environment. This server's clock is `ahead` of the true
    /// time, in seconds.
    fn cron(&self, server: usize, line: &str, clock: &Clock, ahead: i64) -> Server {
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
            .env("FAKETIME", format!("{:+}s", clock.ahead + ahead))
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

/// Written by another process: what this one has open for writing, children of other tests have open for a moment
/// too, and it is "busy".
fn executable(path: &Path, script: &str) {
    let write = "printf '#!/bin/sh\n%s' \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let written = Command::new("sh").args(["-c", write]).arg(path).arg(script).status();
    assert!(written.expect("it runs").success());
}

/// The true time of a test, which is this far ahead of the machine's, in seconds.
struct Clock {
    library: PathBuf,
    ahead: i64,
}

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

impl Clock {
    /// `before` seconds before three o'clock, `days` after tomorrow.
    fn before_three(days: i64, before: i64) -> Clock {
        let places =
            ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
        let libraries = places.map(|place| Path::new(place).join("faketime/libfaketimeMT.so.1"));
        let library = libraries.into_iter().find(|library| library.exists());
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        let now = i64::try_from(now.as_secs()).expect("before the end of time");
        let shown = (now / DAY + 1 + days) * DAY + 3 * HOUR - before;
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

    /// Waits until it has run or skipped the job, without a word.
    async fn ends_silently(mut self) {
        eventually("it runs or skips the job", || self.has_ended()).await;
        assert_silent_success(&self.output());
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

/// Success without a word, which cron would mail.
fn assert_silent_success(output: &Output) {
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// Clocks that are right, 40 s behind and 3 h ahead: each server asks at another true time, the one that
/// is furthest ahead first.
#[tokio::test]
async fn the_line_with_once_runs_once_a_day_whatever_the_clocks_show() {
    let (line, _) = recipes();
    let servers = Servers::start().await;
    for day in 0..2 {
        for (server, ahead) in [(2, 3 * HOUR), (0, 0), (1, -40)] {
            let clock = Clock::before_three(day, ahead + 2);
            servers.cron(server, line, &clock, ahead).ends_silently().await;
        }
        let ran = fs::read_to_string(servers.ran()).expect("it ran");
        assert_eq!(ran, "2\n".repeat(usize::try_from(day).expect("a day") + 1));
    }
}

/// By longer than it is remembered which runs are done: a server whose clock was never set, and one that is
/// a year ahead, run the job of a day of their own, and make no day of the others be run again.
#[tokio::test]
async fn a_clock_that_is_years_off_makes_no_run_of_the_others_be_repeated() {
    for ahead in [365 * DAY, -20_000 * DAY] {
        for is_file in [false, true] {
            let servers = Servers::start().await;
            let (line, _) = recipes();
            let line = if is_file { line.replace("--reach network ", "") } else { line.to_owned() };
            if is_file {
                let url = format!("file://{}", servers.directory.path().join("locks").display());
                (0..3).for_each(|server| servers.configure(server, &url));
                fs::create_dir(servers.directory.path().join("locks")).expect("a directory");
            }
            for (server, ahead) in [(0, 0), (2, ahead), (1, 0), (2, ahead), (0, 0)] {
                servers
                    .cron(server, &line, &Clock::before_three(0, 0), ahead)
                    .ends_silently()
                    .await;
            }
            assert_eq!(fs::read_to_string(servers.ran()).expect("it ran"), "0\n2\n");
        }
    }
}

#[tokio::test]
async fn the_line_with_once_runs_once_on_three_servers_that_ask_at_the_same_time() {
    let (line, _) = recipes();
    let (servers, clock) = (Servers::start().await, Clock::before_three(0, 2));
    let all: Vec<_> = (0..3).map(|server| servers.cron(server, line, &clock, 0)).collect();
    for server in all {
        server.ends_silently().await;
    }
    assert_eq!(servers.runs(), 1);
}

#[tokio::test]
async fn the_line_with_run_runs_once_on_three_servers_whose_clocks_differ_by_seconds() {
    let (_, line) = recipes();
    let (servers, clock) = (Servers::start().await, Clock::before_three(0, 2));
    let all = [0, 1, 2].map(|server| servers.cron(server, line, &clock, -(server as i64)));
    let mut all = Vec::from(all);
    // One runs the job and then holds the lock, the others are refused.
    eventually("two servers skip the job", || {
        all.iter_mut().filter_map(|server| server.has_ended().then_some(())).count() >= 2
    })
    .await;
    eventually("the job has run", || servers.runs() > 0).await;
    let (skipped, holding): (Vec<_>, Vec<_>) =
        all.into_iter().map(|mut server| (server.has_ended(), server)).partition(|it| it.0);
    for (_, server) in skipped {
        assert_silent_success(&server.output());
    }
    assert_eq!(holding.len(), 1, "one server holds the lock for --hold-at-least");
    for (_, server) in holding {
        server.terminate();
        server.output();
    }
    assert_eq!(servers.runs(), 1);
}

#[test]
fn the_readme_has_the_same_crontab_line() {
    assert_eq!(crontabs(README), [recipes().0]);
}

#[test]
fn systemd_accepts_the_units() {
    let units = blocks(RECIPES, "ini");
    let [service, timer, run, notify] = units[..] else {
        panic!("a service, a timer, another command, and a service that says when it is ready")
    };
    // The line that replaces the service's.
    let command = |unit: &'static str| {
        let mut commands = unit.lines().filter(|line| line.starts_with("ExecStart="));
        commands.next().filter(|_| commands.next().is_none()).expect("one command")
    };
    assert_eq!(run, format!("[Service]\n{}\n", command(run)));
    let with_run = service.replace(command(service), command(run));
    assert!(service.contains(" once ") && with_run.contains(" run "));
    for service in [service, &with_run, notify] {
        let directory = tempfile::tempdir().expect("a directory");
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
    let mut manifests = manifests();
    assert_eq!(manifests.len(), pods.len() + 1);
    // The CronJob with the other command of the page.
    let command = manifests.iter().position(|it| it["kind"].is_null()).expect("a command");
    let command = manifests.remove(command)["command"].take();
    let with_run = manifests.iter().find(|it| it["kind"] == "CronJob").map(|cron_job| {
        let mut cron_job = cron_job.clone();
        let (spec, containers, _) = pods["CronJob"];
        cron_job.pointer_mut(spec).expect("a pod")[containers][0]["command"] = command;
        cron_job
    });
    manifests.extend(with_run);
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
