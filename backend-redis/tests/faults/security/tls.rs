//! TLS connections, and those that must fail.

use std::path::Path;

use fencelock_core::{Error, ErrorKind};
use fencelock_testkit::helpers::PATIENCE;
use fencelock_testkit::servers::{RedisOptions, TestRedis};
use tokio::time::Instant;

use crate::security::support::{connect_once, use_all, words};

const PASSWORD: &str = "battery-staple";

fn trusting(server: &TestRedis) -> String {
    format!("tls_ca={}", server.ca_file().unwrap().display())
}

fn certified(server: &TestRedis) -> String {
    let file = |file: Option<std::path::PathBuf>| file.unwrap().display().to_string();
    let (cert, key) = (file(server.client_certificate_file()), file(server.client_key_file()));
    format!("{}&tls_cert={cert}&tls_key={key}", trusting(server))
}

#[tokio::test]
async fn a_server_of_the_named_authority_is_used() {
    let server = RedisOptions::new().tls().password(PASSWORD).start().await.unwrap();
    let url = server.url();
    assert!(url.starts_with("rediss://"), "{url}");
    use_all(&format!("{url}?{}", trusting(&server))).await.unwrap();
    // By name, too, which its certificate has.
    let by_name = url.replace("127.0.0.1", "localhost");
    use_all(&format!("{by_name}?{}", trusting(&server))).await.unwrap();
}

#[tokio::test]
async fn a_client_certificate_is_accepted_and_its_absence_is_an_error() {
    let server = RedisOptions::new().tls_for_certified_clients().start().await.unwrap();
    use_all(&format!("{}?{}", server.url(), certified(&server))).await.unwrap();
    let error = fails_soon(&format!("{}?{}", server.url(), trusting(&server))).await;
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
}

#[tokio::test]
async fn a_server_of_another_authority_is_not_trusted() {
    let server = RedisOptions::new().tls().password(PASSWORD).start().await.unwrap();
    let other = RedisOptions::new().tls().start().await.unwrap();
    for end in [trusting(&other), String::new()] {
        let error = fails_soon(&format!("{}?{end}", server.url())).await;
        assert!(words(&error).contains("certificate"), "{error}");
    }
}

#[tokio::test]
async fn tls_on_one_side_only_is_an_error_and_not_a_hang() {
    let plain = RedisOptions::new().password(PASSWORD).start().await.unwrap();
    let secure = RedisOptions::new().tls().password(PASSWORD).start().await.unwrap();
    for (server, from, to, says) in [
        (&plain, "redis:", "rediss:", "use redis://"),
        (&secure, "rediss:", "redis:", "use rediss://"),
    ] {
        let url = server.url().replace(from, to);
        let url = format!("{url}?connect_timeout=300ms&unreachable_after=2s");
        let error = fails_soon(&url).await;
        assert!(matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Refused), "{error}");
        assert!(words(&error).contains(says), "{error}");
    }
}

/// As with a NAT: no certificate has the address that is used.
#[tokio::test]
async fn a_server_is_verified_by_the_expected_name() {
    let server = RedisOptions::new().tls().password(PASSWORD).start().await.unwrap();
    // The same address, in a form that the certificate does not have.
    let other = server.url().replace("127.0.0.1", "127.1");
    let expecting = |name: &str| format!("{other}?{}{name}", trusting(&server));
    let error = fails_soon(&expecting("&unreachable_after=1s")).await;
    assert!(words(&error).contains("as tls_server_name"), "{error}");
    use_all(&expecting("&tls_server_name=localhost")).await.unwrap();
    let error = fails_soon(&expecting("&tls_server_name=elsewhere&unreachable_after=1s")).await;
    assert!(words(&error).contains("give that as tls_server_name"), "{error}");
}

#[tokio::test]
async fn an_unusable_certificate_file_is_named() {
    let server = RedisOptions::new().tls().password(PASSWORD).start().await.unwrap();
    let missing = Path::new("/nonexistent/authority.pem");
    let error = fails_soon(&format!("{}?tls_ca={}", server.url(), missing.display())).await;
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.to_string().contains("/nonexistent/authority.pem"), "{error}");

    let directory = tempfile::tempdir().unwrap();
    let text = directory.path().join("no.pem");
    std::fs::write(&text, "this is not a certificate").unwrap();
    fails_soon(&format!("{}?tls_ca={}", server.url(), text.display())).await;
}

#[tokio::test]
async fn a_cluster_is_used_by_tls_with_certificates() {
    let options = RedisOptions::new().tls_for_certified_clients().password(PASSWORD);
    let cluster = options.cluster().await.unwrap();
    let nodes = cluster.nodes().iter().map(|server| server.addr().to_string());
    let nodes = nodes.collect::<Vec<_>>().join(",");
    let end = certified(&cluster.nodes()[0]);
    use_all(&format!("rediss-cluster://:{PASSWORD}@{nodes}?{end}")).await.unwrap();
}

#[tokio::test]
async fn sentinels_and_their_master_are_used_by_tls() {
    let topology = RedisOptions::new().tls().password(PASSWORD).sentinel().await.unwrap();
    let sentinels = topology.sentinels().iter().map(|server| server.addr().to_string());
    let sentinels = sentinels.collect::<Vec<_>>().join(",");
    let end = format!("{}?{}", topology.service(), trusting(&topology.nodes()[0]));
    use_all(&format!("rediss+sentinel://:{PASSWORD}@{sentinels}/{end}")).await.unwrap();
}

/// The error of connecting, which must come without delay and without the password.
async fn fails_soon(url: &str) -> Error {
    let start = Instant::now();
    let error = connect_once(url).await.expect_err(url);
    assert!(start.elapsed() < PATIENCE, "{error} after {:?}", start.elapsed());
    assert!(!words(&error).contains(PASSWORD), "{error}");
    error
}
