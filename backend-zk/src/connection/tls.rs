//! Certificates: `tls_ca=`, `tls_cert=` and `tls_key=`.

use std::path::{Path, PathBuf};

use fencelock_core::Result;
use fencelock_core::backend::invalid;
use zookeeper_client::Connector;

/// The certificates of an encrypted connection: the servers' authority, and the client's own.
///
/// The transport does not use the system's authorities, so one must be named. The check of a server's
/// name cannot be turned off.
#[derive(Clone, Debug)]
pub struct Tls {
    authority: PathBuf,
    own: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Trusts the authorities in this PEM file, and no others.
    #[must_use]
    pub fn authority(file: impl AsRef<Path>) -> Tls {
        Tls { authority: file.as_ref().to_owned(), own: None }
    }

    /// Presents this certificate, with its key, to the servers; both are PEM files.
    #[must_use]
    pub fn certificate(mut self, file: impl AsRef<Path>, key: impl AsRef<Path>) -> Tls {
        self.own = Some((file.as_ref().to_owned(), key.as_ref().to_owned()));
        self
    }
}

#[cfg(feature = "tls")]
impl Tls {
    /// Reads the files into `connector`.
    pub(crate) fn put_into(&self, connector: Connector) -> Result<Connector> {
        use fencelock_net::{read_certificate_file, read_key_file};
        use zookeeper_client::TlsOptions;
        // With two providers in a program rustls chooses neither by itself, and panics.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Another thread may install one first, which is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let unusable = |file: &Path, cause| {
            let message = format!("{} contains no usable certificate", file.display());
            invalid(message).caused_by(cause)
        };
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let mut options = TlsOptions::new()
            .with_pem_ca(&text(read_certificate_file(&self.authority)?))
            .map_err(|cause| unusable(&self.authority, cause))?;
        if let Some((certificate, key)) = &self.own {
            options = options
                .with_pem_identity(
                    &text(read_certificate_file(certificate)?),
                    &text(read_key_file(key)?),
                )
                .map_err(|cause| unusable(certificate, cause))?;
        }
        Ok(connector.with_tls(options))
    }
}

#[cfg(not(feature = "tls"))]
impl Tls {
    pub(crate) fn put_into(&self, _: Connector) -> Result<Connector> {
        let _ = (&self.authority, &self.own);
        let message = "tls_ca needs the cargo feature `zk-tls` of fencelock (cargo add fencelock \
                       --features zk-tls)";
        Err(invalid(message))
    }
}
