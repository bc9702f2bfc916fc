//! The command of an earlier commit beside this one: writers and readers of both exclude each other on every store, and
//! hand the lock to each other.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use fencelock_testkit::deployments::{Kind, Wiring};

use crate::operator::every_store::LIBRARY;
use crate::support::Scratch;

/// What the stores keep has had the same form since then.
const EARLIER: &str = "05e68a26";
/// Of each client.
const TURNS: usize = 150;
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
    use super::{Kind, exclude_each_other};

    on_stores! {
        exclude_each_other:
        #[ignore = "in ./test --long: builds an earlier command"]
        on_files(Kind::File);
        #[ignore = "in ./test --long: builds an earlier command"]
        on_postgres(Kind::Postgres);
        #[ignore = "in ./test --long: builds an earlier command"]
        on_redis(Kind::Redis);
        #[ignore = "in ./test --long: builds an earlier command"]
        on_redlock(Kind::Redlock3);
        #[ignore = "in ./test --long: builds an earlier command"]
        on_zookeeper(Kind::ZooKeeper);
    }
}

async fn exclude_each_other(kind: Kind) {
    let earlier = earlier_command();
    let store = kind.start(LIBRARY, Wiring::Direct).await.expect("the servers start");
    let (here, url) = (Scratch::new(), store.url());
    std::fs::write(here.path("n"), "0\n").expect("written");
    std::thread::scope(|scope| {
        for (version, number) in
            [None, Some(earlier)].into_iter().flat_map(|it| (0..=WRITERS).map(move |n| (it, n)))
        {
            let (here, url) = (&here, &url);
            scope.spawn(move || take_turns(here, url, version, number < WRITERS));
        }
    });
    let wrong = std::fs::read_to_string(here.path("wrong")).unwrap_or_default();
    assert_eq!(wrong, "");
    let count = std::fs::read_to_string(here.path("n")).expect("a counter");
    assert_eq!(count.trim(), (2 * WRITERS * TURNS).to_string(), "an addition was lost");
    let log = std::fs::read_to_string(here.path("log")).expect("a log");
    let (mut last, mut handed_over) = ((0, ""), 0);
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let token: u64 = words[1].parse().expect("a token");
        assert!(token > last.0, "a token fell: {line} after {last:?}");
        handed_over += u32::from(last.1 != words[2]);
        last = (token, words[2]);
    }
    println!("{kind:?}: {handed_over} of {} turns came from the other version", count.trim());
    assert!(handed_over > 20, "{handed_over} turns came from the other version");
}

fn take_turns(here: &Scratch, url: &str, earlier: Option<&Path>, writes: bool) {
    let (mode, script) = if writes { ("--write", WRITE) } else { ("--shared", READ) };
    let arguments = ["--quiet", "--url", url, mode, "--wait", "40", "n", "--", "sh", "-c", script];
    for _ in 0..TURNS {
        let ours = Path::new(env!("CARGO_BIN_EXE_fencelock"));
        let mut run = here.program(earlier.unwrap_or(ours));
        run.arg("run").args(arguments);
        run.env("VERSION", if earlier.is_some() { "earlier" } else { "now" });
        let output = run.stdin(Stdio::null()).output().expect("it runs");
        assert!(output.status.success(), "{earlier:?}: {output:?}");
    }
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
