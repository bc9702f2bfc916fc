//! Encrypted connections, and those that must fail.

use std::path::{Path, PathBuf};

use fencelock_core::ErrorKind;
use fencelock_testkit::servers::{TestZooKeeper, ZooKeeperOptions};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};
use tempfile::TempDir;

use crate::support::*;

/// An authority, with the certificates of a server and of two clients in a directory.
struct Certificates(TempDir);

fn named(name: &str) -> CertificateParams {
    let names = ["127.0.0.1".to_owned(), "localhost".to_owned()];
    let mut params = CertificateParams::new(names).expect("names");
    params.distinguished_name.push(DnType::CommonName, format!("fencelock test {name}"));
    params
}

impl Certificates {
    fn new() -> Certificates {
        let directory = tempfile::tempdir().expect("a directory");
        let mut params = named("authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        let authority = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let write = |name: &str, text: String| {
            std::fs::write(directory.path().join(name), text).expect("a file");
        };
        write("ca.pem", authority.pem());
        for name in ["server", "client", "other"] {
            let key = KeyPair::generate().expect("a key");
            let certificate = named(name).signed_by(&key, &authority).expect("a certificate");
            write(&format!("{name}.crt"), certificate.pem());
            write(&format!("{name}.key"), key.serialize_pem());
            write(&format!("{name}.pem"), key.serialize_pem() + &certificate.pem());
        }
        Certificates(directory)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn trusting(&self) -> String {
        format!("tls_ca={}", self.file("ca.pem").display())
    }

    fn of(&self, client: &str) -> String {
        let [certificate, key] = ["crt", "key"].map(|end| self.file(&format!("{client}.{end}")));
        let (certificate, key) = (certificate.display(), key.display());
        format!("{}&tls_cert={certificate}&tls_key={key}", self.trusting())
    }

    /// A server with a port for TLS, and that port.
    async fn serve(&self, client_auth: &str) -> (TestZooKeeper, u16) {
        let free = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let store = |what: &str, file: &Path| {
            format!("ssl.{what}.location={}\nssl.{what}.type=PEM", file.display())
        };
        let server = ZooKeeperOptions::new()
            // Netty is in many jars, and only TLS needs it.
            .java_arg("-cp")
            .java_arg("/usr/share/java/*")
            .config(&format!("secureClientPort={port}\nsecureClientPortAddress=127.0.0.1"))
            .config("serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory")
            .config(&store("keyStore", &self.file("server.pem")))
            .config(&store("trustStore", &self.file("ca.pem")))
            .config(&format!("ssl.clientAuth={client_auth}"))
            .standalone();
        (server.await.expect("ZooKeeper starts"), port)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_servers_of_the_named_authority_are_used() {
    let certificates = Certificates::new();
    let (_server, port) = certificates.serve("none").await;
    for host in ["127.0.0.1", "localhost"] {
        let url = format!("zk://{host}:{port}/locks?session=2s&{}", certificates.trusting());
        let locks = connect(&url).await;
        release(acquire(&locks, "one").await).await;
        locks.close().await.unwrap();
    }
    let others = Certificates::new();
    for tls in [others.trusting().as_str(), ""] {
        let url = format!("zk://127.0.0.1:{port}/locks?session=2s&unreachable_after=2s&{tls}");
        let error = soon("refused", try_connect(&url)).await.unwrap_err();
        assert_kind(&error, ErrorKind::Unreachable);
    }
    let url = format!("zk://127.0.0.1:{port}/locks?tls_ca=/nonexistent.pem");
    let error = try_connect(&url).await.unwrap_err();
    assert_kind(&error, ErrorKind::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_require_a_certificate_receive_it() {
    let certificates = Certificates::new();
    let (_server, port) = certificates.serve("need").await;
    let url = format!("zk://127.0.0.1:{port}/locks?session=2s&{}", certificates.of("client"));
    let locks = connect(&url).await;
    release(acquire(&locks, "one").await).await;
    let plain = format!("session=2s&unreachable_after=2s&{}", certificates.trusting());
    let url = format!("zk://127.0.0.1:{port}/locks?{plain}");
    let error = soon("refused", try_connect(&url)).await.unwrap_err();
    assert_kind(&error, ErrorKind::Unreachable);
}

/// Also to one whose certificate the servers trust. The ACL has the certificate beside the login.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_locks_of_a_certificate_are_closed_to_others() {
    let certificates = Certificates::new();
    let (_server, port) = certificates.serve("need").await;
    let url = |client| {
        let tls = certificates.of(client);
        format!("zk://127.0.0.1:{port}?session=2s&auth=digest:{client}:hunter2&{tls}")
    };
    let [own, same] = [connect(&url("client")).await, connect(&url("client")).await];
    let guard = acquire(&own, "one").await;
    assert!(own.cell("told").compare_and_set(None, *b"mine").await.unwrap());
    assert!(is_busy(&same, "one").await);
    let other = connect(&url("other")).await;
    let holder = own.inspect("one").await.unwrap().holders.remove(0).id;
    for error in [
        soon("refused", other.lock("one").try_acquire()).await.unwrap_err(),
        soon("refused", other.lock("one").acquire()).await.unwrap_err(),
        soon("refused", other.inspect("one")).await.unwrap_err(),
        soon("refused", other.evict("one", &holder)).await.unwrap_err(),
        soon("refused", other.cell("told").read()).await.unwrap_err(),
        soon("refused", other.cell("told").remove()).await.unwrap_err(),
    ] {
        assert_kind(&error, ErrorKind::Refused);
        assert!(error_chain(&error).contains("ACL"), "{error}");
    }
    assert!(guard.is_held());
    release(guard).await;
    release(acquire(&same, "one").await).await;
    release(acquire(&other, "another").await).await;
}
