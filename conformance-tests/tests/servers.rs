//! The servers on demand, with the real programs. They start and end; what they answer in
//! between is theirs. Where they are not installed, these tests fail and say what to install.

// Helpers are tests too, which the lint's own exception does not see.
#![allow(clippy::unwrap_used)]

use std::future::Future;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use fencelock_conformance::proxy::{AfterDrop, DropReply, Proxy, framing};
use fencelock_conformance::servers::{
    RedisOptions, ServerError, TestRedis, TestZooKeeper, ZooKeeperOptions, ZooKeeperServer,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

#[tokio::test]
async fn redis_answers_and_ends_with_its_handle() {
    let redis = TestRedis::start().await.unwrap();
    assert_eq!(redis.command(&["PING"]).await.unwrap(), "PONG");
    assert_eq!(redis.command(&["SET", "k", "two\nlines"]).await.unwrap(), "OK");
    assert_eq!(redis.command(&["GET", "k"]).await.unwrap(), "two\nlines");
    assert_eq!(redis.command(&["GET", "none"]).await.unwrap(), "");
    assert_eq!(redis.command(&["RPUSH", "l", "a", "b"]).await.unwrap(), "2");
    assert_eq!(redis.command(&["LRANGE", "l", "0", "-1"]).await.unwrap(), "a\nb");
    let error = redis.command(&["NONSENSE"]).await.unwrap_err();
    assert!(error.to_string().contains("unknown command"), "{error}");
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{}/", redis.port()));

    let (pid, directory) = (redis.pid(), redis.directory().to_owned());
    assert!(is_running(pid) && directory.exists());
    drop(redis);
    assert!(!is_running(pid) && !directory.exists());
}

#[tokio::test]
async fn two_redis_servers_run_side_by_side() {
    let (one, two) = tokio::join!(TestRedis::start(), TestRedis::start());
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_ne!(one.port(), two.port());
    one.command(&["SET", "k", "1"]).await.unwrap();
    assert_eq!(two.command(&["GET", "k"]).await.unwrap(), "");
}

#[tokio::test]
async fn a_frozen_redis_is_silent_until_it_thaws() {
    let redis = TestRedis::start().await.unwrap();
    let mut client = TcpStream::connect(("127.0.0.1", redis.port())).await.unwrap();
    redis.freeze().await.unwrap();
    redis.freeze().await.unwrap();
    assert_eq!(process_state(redis.pid()), Some('T'));
    client.write_all(b"PING\r\n").await.unwrap();
    assert_eq!(client.try_read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    redis.thaw().unwrap();
    let mut answer = [0; 7];
    within(client.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
    // A frozen server can be restarted and killed too.
    redis.freeze().await.unwrap();
    within(redis.restart()).await.unwrap();
    redis.freeze().await.unwrap();
    redis.kill().unwrap();
    assert!(!is_running(redis.pid()));
}

#[tokio::test]
async fn redis_keeps_its_append_only_file_over_kill_and_restart() {
    let redis = RedisOptions::new().append_only().start().await.unwrap();
    redis.command(&["SET", "k", "v"]).await.unwrap();
    let (port, first) = (redis.port(), redis.pid());
    redis.kill().unwrap();
    assert!(!is_running(first));
    let error = redis.command(&["PING"]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    assert!(matches!(redis.freeze().await, Err(ServerError::Io { .. })));

    redis.restart().await.unwrap();
    assert_eq!(redis.command(&["GET", "k"]).await.unwrap(), "v");
    redis.restart().await.unwrap();
    assert_eq!(redis.command(&["GET", "k"]).await.unwrap(), "v");
    assert_eq!(redis.port(), port);
    assert_ne!(redis.pid(), first);
}

#[tokio::test]
async fn redis_without_persistence_forgets_at_a_restart() {
    let redis = TestRedis::start().await.unwrap();
    redis.command(&["SET", "k", "v"]).await.unwrap();
    redis.restart().await.unwrap();
    assert_eq!(redis.command(&["GET", "k"]).await.unwrap(), "");
}

#[tokio::test]
async fn redis_options_reach_the_server() {
    let options = RedisOptions::new().password("p@ss word").unix_socket();
    let redis = options.arg("--maxmemory").arg("4mb").start().await.unwrap();
    assert!(redis.url().starts_with("redis://:p%40ss%20word@127.0.0.1:"));
    let maxmemory = redis.command(&["CONFIG", "GET", "maxmemory"]).await.unwrap();
    assert_eq!(maxmemory, "maxmemory\n4194304");

    let mut client = UnixStream::connect(redis.unix_socket().unwrap()).await.unwrap();
    client.write_all(b"PING\r\n").await.unwrap();
    let mut answer = [0; 7];
    within(client.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"-NOAUTH");
}

#[tokio::test]
async fn the_reply_of_one_redis_command_is_lost_after_it_took_effect() {
    let redis = TestRedis::start().await.unwrap();
    let upstream = format!("127.0.0.1:{}", redis.port());
    let proxy = Proxy::framed(upstream, framing::resp).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    let armed = DropReply::nth(2, AfterDrop::Fin).matching(|command| command.starts_with(b"INCR"));
    proxy.drop_reply(armed).unwrap();
    client.write_all(b"PING\r\nINCR k\r\nPING\r\nINCR k\r\nPING\r\n").await.unwrap();
    within(proxy.dropped_reply()).await;
    let mut replies = String::new();
    within(client.read_to_string(&mut replies)).await.unwrap();
    assert_eq!(replies, "+PONG\r\n:1\r\n+PONG\r\n");
    assert_eq!(redis.command(&["GET", "k"]).await.unwrap(), "2");
}

#[tokio::test]
async fn a_missing_redis_is_reported_with_its_package() {
    let absent = RedisOptions::new().program("/nonexistent/redis-server");
    let error = absent.start().await.unwrap_err();
    assert!(matches!(error, ServerError::NotInstalled { .. }));
    assert!(error.to_string().ends_with("apt-get install redis-server"), "{error}");
}

#[tokio::test]
async fn a_redis_that_refuses_to_start_is_reported_with_its_log() {
    let error = RedisOptions::new().arg("--no-such-option").start().await.unwrap_err();
    assert!(matches!(error, ServerError::NotReady { .. }));
    assert!(error.to_string().contains("no-such-option"), "{error}");
}

#[tokio::test]
async fn zookeeper_serves_freezes_restarts_and_ends() {
    let zookeeper = TestZooKeeper::standalone().await.unwrap();
    let [server] = zookeeper.servers() else { panic!("{zookeeper:?}") };
    assert_eq!(zookeeper.connect_string(), format!("127.0.0.1:{}", server.port()));
    assert_eq!(server.four_letter("ruok").await.unwrap(), "imok");
    assert!(server.four_letter("mntr").await.unwrap().contains("zk_server_state\tstandalone"));
    assert!(zookeeper.leader().await.is_some());

    let mut client = TcpStream::connect(("127.0.0.1", server.port())).await.unwrap();
    server.freeze().await.unwrap();
    assert_eq!(process_state(server.pid()), Some('T'));
    client.write_all(b"ruok").await.unwrap();
    assert_eq!(client.try_read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    server.thaw().unwrap();
    let mut answer = String::new();
    within(client.read_to_string(&mut answer)).await.unwrap();
    assert_eq!(answer, "imok");

    let first = server.pid();
    server.kill().unwrap();
    assert!(!is_running(first));
    server.restart().await.unwrap();
    assert_ne!(server.pid(), first);
    assert_eq!(server.four_letter("ruok").await.unwrap(), "imok");

    let (second, directory) = (server.pid(), server.directory().to_owned());
    drop(zookeeper);
    assert!(!is_running(second) && !directory.exists());
}

#[tokio::test]
async fn the_reply_of_one_zookeeper_request_is_lost_whatever_pings_come_between() {
    let zookeeper = TestZooKeeper::standalone().await.unwrap();
    let proxy = Proxy::framed(zookeeper.connect_string(), framing::zookeeper).await.unwrap();
    let mut client = TcpStream::connect(proxy.addr()).await.unwrap();
    let framed = |parts: &[&[u8]]| {
        let body = parts.concat();
        [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], &body].concat()
    };
    let int = |n: i32| n.to_be_bytes();
    // Version, last zxid, timeout, session and an empty password: a new session.
    let hello = framed(&[&int(0), &[0; 8], &int(4000), &[0; 8], &int(16), &[0; 16], &[0]]);
    let ping = framed(&[&int(-2), &int(11)]);
    // `exists /` with a watch bit of 0.
    let exists = |xid| framed(&[&int(xid), &int(3), &int(1), b"/", &[0]]);
    client.write_all(&hello).await.unwrap();
    proxy.drop_reply(DropReply::nth(2, AfterDrop::Reset)).unwrap();
    let requests = [&ping[..], &exists(1), &ping, &exists(2), &exists(3)].concat();
    client.write_all(&requests).await.unwrap();
    within(proxy.dropped_reply()).await;
    let stats = proxy.stats();
    assert_eq!((stats.requests, stats.replies, stats.garbled), (3, 1, 0), "{stats:?}");
}

#[tokio::test]
async fn an_ensemble_elects_again_when_its_leader_is_killed() {
    let zookeeper = ZooKeeperOptions::new().ensemble(3).await.unwrap();
    assert_eq!(zookeeper.servers().len(), 3);
    assert_eq!(zookeeper.connect_string().split(',').count(), 3);
    let leader = zookeeper.leader().await.unwrap();
    leader.kill().unwrap();
    let next = within(async {
        loop {
            if let Some(next) = zookeeper.leader().await {
                return next;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_ne!(next.port(), leader.port());
    leader.restart().await.unwrap();
    assert!(leader.four_letter("srvr").await.unwrap().contains("Mode: follower"));

    zookeeper.restart().await.unwrap();
    assert!(zookeeper.leader().await.is_some());
    let pids: Vec<_> = zookeeper.servers().iter().map(ZooKeeperServer::pid).collect();
    drop(zookeeper);
    assert!(!pids.into_iter().any(is_running));
}

#[tokio::test]
async fn a_missing_java_or_jar_is_reported_with_the_package() {
    for absent in [
        ZooKeeperOptions::new().java("/nonexistent/java"),
        ZooKeeperOptions::new().jars("/nonexistent"),
    ] {
        let error = absent.standalone().await.unwrap_err();
        assert!(matches!(error, ServerError::NotInstalled { .. }));
        assert!(error.to_string().ends_with("apt-get install zookeeper"), "{error}");
    }
}

/// Runs this test program again as a process that starts a server and is then killed.
#[tokio::test]
async fn a_server_does_not_outlive_a_killed_test_process() {
    const CHILD: &str = "FENCELOCK_TEST_TO_BE_KILLED";
    const NAME: &str = "a_server_does_not_outlive_a_killed_test_process";
    if std::env::var_os(CHILD).is_some() {
        let redis = TestRedis::start().await.unwrap();
        println!("<{}|{}>", redis.pid(), redis.directory().display());
        return std::future::pending().await;
    }
    let mut child = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(CHILD, "1")
        .stdout(std::process::Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut output = String::new();
    let mut stdout = child.stdout.take().unwrap();
    while !output.contains('>') {
        let byte = within(stdout.read_u8()).await.unwrap();
        output.push(char::from(byte));
    }
    let (pid, directory) = output.split_once('<').unwrap().1.split_once('|').unwrap();
    let (pid, directory) = (pid.parse().unwrap(), directory.trim_end_matches('>').to_owned());
    assert!(is_running(pid));
    within(child.kill()).await.unwrap();
    within(async {
        while is_running(pid) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    // Nobody was left to delete it.
    std::fs::remove_dir_all(directory).unwrap();
}

fn is_running(pid: u32) -> bool {
    !matches!(process_state(pid), None | Some('Z'))
}

/// The letter that `ps` shows: `T` for a stopped process, `Z` for one that waits to be reaped.
fn process_state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.ok()?.rsplit(')').next()?.trim_start().chars().next()
}

async fn within<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("this hangs")
}
