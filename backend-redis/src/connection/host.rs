//! A server's address as URLs and servers give it.

/// The name and port of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct HostPort {
    pub(crate) name: String,
    pub(crate) port: u16,
}

impl std::fmt::Display for HostPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

/// A message about a server, which names it once.
pub(crate) fn about(host: &impl std::fmt::Display, message: &str) -> String {
    let host = host.to_string();
    match message.contains(&host) {
        true => message.to_owned(),
        false => format!("{host}: {message}"),
    }
}
