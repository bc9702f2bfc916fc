//! The nodes as one client sees them: connections, which of them can be asked, and what each has
//! yet to be sent.

use fencelock_core::{Error, ErrorKind};

use crate::connection::HostPort;

pub(crate) mod fan_out;
pub(crate) mod member;
pub(crate) mod monitor;
pub(crate) mod pending_releases;
pub(crate) mod quorum;
pub(crate) mod record;
pub(crate) mod view;
pub(crate) mod waiters;
pub(crate) mod written;

/// The error for two names of one server: it has one vote, and would be counted twice.
pub(crate) fn one_server(first: &HostPort, second: &HostPort) -> Error {
    let message = format!(
        "{first} and {second} are one server, which has one vote: name each server of the set once"
    );
    Error::new(ErrorKind::Refused, message)
}

/// A message about a node, which names it once.
pub(crate) fn about(host: &impl std::fmt::Display, message: &str) -> String {
    let host = host.to_string();
    if message.contains(&host) { message.to_owned() } else { format!("{host}: {message}") }
}
