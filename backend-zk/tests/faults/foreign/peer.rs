//! A Java program that uses Curator's locks, controlled by lines on its input.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

/// Starting Java, with a source file to compile, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Peer {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

/// The class path of Curator: `FENCELOCK_CURATOR`, or the jars that Debian installs.
fn class_path() -> String {
    const JARS: [&str; 13] = [
        "curator-recipes",
        "curator-framework",
        "curator-client",
        "zookeeper",
        "zookeeper-jute",
        "guava",
        "failureaccess",
        "slf4j-api",
        "slf4j-nop",
        "netty-all",
        "snappy-java",
        "metrics-core",
        "jackson-databind",
    ];
    if let Ok(path) = std::env::var("FENCELOCK_CURATOR") {
        return path;
    }
    let jars = JARS.map(|jar| format!("/usr/share/java/{jar}.jar"));
    assert!(
        Path::new(&jars[0]).is_file(),
        "{} not found; on Debian and Ubuntu: apt-get install libcurator-recipes-java",
        jars[0]
    );
    jars.join(":")
}

/// Java with one of this directory's programs; the command's tests use them too.
fn java(source: &str) -> Command {
    let mut command = Command::new("java");
    command.args(["-Xmx96m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-cp", &class_path()]);
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../backend-zk/tests/faults/foreign");
    command.arg(format!("{directory}/{source}"));
    command.kill_on_drop(true);
    command
}

/// Writes to the log of a stopped server that `count` children were created under `path`.
pub(crate) async fn make_numbers(data: &Path, path: &str, count: i32) {
    let mut program = java("Numbers.java");
    program.arg(data).args([path, &count.to_string()]);
    let ended = timeout(PATIENCE, program.status()).await.expect("it ends in time");
    assert!(ended.expect("java starts").success());
}

impl Peer {
    pub(crate) async fn start(servers: &str) -> Peer {
        let mut child = java("Peer.java")
            .arg(servers)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("java starts");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut peer = Peer { _child: child, input, output };
        assert_eq!(peer.answer().await, "ready");
        peer
    }

    pub(crate) async fn send(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).await.expect("it listens");
    }

    pub(crate) async fn answer(&mut self) -> String {
        let line = timeout(PATIENCE, self.output.next_line()).await.expect("it answers in time");
        line.expect("it answers").expect("it runs")
    }

    pub(crate) async fn ask(&mut self, line: &str) -> String {
        self.send(line).await;
        self.answer().await
    }
}
