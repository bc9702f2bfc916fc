//! The service on `mem://`, under tokio's paused clock: no server, and no time passes.

use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, StatusCode};
use fencelock::{Memory, Settings};
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::time::{Instant, sleep, timeout};
use tower::ServiceExt as _;

use crate::payments::Payments;
use crate::service::{App, PATIENCE, router};

/// The service, as one of several servers that share the store and the provider.
#[derive(Clone)]
struct Server(App);

impl Server {
    fn new(store: &Memory, payments: &Payments) -> Server {
        let locks = store.locks(Settings::default()).expect("a test has a runtime");
        // Its own recorder, so that tests may run at the same time.
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        Server(App { locks, payments: payments.clone(), metrics })
    }

    async fn request(&self, method: &str, path: &str) -> (StatusCode, String) {
        let request = Request::builder().method(method).uri(path).body(Body::empty());
        let answer = router(self.0.clone()).oneshot(request.expect("a valid request")).await;
        let answer = answer.expect("a router does not fail");
        let status = answer.status();
        let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await;
        let body = String::from_utf8(body.expect("it is complete").into());
        (status, body.expect("it is text"))
    }

    async fn charge(&self, order: &str) -> StatusCode {
        self.request("POST", &format!("/orders/{order}/charge")).await.0
    }
}

#[tokio::test(start_paused = true)]
async fn an_order_is_charged_once_by_all_servers() {
    let (store, payments) = (Memory::new(), Payments::taking(Duration::from_millis(300)));
    let servers = [0, 1, 2].map(|_| Server::new(&store, &payments));
    let [one, two, three] = servers.each_ref().map(|server| server.charge("42"));
    let mut answers = <[_; 3]>::from(tokio::join!(one, two, three)).to_vec();
    answers.sort();
    assert_eq!(answers, [StatusCode::OK, StatusCode::OK, StatusCode::CREATED]);
    assert_eq!(payments.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_no_longer_than_its_patience() {
    let (store, payments) = (Memory::new(), Payments::taking(Duration::ZERO));
    let server = Server::new(&store, &payments);
    let _other = server.0.locks.lock("orders/42").acquire().await.unwrap();
    let asked = Instant::now();
    assert_eq!(server.charge("42").await, StatusCode::CONFLICT);
    assert_eq!(asked.elapsed(), PATIENCE);
    assert_eq!(server.charge("43").await, StatusCode::CREATED, "other orders do not wait");
}

#[tokio::test(start_paused = true)]
async fn a_slow_provider_does_not_cost_the_lock() {
    let (store, payments) = (Memory::new(), Payments::taking(Duration::from_secs(3600)));
    let server = Server::new(&store, &payments);
    // The lock's TTL is 30 s: it is renewed for as long as the provider takes.
    assert_eq!(server.charge("42").await, StatusCode::CREATED);
}

#[tokio::test(start_paused = true)]
async fn a_charge_is_cancelled_when_its_lock_is_taken_away() {
    let (store, payments) = (Memory::new(), Payments::taking(Duration::from_secs(3600)));
    let server = Server::new(&store, &payments);
    let operator = store.locks(Settings::default()).unwrap();
    let take_away = async {
        sleep(Duration::from_secs(1)).await;
        let holder = operator.inspect("orders/42").await.unwrap().holders.remove(0);
        assert!(operator.evict("orders/42", &holder.id).await.unwrap());
    };
    let (answer, ()) = tokio::join!(server.charge("42"), take_away);
    assert_eq!(answer, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(payments.count(), 0, "the provider's call was cancelled");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_disconnects_leaves_no_lock() {
    let (store, payments) = (Memory::new(), Payments::taking(Duration::from_secs(3600)));
    let server = Server::new(&store, &payments);
    // Dropping the future is what axum does when the client has gone.
    let gone = timeout(Duration::from_secs(1), server.charge("42")).await;
    assert!(gone.is_err());
    server.0.locks.close().await.unwrap();
    assert!(store.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_late_charge_of_a_paused_server_is_rejected() {
    let (store, payments) = (Memory::new(), Payments::taking(Duration::ZERO));
    let server = Server::new(&store, &payments);
    let lease = server.0.locks.lock("orders/42").fixed_lease(Duration::from_secs(1));
    let paused = lease.acquire().await.unwrap();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(server.charge("42").await, StatusCode::CREATED);
    let late = payments.charge("42", paused.fencing_token()).await;
    assert_eq!(late, crate::payments::Charge::Stale);
}

#[tokio::test(start_paused = true)]
async fn the_metrics_have_a_help_text() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let (store, payments) = (Memory::new(), Payments::taking(Duration::ZERO));
    let mut server = Server::new(&store, &payments);
    server.0.metrics = recorder.handle();
    let _installed = metrics::set_default_local_recorder(&recorder);
    assert_eq!(server.charge("42").await, StatusCode::CREATED);
    let (status, page) = server.request("GET", "/metrics").await;
    assert_eq!(status, StatusCode::OK);
    for line in [
        "# HELP fencelock_wait_seconds Time from the call of acquire to the grant.",
        "# TYPE fencelock_acquisitions_total counter",
        r#"fencelock_acquisitions_total{store="memory",mode="exclusive",outcome="granted"} 1"#,
    ] {
        assert!(page.contains(line), "{line} not in:\n{page}");
    }
}
