//! TLS: certificates, and the handshake.

use std::path::{Path, PathBuf};

use fencelock_core::Result;
use fencelock_core::url::Params;

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
    /// The parameters of a URL: `tls_ca`, `tls_cert`, `tls_key`, `tls_server_name`.
    ///
    /// # Errors
    /// A certificate without its key, or a key without its certificate.
    pub fn from_params(params: Params<'_>) -> Result<Tls> {
        let own = params.both("tls_cert", "tls_key")?;
        Ok(Tls {
            authority: params.text("tls_ca").map(PathBuf::from),
            own: own.map(|(certificate, key)| (certificate.into(), key.into())),
            name: params.text("tls_server_name").map(str::to_owned),
        })
    }

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
pub use secured::Secured;

#[cfg(feature = "tls")]
mod secured {
    use std::fmt;
    use std::path::Path;
    use std::sync::Arc;

    use fencelock_core::backend::invalid;
    use fencelock_core::{Error, ErrorKind, Result};
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::{ClientConfig, RootCertStore};
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;

    use super::Tls;
    use crate::files::{read_certificate_file, read_key_file};

    /// [`Tls`] with its files read.
    #[derive(Clone)]
    pub struct Secured {
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
        ///
        /// # Errors
        /// What is wrong with which file.
        pub fn load(self) -> Result<Secured> {
            let roots = match &self.authority {
                Some(file) => authorities(file)?,
                None => trusted_by_the_system()?,
            };
            // Given explicitly, since rustls panics when a program has two providers.
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(|cause| wrong("TLS is unusable", cause))?
                .with_root_certificates(roots);
            let config = match &self.own {
                None => config.with_no_client_auth(),
                Some((file, key)) => {
                    let key_pem = PrivateKeyDer::from_pem_slice(&read_key_file(key)?);
                    let key = key_pem.map_err(|cause| {
                        wrong(&format!("{} does not contain a private key", key.display()), cause)
                    })?;
                    let about = format!("{} does not match its key", file.display());
                    let fitting = config.with_client_auth_cert(certificates(file)?, key);
                    fitting.map_err(|cause| wrong(&about, cause))?
                }
            };
            let name = self.name.as_deref().map(server_name).transpose()?;
            Ok(Secured { config: Arc::new(config), name })
        }
    }

    impl Secured {
        /// Encrypts a connection to the server `name` at `address`, and checks the server's certificate.
        /// `otherwise` says how to connect to a server without TLS.
        ///
        /// # Errors
        /// [`ErrorKind::Unreachable`]: the handshake failed.
        pub async fn handshake(
            &self,
            name: &str,
            address: &impl fmt::Display,
            stream: TcpStream,
            otherwise: &str,
        ) -> Result<TlsStream<TcpStream>> {
            let name = match &self.name {
                Some(name) => name.clone(),
                None => server_name(name)?,
            };
            let connecting = TlsConnector::from(self.config.clone()).connect(name, stream);
            connecting.await.map_err(|cause| {
                use rustls::CertificateError;
                let hint: String = match cause.get_ref().and_then(|cause| cause.downcast_ref()) {
                    Some(rustls::Error::InvalidCertificate(
                        CertificateError::UnknownIssuer | CertificateError::BadSignature,
                    )) => {
                        "; tls_ca=FILE names the authority that has signed the server's certificate".into()
                    }
                    Some(rustls::Error::InvalidCertificate(
                        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
                    )) => {
                        "; connect by a name that the certificate has, or give that as tls_server_name".into()
                    }
                    Some(rustls::Error::InvalidCertificate(CertificateError::Other(_))) => {
                        "; the server needs a certificate of version 3, for itself: one that has signed itself \
                         must not be an authority's (openssl req -x509 -addext basicConstraints=CA:FALSE)"
                            .into()
                    }
                    Some(rustls::Error::InvalidMessage(_)) => {
                        format!("; the server does not speak TLS: {otherwise}")
                    }
                    _ if cause.get_ref().is_none_or(|cause| !cause.is::<rustls::Error>()) => {
                        format!("; does the server speak TLS? If not, {otherwise}")
                    }
                    _ => String::new(),
                };
                let message = format!("the TLS handshake with {address} failed: {cause}{hint}");
                Error::new(ErrorKind::Unreachable, message).caused_by(cause)
            })
        }
    }

    fn authorities(file: &Path) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(file)? {
            roots.add(certificate).map_err(|cause| {
                wrong(&format!("{} does not contain an authority to trust", file.display()), cause)
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
                Err(wrong("cannot read the system's certificates; name them as tls_ca", cause))
            }
            _ => Ok(roots),
        }
    }

    fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
        let text = read_certificate_file(file)?;
        let none = format!("{} does not contain a certificate", file.display());
        match CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>() {
            Ok(read) if read.is_empty() => Err(invalid(none)),
            read => read.map_err(|cause| wrong(&none, cause)),
        }
    }

    fn server_name(name: &str) -> Result<ServerName<'static>> {
        let about = format!(
            "{name:?} is not a name for a certificate; give one that it has as tls_server_name"
        );
        ServerName::try_from(name.to_owned()).map_err(|cause| wrong(&about, cause))
    }

    fn wrong(what: &str, cause: impl std::error::Error + Send + Sync + 'static) -> Error {
        invalid(format!("{what}: {cause}")).caused_by(cause)
    }
}

/// What no program without TLS has.
#[cfg(not(feature = "tls"))]
#[derive(Clone, Debug)]
pub enum Secured {}

#[cfg(not(feature = "tls"))]
impl Tls {
    /// An error: nothing encrypts.
    ///
    /// # Errors
    /// Always.
    pub fn load(self) -> Result<Secured> {
        let message = "encrypted connections need the cargo feature `tls` of fencelock (cargo add \
                       fencelock --features tls)";
        Err(fencelock_core::backend::invalid(message))
    }
}

#[cfg(not(feature = "tls"))]
impl Secured {
    #[expect(clippy::unused_async, reason = "the same as with TLS")]
    /// Never called.
    ///
    /// # Errors
    /// Never.
    pub async fn handshake(
        &self,
        _: &str,
        _: &impl std::fmt::Display,
        _: tokio::net::TcpStream,
        _: &str,
    ) -> Result<tokio::net::TcpStream> {
        match *self {}
    }
}
