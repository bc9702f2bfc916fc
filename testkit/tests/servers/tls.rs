//! Redis over TLS, asked by `redis-cli`, which comes with the server.

use std::path::PathBuf;
use std::process::Stdio;

use fencelock_testkit::servers::{RedisOptions, TestCluster, TestRedis};
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::within;

#[tokio::test]
async fn a_tls_server_is_trusted_by_its_own_authority_only() {
    let redis = RedisOptions::new().tls().password("pw").start().await.unwrap();
    let other = RedisOptions::new().tls().start().await.unwrap();
    assert_eq!(redis.url(), format!("rediss://:pw@127.0.0.1:{}/", redis.port()));
    // The test's own way in is another one.
    assert_eq!(redis.command(&["SET", "k", "v"]).await.unwrap(), "OK");
    let options = Client { ca: redis.ca_file().unwrap(), certificate: None };
    assert_eq!(options.ask(&redis, &["-a", "pw", "GET", "k"]).await.unwrap(), "v");
    let error = options.ask(&other, &["PING"]).await.unwrap_err();
    assert!(error.contains("certificate verify failed"), "{error}");

    redis.restart().await.unwrap();
    assert_eq!(options.ask(&redis, &["-a", "pw", "PING"]).await.unwrap(), "PONG");
}

#[tokio::test]
async fn nothing_but_tls_is_answered_on_a_tls_port() {
    let redis = RedisOptions::new().tls().start().await.unwrap();
    let mut client = TcpStream::connect(redis.addr()).await.unwrap();
    let answer = within(async {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        client.write_all(b"PING\r\n").await?;
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.map(|_| answer)
    });
    assert!(!answer.await.unwrap_or_default().starts_with(b"+PONG"));
}

#[tokio::test]
async fn clients_need_a_certificate_where_it_is_demanded() {
    let redis = RedisOptions::new().tls_for_certified_clients().start().await.unwrap();
    let ca = redis.ca_file().unwrap();
    let anonymous = Client { ca: ca.clone(), certificate: None };
    assert!(anonymous.ask(&redis, &["PING"]).await.is_err());
    let files = (redis.client_certificate_file().unwrap(), redis.client_key_file().unwrap());
    let certified = Client { ca, certificate: Some(files) };
    assert_eq!(certified.ask(&redis, &["PING"]).await.unwrap(), "PONG");
}

#[tokio::test]
async fn a_topology_shares_one_authority() {
    let cluster = RedisOptions::new().tls_for_certified_clients().cluster().await.unwrap();
    let slot = TestCluster::slot_of("k");
    let before = cluster.master_of(slot).await.unwrap();
    before.command(&["SET", "k", "v"]).await.unwrap();
    let ca = cluster.nodes()[0].ca_file().unwrap();
    let node = &cluster.nodes()[5];
    let files = (node.client_certificate_file().unwrap(), node.client_key_file().unwrap());
    let client = Client { ca, certificate: Some(files) };
    assert_eq!(client.ask(before, &["GET", "k"]).await.unwrap(), "v");
    assert_eq!(client.ask(node, &["-c", "GET", "k"]).await.unwrap(), "v");
    let to = cluster.nodes()[..3].iter().find(|node| node.port() != before.port()).unwrap();
    cluster.migrate_slot(slot, to).await.unwrap();
    assert_eq!(client.ask(node, &["-c", "GET", "k"]).await.unwrap(), "v");
    cluster.failover(slot).await.unwrap();
}

#[tokio::test]
async fn sentinels_and_what_they_watch_speak_tls() {
    let redis = RedisOptions::new().tls().password("pw").sentinel().await.unwrap();
    let client = Client { ca: redis.nodes()[0].ca_file().unwrap(), certificate: None };
    let after = redis.failover().await.unwrap();
    let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", redis.service()];
    let addr = client.ask(&redis.sentinels()[2], &ask).await.unwrap();
    assert_eq!(addr.replace('\n', ":"), after.addr().to_string());
    assert_eq!(client.ask(after, &["-a", "pw", "PING"]).await.unwrap(), "PONG");
}

struct Client {
    ca: PathBuf,
    certificate: Option<(PathBuf, PathBuf)>,
}

impl Client {
    /// What `redis-cli` prints, to the standard error if it fails.
    async fn ask(&self, redis: &TestRedis, args: &[&str]) -> Result<String, String> {
        let mut cli = Command::new("redis-cli");
        cli.args(["-h", "127.0.0.1", "-p", &redis.port().to_string(), "-e", "--no-auth-warning"]);
        cli.arg("--tls").arg("--cacert").arg(&self.ca);
        if let Some((certificate, key)) = &self.certificate {
            cli.arg("--cert").arg(certificate).arg("--key").arg(key);
        }
        cli.args(args).stdin(Stdio::null()).kill_on_drop(true);
        let output = within(cli.output()).await.expect("redis-cli runs");
        let text = |bytes| String::from_utf8(bytes).unwrap().trim_end().to_owned();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }
}
