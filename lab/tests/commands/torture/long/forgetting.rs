//! A server that forgets: what a store would do that does not remember is a violation.

use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::super::{command, read};
use crate::support::{ended, output};

/// Deletes all cells.
const FORGET: &str =
    "EVAL \"for _, key in ipairs(redis.call('KEYS', '*:c')) do redis.call('DEL', key) end\" 0\r\n";

/// A server that loses its cells under a fault for which no profile admits it.
#[tokio::test]
#[ignore = "in ./test --long: minutes of the processor"]
async fn cells_that_are_not_remembered_are_violations() {
    let directory = tempfile::tempdir().expect("a directory");
    let (server, arguments) = (directory.path().join("server"), directory.path().join("arguments"));
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] || printf '%s\\n' \"$@\" > {}\nexec redis-server \"$@\"\n",
        arguments.display()
    );
    // By another process, so that no child of another test has it open when it is executed.
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let written = Command::new("sh").args(["-c", write]).arg(&server).arg(script).status();
    assert!(written.expect("it runs").success());
    let file = NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a plain path");
    let mut torture =
        command(&["redis", "--rounds", "2", "--fault", "client-clock-stepped", "--json", path]);
    let output = tokio::select! {
        output = output(torture.env("FENCELOCK_REDIS_SERVER", &server)) => output,
        () = forget(&arguments) => unreachable!("it forgets for as long as it can"),
    };
    let (code, printed) = ended(&output);
    let report = read(&file);
    let rounds = report["rounds"].as_array().expect("rounds");
    for histories in rounds.iter().filter_map(|round| round["histories"].as_str()) {
        std::fs::remove_dir_all(histories).expect("removed");
    }
    assert_eq!(code, 1, "{printed}");
    let found = rounds.iter().flat_map(|round| round["violations"].as_array().expect("a list"));
    let found: Vec<&str> = found.map(|it| it.as_str().expect("a text")).collect();
    for what in [
        " was the sum of an addition that began after ",
        " was run again after it was done",
        " was begun twice",
    ] {
        assert!(found.iter().any(|it| it.contains(what)), "{what}: {found:#?}");
    }
}

/// Deletes all cells of the server that was started with these arguments, until it ends.
async fn forget(arguments: &Path) {
    loop {
        // It is not there yet, or no more.
        let _ = forget_while_it_lives(arguments).await;
        sleep(Duration::from_millis(5)).await;
    }
}

async fn forget_while_it_lives(arguments: &Path) -> io::Result<()> {
    let arguments = std::fs::read_to_string(arguments)?;
    let port = arguments.lines().skip_while(|it| *it != "--port").nth(1).unwrap_or_default();
    let mut server = TcpStream::connect(format!("127.0.0.1:{port}")).await?;
    loop {
        server.write_all(FORGET.as_bytes()).await?;
        // The answer is nil.
        server.read_exact(&mut [0; 5]).await?;
        sleep(Duration::from_millis(5)).await;
    }
}
