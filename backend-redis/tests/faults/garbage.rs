//! Clients that receive garbage: an error of a known kind in time, no panic, no memory for what is
//! only announced, and good servers are used afterwards. What this process uses for all tests is far less than
//! what is announced.

#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fencelock_core::{Error, ErrorKind, Locks, Result, url};
use fencelock_redis::{REDLOCK_SCHEME, SCHEME};
use fencelock_testkit::fuzzing::Harm;
use fencelock_testkit::helpers::{acquire, error_chain, ms, release, soon};
use fencelock_testkit::proxy::{Proxy, framing};
use fencelock_testkit::servers::{ScriptedServer, TestRedis};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

async fn connect(url: &str) -> Result<Locks> {
    url::connect(&[SCHEME, REDLOCK_SCHEME], url).await
}

/// Garbage of every kind, some of it random.
fn garbage(random: &mut StdRng) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    for head in ["$", "*", "%", "~", ">", "|", "=", "!"] {
        all.push(format!("{head}9999999999\r\n").into());
        all.push(format!("{head}9223372036854775807\r\n").into());
        all.push(format!("{head}-3\r\n").into());
        all.push(format!("{head}1\r\n").repeat(5_000).into());
    }
    for text in [
        "+OK\r\n",
        ":1\r\n",
        "_\r\n",
        "-ERR \r\n",
        "-LOADING\r\n",
        "$5\r\nab",
        "\r\n",
        "HTTP/1.1 400 Bad\r\n\r\n",
    ] {
        all.push(text.into());
    }
    for length in [1, 7, 60, 5_000] {
        let mut bytes = vec![0; length];
        random.fill_bytes(&mut bytes);
        all.push(bytes);
    }
    all
}

fn random() -> StdRng {
    let seed = rand::random();
    println!("seed {seed}");
    StdRng::seed_from_u64(seed)
}

/// An error of a kind on which a caller does not act.
fn assert_in_vain(error: &Error, bytes: &[u8]) {
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]);
    let known = matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Refused);
    assert!(known, "after {shown:?}: {error}");
}

/// Connecting fails within its bound; a client that connects nevertheless is granted nothing.
async fn meet(nodes: usize, bytes: Vec<u8>) {
    let mut servers = Vec::new();
    for _ in 0..nodes {
        let bytes = bytes.clone();
        servers.push(ScriptedServer::start(move |_| bytes.clone()).await.unwrap());
    }
    let hosts: Vec<String> = servers.iter().map(|one| one.addr().to_string()).collect();
    let scheme = if nodes == 1 { "redis" } else { "redlock" };
    let url = format!("{scheme}://{}/?unreachable_after=5s", hosts.join(","));
    let locks = match soon("connecting ends", connect(&url)).await {
        Ok(locks) => locks,
        Err(error) => return assert_in_vain(&error, &bytes),
    };
    let lock = locks.lock("x").wait_at_most(ms(500));
    let acquired = soon("acquiring ends", lock.acquire()).await;
    assert_in_vain(&acquired.expect_err("granted by garbage"), &bytes);
}

/// One reply of a good server is replaced.
async fn go_on(server: Arc<TestRedis>, name: String, bytes: Vec<u8>) {
    let proxy = Proxy::framed(server.addr(), framing::resp).await.unwrap();
    let locks =
        connect(&format!("redis://{}/0?unreachable_after=15s", proxy.addr())).await.unwrap();
    let instead = bytes.clone();
    proxy.mangle_next_reply(move |reply| *reply = instead);
    let lock = locks.lock(&name);
    match soon("acquiring ends", lock.acquire()).await {
        Ok(guard) => {
            let seen = soon("inspect is answered", locks.inspect(&name)).await.unwrap();
            assert_eq!(seen.holders[0].token, Some(guard.fencing_token()));
            let _ = soon("a release ends", guard.release()).await;
        }
        Err(error) => assert_in_vain(&error, &bytes),
    }
    soon("a reply was replaced", proxy.mangled_reply()).await;
    release(acquire(&locks, &name).await).await;
    soon("it closes", locks.close()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_an_error_in_time_and_grants_nothing() {
    let harm = Harm::watch();
    let server = Arc::new(TestRedis::start().await.unwrap());
    let mut tasks = JoinSet::new();
    for (index, bytes) in garbage(&mut random()).into_iter().enumerate() {
        tasks.spawn(meet(1, bytes.clone()));
        tasks.spawn(meet(3, bytes.clone()));
        tasks.spawn(go_on(server.clone(), format!("lock {index}"), bytes));
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    harm.assert_none();
    let locks = connect(&format!("redis://{}", server.addr())).await.unwrap();
    release(acquire(&locks, "good").await).await;
}

/// Sends the same bytes for as long as the client reads.
struct Flood {
    addr: SocketAddr,
    sent: Arc<AtomicU64>,
    _listening: JoinSet<()>,
}

/// Sends `greeting`, as the reply to `HELLO`, then `head`, and then `rest` again and again.
async fn flood(greeting: &'static str, head: &'static str, rest: Vec<u8>) -> Flood {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let sent = Arc::new(AtomicU64::new(0));
    let (rest, count) = (Arc::new(rest), sent.clone());
    let mut listening = JoinSet::new();
    listening.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let (rest, count) = (rest.clone(), count.clone());
            connections.spawn(async move {
                let mut asked = [0; 4096];
                if !greeting.is_empty() {
                    let _ = stream.read(&mut asked).await;
                    let _ = stream.write_all(greeting.as_bytes()).await;
                }
                let _ = stream.read(&mut asked).await;
                let _ = stream.write_all(head.as_bytes()).await;
                while let Ok(length) = stream.write(&rest).await {
                    count.fetch_add(length as u64, Ordering::Relaxed);
                }
            });
        }
    });
    Flood { addr, sent, _listening: listening }
}

/// A server that announces a gigabyte, or never ends a reply, is disconnected before that is read. The
/// count includes what the kernel buffered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_of_excessive_size_is_not_read() {
    const HELLO: &str = "%1\r\n+proto\r\n:3\r\n";
    const MUCH: u64 = 256 << 20;
    let harm = Harm::watch();
    let numbers = || ":1\r\n".repeat(16 * 1024).into_bytes();
    let letters = || vec![b'a'; 64 * 1024];
    for greeting in ["", HELLO] {
        for (head, rest) in [
            ("$1073741824\r\n", letters()),
            ("*1073741824\r\n", numbers()),
            ("%536870912\r\n", numbers()),
            (">1073741824\r\n", numbers()),
            ("+", letters()),
            ("", "*1\r\n".repeat(16 * 1024).into_bytes()),
        ] {
            let flood = flood(greeting, head, rest).await;
            let url = format!("redis://{}/0?unreachable_after=2s", flood.addr);
            let connected = soon("connecting ends", connect(&url)).await;
            let error = connected.expect_err(head);
            assert_in_vain(&error, head.as_bytes());
            let sent = flood.sent.load(Ordering::Relaxed);
            assert!(sent < MUCH, "{head:?} after {greeting:?}: {sent} bytes were taken: {error}");
        }
    }
    harm.assert_none();
}

/// The error names the other protocol, if it is recognized.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_protocol_is_recognized() {
    for (bytes, kind, says) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], ErrorKind::Refused, "speaks HTTP"),
        (&[0x15, 3, 1, 0, 2, 2, 80], ErrorKind::Refused, "speaks TLS; use rediss://"),
        // Without this error only the first acquire would show that no lock is ever granted.
        (b"+OK\r\n", ErrorKind::Refused, "is this a Redis server?"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", ErrorKind::Unreachable, "not speak the Redis protocol"),
    ] {
        // To each command, if it is one.
        let commands = |heard: &[u8]| heard.iter().filter(|byte| **byte == b'*').count().max(1);
        let server =
            ScriptedServer::start(move |heard| bytes.repeat(commands(heard))).await.unwrap();
        let url = format!("redis://{}?unreachable_after=1s", server.addr());
        let error = connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error_chain(&error).contains(says), "{error}");
    }
    // Like ZooKeeper, and a server that expects TLS.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let mut closing = JoinSet::new();
    closing.spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
        }
    });
    let error = connect(&format!("redis://{addr}?unreachable_after=1s")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    let text = error_chain(&error);
    assert!(text.contains("is it a Redis server? If it speaks TLS, use rediss://"), "{text}");
    // A plain server is silent, waiting for the end of a line.
    let server = TestRedis::start().await.unwrap();
    let url = format!("rediss://{}?connect_timeout=300ms&unreachable_after=2s", server.addr());
    let text = error_chain(&connect(&url).await.unwrap_err());
    assert!(text.contains("use redis://"), "{text}");
}
