//! Certificates, for `rediss://` and its variants.

use std::path::{Path, PathBuf};

/// How a server proves its identity, and the client its own.
///
/// Default: the certificates that the system trusts. The check of the server's name cannot be
/// turned off.
#[derive(Clone, Debug, Default)]
pub struct Tls {
    authority: Option<PathBuf>,
    own: Option<(PathBuf, PathBuf)>,
    name: Option<String>,
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

    /// Expects this name in the certificate of every server, regardless of its address: for servers
    /// that a cluster or Sentinel names by addresses that no certificate has.
    #[must_use]
    pub fn server_name(mut self, name: &str) -> Tls {
        self.name = Some(name.to_owned());
        self
    }
}

#[cfg(feature = "tls")]
pub(crate) use secured::Secured;

#[cfg(feature = "tls")]
mod secured {
    use std::fmt;
    use std::path::Path;
    use std::sync::Arc;

    use fencelock_core::config::{invalid, read_certificate_file};
    use fencelock_core::{Error, ErrorKind, Result};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore};
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;

    use super::Tls;
    use crate::connection::HostPort;

    /// [`Tls`] with its files read.
    #[derive(Clone)]
    pub(crate) struct Secured {
        config: Arc<ClientConfig>,
        name: Option<ServerName<'static>>,
    }

    impl fmt::Debug for Secured {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("Secured").field("name", &self.name).finish_non_exhaustive()
        }
    }

    impl Tls {
        /// Reads the files.
        pub(crate) fn load(self) -> Result<Secured> {
            let roots = match &self.authority {
                Some(file) => authorities(file)?,
                None => trusted_by_the_system()?,
            };
            // Given explicitly, since rustls panics when a program has two providers.
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(|cause| wrong("TLS cannot be used", cause))?
                .with_root_certificates(roots);
            let config = match &self.own {
                None => config.with_no_client_auth(),
                Some((file, key)) => {
                    let key_pem = PrivateKeyDer::from_pem_slice(&read_certificate_file(key)?);
                    let key = key_pem.map_err(|cause| {
                        wrong(&format!("{} holds no private key", key.display()), cause)
                    })?;
                    let about = format!("{} does not fit its key", file.display());
                    let fitting = config.with_client_auth_cert(certificates(file)?, key);
                    fitting.map_err(|cause| wrong(&about, cause))?
                }
            };
            let name = self.name.map(|name| {
                let about = format!("{name:?} is not a name for a certificate");
                ServerName::try_from(name).map_err(|cause| wrong(&about, cause))
            });
            Ok(Secured { config: Arc::new(config), name: name.transpose()? })
        }
    }

    impl Secured {
        /// Encrypts a connection to `host`, and checks the server's certificate.
        pub(crate) async fn handshake(
            &self,
            host: &HostPort,
            stream: TcpStream,
        ) -> Result<TlsStream<TcpStream>> {
            let name = match &self.name {
                Some(name) => name.clone(),
                None => ServerName::try_from(host.name.clone()).map_err(|cause| {
                    wrong(&format!("{:?} is not a name for a certificate", host.name), cause)
                })?,
            };
            let connecting = TlsConnector::from(self.config.clone()).connect(name, stream);
            connecting.await.map_err(|cause| {
                let hint = match cause.get_ref().and_then(|cause| cause.downcast_ref()) {
                    Some(rustls::Error::InvalidMessage(_)) => {
                        "; the server does not speak TLS: use redis://"
                    }
                    _ if cause.get_ref().is_none_or(|cause| !cause.is::<rustls::Error>()) => {
                        "; does the server speak TLS? If not, use redis://"
                    }
                    _ => "",
                };
                let message = format!("the TLS handshake failed ({cause}){hint}");
                Error::new(ErrorKind::Unreachable, message).caused_by(cause)
            })
        }
    }

    fn authorities(file: &Path) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(file)? {
            roots.add(certificate).map_err(|cause| {
                wrong(&format!("{} holds no authority to trust", file.display()), cause)
            })?;
        }
        Ok(roots)
    }

    fn trusted_by_the_system() -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        match found.errors.into_iter().next() {
            Some(cause) if roots.is_empty() => {
                Err(wrong("the system's certificates cannot be read; name them as tls_ca", cause))
            }
            _ => Ok(roots),
        }
    }

    fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
        let text = read_certificate_file(file)?;
        let read = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
        match read {
            Ok(read) if read.is_empty() => {
                Err(invalid(format!("{} holds no certificate", file.display())))
            }
            Ok(read) => Ok(read),
            Err(cause) => Err(wrong(&format!("{} holds no certificate", file.display()), cause)),
        }
    }

    fn wrong(what: &str, cause: impl std::error::Error + Send + Sync + 'static) -> Error {
        invalid(format!("{what} ({cause})")).caused_by(cause)
    }
}

/// What no program without TLS has.
#[cfg(not(feature = "tls"))]
#[derive(Clone, Debug)]
pub(crate) enum Secured {}

#[cfg(not(feature = "tls"))]
impl Tls {
    pub(crate) fn load(self) -> fencelock_core::Result<Secured> {
        let message = "this program was built without the feature tls of fencelock-redis, which \
                       rediss:// needs";
        Err(fencelock_core::config::invalid(message))
    }
}

#[cfg(not(feature = "tls"))]
impl Secured {
    #[expect(clippy::unused_async, reason = "the same as with TLS")]
    pub(crate) async fn handshake(
        &self,
        _: &crate::connection::HostPort,
        _: tokio::net::TcpStream,
    ) -> fencelock_core::Result<tokio::net::TcpStream> {
        match *self {}
    }
}
