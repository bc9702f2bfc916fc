//! An axum service that charges orders: each once, also when two servers get the request at the same
//! time.
//!
//! ```sh
//! FENCELOCK_URL=redis://localhost cargo run -p axum-service   # mem:// for a first look
//! curl -X POST http://127.0.0.1:3000/orders/42/charge
//! curl http://127.0.0.1:3000/metrics
//! ```
//!
//! `service.rs` has the handlers and what a lock's errors mean to a client, `payments.rs` the protected
//! resource, `tests.rs` the tests, which need neither a server nor a second of real time.

mod payments;
mod service;
#[cfg(test)]
mod tests;

use std::error::Error;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use payments::Payments;
use service::App;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let metrics = PrometheusBuilder::new().install_recorder()?;
    // Once per process: every request uses a clone.
    let locks = fencelock::connect_from_env().await?;
    for reason in &*locks.profile().exclusion_fails_when {
        tracing::warn!("the locks do not exclude each other when {reason}");
    }

    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    tracing::info!("listening on {}", listener.local_addr()?);
    let payments = Payments::taking(Duration::from_millis(200));
    let app = App { locks: locks.clone(), payments, metrics };
    let stopped = async {
        // Without a handler for Ctrl-C the service stops at once, and says why.
        tokio::signal::ctrl_c().await.unwrap_or_else(|error| tracing::error!(%error, "no Ctrl-C"));
    };
    axum::serve(listener, service::router(app)).with_graceful_shutdown(stopped).await?;
    // Waits until the store has confirmed the last releases.
    Ok(locks.close().await?)
}
