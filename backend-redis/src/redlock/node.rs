//! The nodes as one client sees them: connections, which of them can be asked, and what each has
//! yet to be sent.

pub(crate) mod fan_out;
pub(crate) mod member;
pub(crate) mod monitor;
pub(crate) mod pending_releases;
pub(crate) mod quorum;
pub(crate) mod record;
pub(crate) mod view;
pub(crate) mod waiters;

/// A message about a node, which names it once.
pub(crate) fn about(host: &impl std::fmt::Display, message: &str) -> String {
    let host = host.to_string();
    match message.contains(&host) {
        true => message.to_owned(),
        false => format!("{host}: {message}"),
    }
}
