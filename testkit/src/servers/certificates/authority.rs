//! An authority that signs certificates for this machine.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};

#[derive(Clone)]
pub(super) struct Authority(Arc<CertifiedIssuer<'static, KeyPair>>);

impl Authority {
    pub(super) fn new() -> io::Result<Self> {
        let make = || {
            let mut params = named("authority")?;
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
            CertifiedIssuer::self_signed(params, KeyPair::generate()?)
        };
        make().map(|issuer| Self(Arc::new(issuer))).map_err(io::Error::other)
    }

    pub(super) fn pem(&self) -> String {
        self.0.pem()
    }

    pub(super) fn sign(
        &self,
        name: &str,
        certificate_file: &Path,
        key_file: &Path,
    ) -> io::Result<()> {
        let make = || {
            let key = KeyPair::generate()?;
            Ok::<_, rcgen::Error>((named(name)?.signed_by(&key, &self.0)?, key))
        };
        let (certificate, key) = make().map_err(io::Error::other)?;
        std::fs::write(certificate_file, certificate.pem())?;
        std::fs::write(key_file, key.serialize_pem())
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}

fn named(name: &str) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(["127.0.0.1".into(), "localhost".into()])?;
    // One whose own name is its issuer's would count as its own authority.
    params.distinguished_name.push(DnType::CommonName, format!("fencelock test {name}"));
    Ok(params)
}
