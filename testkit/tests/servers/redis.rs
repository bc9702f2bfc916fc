//! A single Redis server.

use std::io::ErrorKind;

use fencelock_testkit::proxy::{AfterDrop, DropReply, Proxy, framing};
use fencelock_testkit::servers::{RedisOptions, ServerError, TestRedis};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use crate::{is_running, process_state, within};

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
async fn an_acl_user_may_do_what_it_was_given_only() {
    let options = RedisOptions::new().acl_user("limited on >pw ~lock:* &lock:* +set +auth");
    let redis = options.start().await.unwrap();
    let mut client = TcpStream::connect(redis.addr()).await.unwrap();
    let commands =
        b"AUTH limited pw\r\nSET lock:k v\r\nSET k v\r\nGET lock:k\r\nAUTH limited no\r\n";
    client.write_all(commands).await.unwrap();
    client.shutdown().await.unwrap();
    let mut replies = String::new();
    within(client.read_to_string(&mut replies)).await.unwrap();
    let starts: Vec<_> = replies.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(starts, ["+OK", "+OK", "-NOPERM", "-NOPERM", "-WRONGPASS"], "{replies}");
    // The others are as before.
    assert_eq!(redis.command(&["GET", "lock:k"]).await.unwrap(), "v");
    redis.restart().await.unwrap();
    assert!(redis.command(&["ACL", "LIST"]).await.unwrap().contains("user limited on"));
}
