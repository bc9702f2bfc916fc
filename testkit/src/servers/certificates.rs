//! The certificates of a server that speaks TLS, made when it starts.
//!
//! Each server or topology has an authority of its own, so that a client which trusts the one of
//! another server can be seen to refuse.

use std::io;
use std::path::Path;

#[cfg(feature = "stores")]
mod authority;
#[cfg(not(feature = "stores"))]
#[path = "certificates/no_authority.rs"]
mod authority;

use authority::Authority;

pub(super) const CA: &str = "ca.crt";
pub(super) const CLIENT: &str = "client.crt";
pub(super) const CLIENT_KEY: &str = "client.key";
pub(super) const SERVER: &str = "server.crt";
pub(super) const SERVER_KEY: &str = "server.key";

/// How a server speaks TLS.
#[derive(Debug, Clone)]
pub(super) struct Tls {
    pub(super) clients: Clients,
    authority: Option<Authority>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clients {
    Any,
    Certified,
}

impl Tls {
    pub(super) fn with(clients: Clients) -> Self {
        Self { clients, authority: None }
    }

    /// Makes the authority, for all servers that are started with clones of this.
    pub(super) fn shared(mut self) -> io::Result<Self> {
        self.authority = Some(Authority::new()?);
        Ok(self)
    }

    /// Writes all files to the directory.
    pub(super) fn certify(&self, directory: &Path) -> io::Result<()> {
        let authority = self.authority.clone().map_or_else(Authority::new, Ok)?;
        std::fs::write(directory.join(CA), authority.pem())?;
        authority.sign("server", &directory.join(SERVER), &directory.join(SERVER_KEY))?;
        authority.sign("client", &directory.join(CLIENT), &directory.join(CLIENT_KEY))
    }
}
