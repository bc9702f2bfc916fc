//! Certificates, for `tls_ca=` and its like.

use std::path::{Path, PathBuf};

use fencelock_core::Result;
#[cfg(not(feature = "tls"))]
use fencelock_core::{Error, ErrorKind};
use zookeeper_client::Connector;

/// How the servers prove who they are, and we to them.
///
/// The transport knows no authorities of the system, so one is always named. Checking a server's
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

    /// Shows the servers this certificate, with its key; both PEM files.
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
        use zookeeper_client::TlsOptions;
        // With two of them in a program rustls takes neither by itself, and panics.
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Somebody else may be faster; theirs is as good.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let unfit = |file: &Path, cause| {
            let message = format!("{} holds no certificate that is of use", file.display());
            invalid(message).caused_by(cause)
        };
        let mut options = TlsOptions::new()
            .with_pem_ca(&read(&self.authority)?)
            .map_err(|cause| unfit(&self.authority, cause))?;
        if let Some((certificate, key)) = &self.own {
            options = options
                .with_pem_identity(&read(certificate)?, &read(key)?)
                .map_err(|cause| unfit(certificate, cause))?;
        }
        Ok(connector.with_tls(options))
    }
}

#[cfg(feature = "tls")]
fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).map_err(|cause| {
        invalid(format!("cannot read the certificate file {}", file.display())).caused_by(cause)
    })
}

#[cfg(feature = "tls")]
fn invalid(message: String) -> fencelock_core::Error {
    fencelock_core::Error::new(fencelock_core::ErrorKind::InvalidArgument, message)
}

#[cfg(not(feature = "tls"))]
impl Tls {
    pub(crate) fn put_into(&self, _: Connector) -> Result<Connector> {
        let (file, own) = (self.authority.display(), self.own.is_some());
        let message = format!(
            "this program was built without the feature tls of fencelock-zk, which tls_ca={file}{} \
             needs",
            if own { ", with a certificate," } else { "" }
        );
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }
}
