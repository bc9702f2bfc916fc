//! A process that runs a client of another library.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use fencelock_testkit::servers::TestRedis;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::foreign::packages;

/// How long a reply may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    RedisPy,
    NodeRedlock,
}

impl Library {
    pub(crate) const ALL: [Library; 2] = [Library::RedisPy, Library::NodeRedlock];

    fn command(self) -> Command {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faults/foreign");
        match self {
            Library::RedisPy => {
                let mut python = Command::new(packages::python());
                python.arg(source.join("peer.py"));
                python
            }
            Library::NodeRedlock => {
                let mut node = Command::new("node");
                node.env("NODE_PATH", packages::node_modules()).arg(source.join("peer.cjs"));
                node
            }
        }
    }
}

/// Killed when it is dropped.
pub(crate) struct Peer {
    library: Library,
    _child: Child,
    questions: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    /// Starts a peer that is connected.
    pub(crate) async fn start(library: Library, server: &TestRedis) -> Peer {
        let mut command = library.command();
        command.arg(server.url()).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let questions = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut peer = Peer { library, _child: child, questions, answers };
        assert_eq!(peer.answer().await, "ready", "{library:?}");
        peer
    }

    /// Sends a request, without waiting for the reply.
    pub(crate) async fn send(&mut self, question: &str) {
        self.questions.write_all(format!("{question}\n").as_bytes()).await.unwrap();
    }

    pub(crate) async fn answer(&mut self) -> String {
        match tokio::time::timeout(PATIENCE, self.answers.next_line()).await {
            Ok(Ok(Some(line))) => line,
            Ok(end) => panic!("{:?} ended: {end:?}; its own words are above", self.library),
            Err(_) => panic!("{:?} gave no answer within {PATIENCE:?}", self.library),
        }
    }

    pub(crate) async fn ask(&mut self, question: &str) -> String {
        self.send(question).await;
        self.answer().await
    }
}
