//! Certificates, for `rediss://` and its like.

use std::path::{Path, PathBuf};

use fencelock_core::{Error, ErrorKind, Result};
use redis::{Client, ConnectionInfo, RedisResult};

/// How a server proves who it is, and we to it.
///
/// Without more it is by the certificates that the system trusts. Checking the server's name
/// cannot be turned off.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    authority: Option<PathBuf>,
    own: Option<(PathBuf, PathBuf)>,
    #[cfg(feature = "tls")]
    read: Option<redis::TlsCertificates>,
}

impl Tls {
    /// Trusts the authorities in this PEM file, and no others.
    #[must_use]
    pub fn authority(mut self, file: impl AsRef<Path>) -> Tls {
        self.authority = Some(file.as_ref().to_owned());
        self
    }

    /// Shows the server this certificate, with its key; both PEM files.
    #[must_use]
    pub fn certificate(mut self, file: impl AsRef<Path>, key: impl AsRef<Path>) -> Tls {
        self.own = Some((file.as_ref().to_owned(), key.as_ref().to_owned()));
        self
    }
}

#[cfg(feature = "tls")]
impl Tls {
    /// Reads the files.
    pub(crate) fn load(mut self) -> Result<Tls> {
        let own = match &self.own {
            None => None,
            Some((file, key)) => {
                Some(redis::ClientTlsConfig { client_cert: read(file)?, client_key: read(key)? })
            }
        };
        let root_cert = self.authority.as_deref().map(read).transpose()?;
        self.read = Some(redis::TlsCertificates { client_tls: own, root_cert });
        // With two of them in a program rustls takes neither by itself, and panics.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Somebody else may be faster; theirs is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        Ok(self)
    }

    pub(crate) fn client(&self, info: ConnectionInfo) -> RedisResult<Client> {
        let info = match info.addr() {
            redis::ConnectionAddr::Tcp(host, port) => {
                let (host, port) = (host.clone(), *port);
                info.set_addr(redis::ConnectionAddr::TcpTls {
                    host,
                    port,
                    insecure: false,
                    tls_params: None,
                })
            }
            _ => info,
        };
        match &self.read {
            Some(certificates) => Client::build_with_tls(info, certificates.clone()),
            None => Client::open(info),
        }
    }
}

#[cfg(feature = "tls")]
fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|cause| {
        let message = format!("cannot read the certificate file {}", file.display());
        Error::new(ErrorKind::InvalidArgument, message).caused_by(cause)
    })
}

#[cfg(not(feature = "tls"))]
impl Tls {
    pub(crate) fn load(self) -> Result<Tls> {
        let message = "this program was built without the feature tls of fencelock-redis, which \
                       rediss:// needs";
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    pub(crate) fn client(&self, info: ConnectionInfo) -> RedisResult<Client> {
        Client::open(info)
    }
}
