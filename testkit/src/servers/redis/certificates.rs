//! The certificates of a server that speaks TLS, made when it starts.
//!
//! Each server or topology has an authority of its own, so that a client which trusts the one of
//! another server can be seen to refuse.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};

pub(super) const CA: &str = "ca.crt";
pub(super) const CLIENT: &str = "client.crt";
pub(super) const CLIENT_KEY: &str = "client.key";
const SERVER: &str = "server.crt";
const SERVER_KEY: &str = "server.key";

/// How a server speaks TLS.
#[derive(Debug, Clone)]
pub(super) struct Tls {
    clients: Clients,
    authority: Option<Authority>,
}

#[derive(Debug, Clone, Copy)]
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
        std::fs::write(directory.join(CA), authority.0.pem())?;
        authority.sign("server", &directory.join(SERVER), &directory.join(SERVER_KEY))?;
        authority.sign("client", &directory.join(CLIENT), &directory.join(CLIENT_KEY))
    }

    /// The arguments of the server, with the directory of its certificates.
    pub(super) fn args(&self, directory: &Path) -> Vec<OsString> {
        let clients = match self.clients {
            Clients::Any => "no",
            Clients::Certified => "yes",
        };
        // To its own kind it is a client as well.
        let yes = ["--tls-replication", "--tls-cluster"].map(|role| [role, "yes"]);
        let mut args: Vec<OsString> = yes.as_flattened().iter().map(Into::into).collect();
        args.extend(["--port", "0", "--tls-auth-clients", clients].map(Into::into));
        for (option, file) in [("ca-cert", CA), ("cert", SERVER), ("key", SERVER_KEY)] {
            args.extend([format!("--tls-{option}-file").into(), directory.join(file).into()]);
        }
        args
    }
}

#[derive(Clone)]
struct Authority(Arc<CertifiedIssuer<'static, KeyPair>>);

impl Authority {
    fn new() -> io::Result<Self> {
        let make = || {
            let mut params = named("authority")?;
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
            CertifiedIssuer::self_signed(params, KeyPair::generate()?)
        };
        make().map(|issuer| Self(Arc::new(issuer))).map_err(io::Error::other)
    }

    fn sign(&self, name: &str, certificate_file: &Path, key_file: &Path) -> io::Result<()> {
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
