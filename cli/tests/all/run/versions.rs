//! The command of an earlier commit beside this one: writers and readers of both exclude each other on every store, and
//! hand the lock to each other.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use fencelock_testkit::deployments::{Kind, Wiring};

use crate::operator::every_store::LIBRARY;
use crate::support::Scratch;

/// What the stores keep has had the same form since then.
const EARLIER: &str = "05e68a26";
const LENGTH: Duration = Duration::from_secs(60);
/// Of each version.
const WRITERS: usize = 3;

/// The counter is a file, and adding to it two steps. Who is alone there says so.
const WRITE: &str = r#"
[ -e busy ] && echo "$VERSION was not alone" >> wrong
echo $VERSION > busy
n=$(cat n)
echo $((n + 1)) > n
echo "$n $FENCELOCK_TOKEN $VERSION" >> log
rm busy
"#;
const READ: &str = r#"
n=$(cat n)
[ -e busy ] && echo "$VERSION read beside $(cat busy)" >> wrong
sleep 0.01
[ $(cat n) = $n ] || echo "$VERSION read what changed" >> wrong
"#;

mod long {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "in ./test --long: builds an earlier command"]
    async fn on_files() {
        exclude_each_other(Kind::File).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "in ./test --long: builds an earlier command"]
    async fn on_postgres() {
        exclude_each_other(Kind::Postgres).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "in ./test --long: builds an earlier command"]
    async fn on_redis() {
        exclude_each_other(Kind::Redis).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "in ./test --long: builds an earlier command"]
    async fn on_redlock() {
        exclude_each_other(Kind::Redlock3).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    #[ignore = "in ./test --long: builds an earlier command"]
    async fn on_zookeeper() {
        exclude_each_other(Kind::ZooKeeper).await;
    }
}

async fn exclude_each_other(kind: Kind) {
    let earlier = earlier_command();
    let store = kind.start(LIBRARY, Wiring::Direct).await.expect("the servers start");
    let (here, url) = (Scratch::new(), store.url());
    std::fs::write(here.path("n"), "0\n").expect("written");
    let end = Instant::now() + LENGTH;
    let written: Vec<u64> = std::thread::scope(|scope| {
        let clients: Vec<_> = [None, Some(earlier)]
            .into_iter()
            .flat_map(|version| (0..=WRITERS).map(move |number| (version, number < WRITERS)))
            .map(|(version, writes)| {
                let (here, url) = (&here, &url);
                scope.spawn(move || client(here, url, version, writes, end))
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("it works")).collect()
    });
    let wrong = std::fs::read_to_string(here.path("wrong")).unwrap_or_default();
    assert_eq!(wrong, "");
    let count = std::fs::read_to_string(here.path("n")).expect("a counter");
    let total: u64 = written[..WRITERS].iter().chain(&written[WRITERS + 1..][..WRITERS]).sum();
    assert_eq!(count.trim(), total.to_string(), "an addition was lost");
    let log = std::fs::read_to_string(here.path("log")).expect("a log");
    let (mut last, mut handed_over) = ((0, ""), 0);
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let token: u64 = words[1].parse().expect("a token");
        assert!(token > last.0, "a token fell: {line} after {last:?}");
        handed_over += u32::from(last.1 != words[2]);
        last = (token, words[2]);
    }
    println!("{kind:?}: {written:?} turns, {handed_over} times from one version to the other");
    assert!(written.iter().all(|turns| *turns > 2) && handed_over > 20, "{written:?}");
}

/// Takes turns until the end; how many.
fn client(here: &Scratch, url: &str, earlier: Option<&Path>, writes: bool, end: Instant) -> u64 {
    let (mode, script) = if writes { ("--write", WRITE) } else { ("--shared", READ) };
    let arguments = ["--quiet", "--url", url, mode, "--wait", "40", "n", "--", "sh", "-c", script];
    let mut turns = 0;
    while Instant::now() < end {
        let ours = here.run(&arguments);
        let mut run = Command::new(earlier.map_or(ours.get_program(), Path::as_os_str));
        run.args(ours.get_args()).current_dir(here.path("."));
        for (name, value) in ours.get_envs() {
            match value {
                Some(value) => run.env(name, value),
                None => run.env_remove(name),
            };
        }
        run.env("VERSION", if earlier.is_some() { "earlier" } else { "now" });
        let output = run.stdin(Stdio::null()).output().expect("it runs");
        assert!(output.status.success(), "{earlier:?}: {output:?}");
        turns += 1;
    }
    turns
}

/// Builds it once, from this repository's history.
fn earlier_command() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join(EARLIER);
        let sources = target.join("sources");
        std::fs::create_dir_all(&sources).expect("a directory");
        let known = Command::new("git").args(["cat-file", "-e", EARLIER]).current_dir(&root).status();
        assert!(
            known.expect("git").success(),
            "expected commit {EARLIER} in the history: a shallow clone gets it by `git fetch --unshallow`"
        );
        let script = "git archive \"$0\" | tar -x -C \"$1\" && cd \"$1\" && \
                      cargo build --quiet --locked -p fencelock-cli --target-dir \"$2\"";
        let mut build = Command::new("sh");
        build.args(["-e", "-c", script, EARLIER]).args([&sources, &target]).current_dir(root);
        assert!(build.status().expect("a shell").success(), "the earlier command was not built");
        target.join("debug/fencelock")
    })
}
