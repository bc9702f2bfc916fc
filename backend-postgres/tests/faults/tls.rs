//! TLS connections, and those that must fail.

use std::path::{Path, PathBuf};

use fencelock_core::{Error, ErrorKind};
use fencelock_testkit::servers::{PostgresOptions, TestPostgres};

use crate::support::*;

fn trusting(server: &TestPostgres) -> String {
    format!("tls_ca={}", server.ca_file().expect("it has TLS").display())
}

fn certified(server: &TestPostgres) -> String {
    let file = |file: Option<PathBuf>| file.expect("it has TLS").display().to_string();
    let (cert, key) = (file(server.client_certificate_file()), file(server.client_key_file()));
    format!("{}&tls_cert={cert}&tls_key={key}", trusting(server))
}

/// A hand-over between two clients.
async fn works(url: &str) {
    let (one, other) = (connect(url).await, connect(url).await);
    let (held, waiter) = contested(&one, &other, "lock").await;
    hand_over(held, waiter).await;
}

/// The error of connecting, which must come soon and without the password.
async fn fails_soon(url: &str) -> Error {
    let error = connect_error(url).await;
    let shown = format!("{error} {error:?} {}", error_chain(&error));
    assert!(!shown.contains("battery-staple"), "{shown}");
    error
}

/// Fault 61: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_the_named_authority_is_used() {
    let server = PostgresOptions::new().tls().shared().await.unwrap();
    works(&with_params(&server, &format!("sslmode=verify-full&{}", trusting(&server)))).await;
    // By name, too, which its certificate has.
    let by_name = server.url_through(&format!("localhost:{}", server.port()));
    works(&format!("{by_name}?{}", trusting(&server))).await;
    let encrypted = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                     WHERE datname = current_database() AND NOT ssl AND backend_type = 'client backend'
                       AND application_name ~ '^fencelock_'";
    assert_eq!(sql(&server, encrypted).await, "0");
    drained(&server).await;
}

/// Fault 61: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_another_authority_or_name_is_not_trusted() {
    let server = PostgresOptions::new().tls().shared().await.unwrap();
    let other = PostgresOptions::new().tls_for_certified_clients().shared().await.unwrap();
    for params in [trusting(&other), "sslmode=verify-full".to_owned()] {
        let error = fails_soon(&with_params(&server, &params)).await;
        assert_says(&error, ErrorKind::Unreachable, "certificate");
    }
    // The same address, in a form that the certificate does not have.
    let elsewhere = server.url_through(&format!("127.1:{}", server.port()));
    let expecting = |name: &str| format!("{elsewhere}?{}{name}", trusting(&server));
    for name in ["", "&tls_server_name=elsewhere"] {
        let error = fails_soon(&expecting(name)).await;
        assert!(error_chain(&error).contains("as tls_server_name"), "{error}");
    }
    works(&expecting("&tls_server_name=localhost")).await;
    drained(&server).await;
}

/// Fault 61: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_certificate_is_accepted_and_its_absence_is_an_error() {
    let server = PostgresOptions::new().tls_for_certified_clients().shared().await.unwrap();
    works(&with_params(&server, &certified(&server))).await;
    let error = fails_soon(&with_params(&server, &trusting(&server))).await;
    assert_says(&error, ErrorKind::Refused, "the login is refused");
    // One of another authority.
    let other = PostgresOptions::new().tls().shared().await.unwrap();
    let theirs = certified(&other).replace(&trusting(&other), &trusting(&server));
    fails_soon(&with_params(&server, &theirs)).await;
    drained(&server).await;
}

/// Fault 61: postgres
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_on_one_side_only_is_an_error_and_not_a_hang() {
    let (plain, secure) = (database().await, PostgresOptions::new().tls().shared().await.unwrap());
    let error = fails_soon(&with_params(&plain, &trusting(&secure))).await;
    assert_says(&error, ErrorKind::Refused, "sslmode=disable");
    let error = fails_soon(&secure.url()).await;
    assert_says(&error, ErrorKind::Refused, "no encryption");
}

/// Modes that ask for no proof are refused: their name says what is not so.
/// Fault 61: postgres
#[tokio::test]
async fn modes_without_proof_are_refused_with_the_reason() {
    for mode in ["prefer", "allow", "require", "verify-ca"] {
        let error = fails_soon(&format!("postgres://me:battery-staple@h/app?sslmode={mode}")).await;
        assert_kind(&error, ErrorKind::InvalidArgument);
        let says = error_chain(&error);
        assert!(says.contains("verify-full or disable"), "{says}");
        assert!(says.contains("proves nothing"), "{says}");
    }
}

#[tokio::test]
async fn an_unusable_certificate_file_is_named() {
    let missing = Path::new("/nonexistent/authority.pem");
    let url = format!("postgres://me@127.0.0.1:1/app?tls_ca={}", missing.display());
    let error = fails_soon(&url).await;
    assert_kind(&error, ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("/nonexistent/authority.pem"), "{error}");
}
