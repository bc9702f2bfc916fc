//! A server that forgets: what a store would do that does not remember is a violation.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::violations;

/// A server that forgets each token, so that the next one is that of its clock alone.
#[tokio::test]
#[ignore = "in ./test --long: minutes of the processor"]
async fn tokens_of_a_clock_that_is_not_remembered_are_violations() {
    let found = violations_without("*:f", "server-clock-stepped").await;
    assert!(found.iter().any(|it| it.contains(" was granted after ")), "{found:#?}");
}

/// A server that loses its cells under a fault for which no profile admits it.
#[tokio::test]
#[ignore = "in ./test --long: minutes of the processor"]
async fn cells_that_are_not_remembered_are_violations() {
    let found = violations_without("*:c", "client-clock-stepped").await;
    for what in [
        " was the sum of an addition that began after ",
        " was run again after it was done",
        " was begun twice",
    ] {
        assert!(found.iter().any(|it| it.contains(what)), "{what}: {found:#?}");
    }
}

/// What is found under that fault while all keys are deleted, again and again, that match `pattern`.
async fn violations_without(pattern: &str, fault: &str) -> Vec<String> {
    let directory = tempfile::tempdir().expect("a directory");
    let (server, arguments) = (directory.path().join("server"), directory.path().join("arguments"));
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = --version ] || printf '%s\\n' \"$@\" > {}\nexec redis-server \"$@\"\n",
        arguments.display()
    );
    std::fs::write(&server, script).expect("written");
    std::fs::set_permissions(&server, PermissionsExt::from_mode(0o755)).expect("a program");
    let torture = ["redis", "--rounds", "2", "--fault", fault];
    violations(&torture, ("FENCELOCK_REDIS_SERVER", &server), forget(pattern, &arguments)).await
}

/// Deletes such keys of the server that was started with these arguments, until it ends.
async fn forget(pattern: &str, arguments: &Path) {
    loop {
        // It is not there yet, or no more.
        let _ = forget_while_it_lives(pattern, arguments).await;
        sleep(Duration::from_millis(5)).await;
    }
}

async fn forget_while_it_lives(pattern: &str, arguments: &Path) -> io::Result<()> {
    let arguments = std::fs::read_to_string(arguments)?;
    let port = arguments.lines().skip_while(|it| *it != "--port").nth(1).unwrap_or_default();
    let mut server = TcpStream::connect(format!("127.0.0.1:{port}")).await?;
    let forget = format!(
        "EVAL \"for _, key in ipairs(redis.call('KEYS', '{pattern}')) do redis.call('DEL', key) end\" 0\r\n"
    );
    loop {
        server.write_all(forget.as_bytes()).await?;
        // The answer is nil.
        server.read_exact(&mut [0; 5]).await?;
        sleep(Duration::from_millis(5)).await;
    }
}
