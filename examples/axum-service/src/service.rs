//! The routes, and what the errors of a lock mean to a client.

use std::time::Duration;

use axum::Router;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use fencelock::{ErrorKind, Locks};
use metrics_exporter_prometheus::PrometheusHandle;

use crate::payments::{Charge, Payments};

/// How long a request waits for another one of the same order.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub(crate) struct App {
    pub(crate) locks: Locks,
    pub(crate) payments: Payments,
    pub(crate) metrics: PrometheusHandle,
}

pub(crate) fn router(app: App) -> Router {
    Router::new()
        .route("/orders/{order}/charge", post(charge))
        .route("/ready", get(ready))
        .route("/metrics", get(metrics))
        .with_state(app)
}

/// If the client disconnects, axum drops this future at an await: the lock is released in the
/// background, or the place in its queue is given up.
async fn charge(State(app): State<App>, Path(order): Path<String>) -> Result<Response, Failure> {
    let lock = app.locks.lock(format!("orders/{order}")).wait_at_most(PATIENCE);
    let guard = lock.acquire().await?;
    // Cancelled if the lock is lost.
    let charge = guard.run(app.payments.charge(&order, guard.fencing_token())).await?;
    // The charge is made, so that an error of the release must not look like a failed charge. The
    // drop of the guard releases in the background, and the client need not wait for it.
    drop(guard);
    Ok(match charge {
        Charge::Made => (StatusCode::CREATED, "charged\n").into_response(),
        Charge::MadeBefore => "charged before\n".into_response(),
        Charge::Stale => (StatusCode::CONFLICT, "another request took over\n").into_response(),
    })
}

/// The readiness probe.
async fn ready(State(app): State<App>) -> Result<&'static str, Failure> {
    match app.locks.health(Duration::from_secs(1)).await.error {
        None => Ok("ready\n"),
        Some(error) => Err(Failure(error)),
    }
}

async fn metrics(State(app): State<App>) -> String {
    app.metrics.render()
}

/// An error of a lock as the answer to a request.
struct Failure(fencelock::Error);

impl From<fencelock::Error> for Failure {
    fn from(error: fencelock::Error) -> Failure {
        Failure(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let (status, text) = match self.0.kind() {
            ErrorKind::Busy | ErrorKind::WaitTimedOut => {
                (StatusCode::CONFLICT, "another request is charging this order\n")
            }
            ErrorKind::Unreachable | ErrorKind::Closed => {
                (StatusCode::SERVICE_UNAVAILABLE, "try again later\n")
            }
            ErrorKind::InvalidArgument => (StatusCode::BAD_REQUEST, "invalid order number\n"),
            // Also `Lost`: the charge may have been made. A repeated request finds out.
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "it is not known whether it was charged\n"),
        };
        // The details, with the lock's name and the store, are for the log and not for the client.
        tracing::warn!(error = %self.0, %status, "request failed");
        (status, [(header::RETRY_AFTER, "1")], text).into_response()
    }
}
