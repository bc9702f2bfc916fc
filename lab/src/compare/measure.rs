//! What is measured of one store, a file for each stage.

pub(super) mod cost;
pub(super) mod network;
pub(super) mod sale;
pub(super) mod speed;
pub(super) mod timeline;
pub(super) mod under_faults;

use std::time::Duration;

use fencelock::{Error, ErrorKind, Locks, Result};
use fencelock_conformance::Params;
use fencelock_testkit::deployments::Deployment;

/// Where clients of a deployment connect, under its prefix.
pub(super) fn url_of(deployment: &dyn Deployment) -> String {
    Params::prefix_on_url(&deployment.prefix(), &deployment.url())
}

/// A client. Servers that have just started, or come back, on a busy machine get more time.
async fn connect(url: &str) -> Result<Locks> {
    const WITHIN: Duration = Duration::from_secs(15);
    fencelock::connect_within(url, WITHIN).await
}

/// A failure outside of the library, as the library's error.
fn broken(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    let cause = cause.into();
    Error::new(ErrorKind::Refused, format!("a measurement failed: {cause}")).caused_by(cause)
}
