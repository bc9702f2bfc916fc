//! Clients that receive garbage: an error of a known kind in time, no panic, no memory for what is
//! only announced, and valid servers work afterwards. A process of its own, whose memory is measured.

use std::sync::Arc;

use fencelock_core::{Error, ErrorKind};
use fencelock_testkit::fuzzing::Harm;
use fencelock_testkit::proxy::{Proxy, framing};
use fencelock_testkit::servers::{ScriptedServer, TestZooKeeper, ZooKeeperOptions};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use crate::support::*;

fn framed(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&length, body].concat()
}

/// Garbage of every kind, some of it random.
fn garbage() -> Vec<Vec<u8>> {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut all: Vec<Vec<u8>> = Vec::new();
    for length in [i32::MAX, -1, i32::MIN, 0, 1, 20] {
        all.push(length.to_be_bytes().to_vec());
        all.push([length.to_be_bytes().as_slice(), &[0; 20]].concat());
    }
    for length in [1, 4, 16, 20, 37, 5_000] {
        let mut bytes = vec![0; length];
        random.fill_bytes(&mut bytes);
        all.push(framed(&bytes));
        all.push(bytes);
    }
    // A session without a timeout, and one with a password of absurd length.
    for (timeout, password) in [(0, 16i32), (2000, i32::MAX), (2000, -1), (-5, 16)] {
        let mut answer = [0i32.to_be_bytes(), i32::to_be_bytes(timeout)].concat();
        answer.extend(7i64.to_be_bytes());
        answer.extend(password.to_be_bytes());
        answer.extend([1; 17]);
        all.push(framed(&answer));
    }
    all.push(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec());
    all
}

/// The error has a kind that a caller expects from a failed connection.
fn assert_failed(error: &Error, bytes: &[u8]) {
    let known = matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Refused);
    assert!(known, "after {:?}: {error}", &bytes[..bytes.len().min(40)]);
}

/// Connecting fails within its bound; or acquiring does.
async fn connect_to_garbage(bytes: Vec<u8>) {
    let answer = bytes.clone();
    let server = ScriptedServer::start(move |_| answer.clone()).await.unwrap();
    let url = format!("zk://{}/locks?session=4s&unreachable_after=5s", server.addr());
    let locks = match within(ms(9000), "connecting ends", try_connect(&url)).await {
        Ok(locks) => locks,
        Err(error) => return assert_failed(&error, &bytes),
    };
    let lock = locks.lock("x").wait_at_most(ms(500));
    let acquired = within(ms(5000), "acquiring ends", lock.acquire()).await;
    assert_failed(&acquired.expect_err("granted by garbage"), &bytes);
}

/// One reply of a valid server is replaced; or only what follows its header, which names the request
/// that it answers.
async fn replace_one_reply(
    server: Arc<TestZooKeeper>,
    name: String,
    bytes: Vec<u8>,
    keeps_header: bool,
) {
    const HEADER: usize = 20;
    let proxy = Proxy::framed(server.connect_string(), framing::zookeeper).await.unwrap();
    let url = format!("zk://{}/locks?session=4s&unreachable_after=15s", proxy.addr());
    let locks = connect(&url).await;
    let instead = bytes.clone();
    proxy.mangle_next_reply(move |reply| {
        let header = reply.get(4..HEADER).filter(|_| keeps_header);
        *reply = match header {
            // An empty list: the transport allocates as many names as are announced.
            Some(header) => framed(&[header, &[0; 4], &instead].concat()),
            None => instead,
        };
    });
    let lock = locks.lock(&name);
    match soon("acquiring ends", lock.acquire()).await {
        Ok(guard) => drop(soon("a release ends", guard.release()).await),
        Err(error) => assert_failed(&error, &bytes),
    }
    soon("a reply was replaced", proxy.mangled_reply()).await;
    release(acquire(&locks, &name).await).await;
    soon("it closes", locks.close()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_is_an_error_in_time_and_grants_nothing() {
    if !is_alone("garbage::garbage_is_an_error_in_time_and_grants_nothing") {
        return;
    }
    let harm = Harm::watch();
    let server = Arc::new(ZooKeeperOptions::new().ensemble(1).await.unwrap());
    let mut tasks = JoinSet::new();
    for (index, bytes) in garbage().into_iter().enumerate() {
        tasks.spawn(connect_to_garbage(bytes.clone()));
        for keeps_header in [false, true] {
            let name = format!("lock {index} {keeps_header}");
            tasks.spawn(replace_one_reply(server.clone(), name, bytes.clone(), keeps_header));
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    harm.assert_none();
    let locks = connect(&format!("zk://{}/locks", server.connect_string())).await;
    release(acquire(&locks, "good").await).await;
}
