//! Waiting for servers to agree, which they tell nobody: they are asked again and again.

use std::io;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::ServerError;

/// Far more than several servers need to agree on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Probes until it succeeds; its errors say what is still missing.
pub(super) async fn eventually<T, Probe: Future<Output = io::Result<T>>>(
    server: &'static str,
    awaited: &'static str,
    within: Duration,
    mut probe: impl FnMut() -> Probe,
) -> Result<T, ServerError> {
    const PAUSE: Duration = Duration::from_millis(20);
    let deadline = Instant::now() + within;
    loop {
        match probe().await {
            Ok(found) => return Ok(found),
            Err(_) if Instant::now() < deadline => sleep(PAUSE).await,
            Err(seen) => return Err(ServerError::Unsettled { server, awaited, within, seen }),
        }
    }
}

/// What a probe found missing.
pub(super) fn not_yet(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}
