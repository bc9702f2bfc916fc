//! The connections of a harness whose clients reach their servers through proxies.

use std::error::Error as Cause;

use fencelock_conformance::{Backdoor, NetworkFault};
use fencelock_core::{Error, ErrorKind, Result};

use crate::proxy::{Proxy, lose_one_reply};

/// What a harness with proxies in front of servers can offer when it also reads the servers' data
/// and its clients can be processes.
pub const BACKDOORS: &[Backdoor] = &[
    Backdoor::Inspect,
    Backdoor::Expire,
    Backdoor::CutOff,
    Backdoor::SlowReplies,
    Backdoor::LoseReply,
    Backdoor::NetworkFaults,
    Backdoor::Processes,
];

/// An error of the harness.
pub fn cannot(doing: &str, cause: impl Into<Box<dyn Cause + Send + Sync>>) -> Error {
    Error::new(ErrorKind::Refused, format!("cannot {doing}")).caused_by(cause)
}

/// Applies `fault` to the connections through `proxies`, of which a client uses any: one of them
/// loses the reply to the next request.
///
/// # Errors
/// As [`Proxy::apply`].
pub async fn inject_fault(proxies: &[Proxy], fault: NetworkFault) -> Result<()> {
    if fault == NetworkFault::ReplyDropped {
        return lose_one_reply(proxies).map_err(|error| cannot("lose a reply", error));
    }
    for proxy in proxies {
        proxy.apply(fault).await.map_err(|error| cannot("break connections", error))?;
    }
    Ok(())
}

/// Ends all faults.
///
/// # Errors
/// As [`Proxy::heal`].
pub async fn heal(proxies: &[Proxy]) -> Result<()> {
    for proxy in proxies {
        proxy.heal().await.map_err(|error| cannot("heal", error))?;
    }
    Ok(())
}

/// How many connections clients have now.
#[must_use]
pub fn connections(proxies: &[Proxy]) -> u64 {
    proxies.iter().map(|proxy| proxy.stats().open).sum()
}
