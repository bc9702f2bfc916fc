//! Authentication.

use std::fmt;

use fencelock_core::Result;
use fencelock_core::backend::invalid;
use zookeeper_client::Connector;
#[cfg(feature = "sasl")]
use zookeeper_client::SaslOptions;

/// The SASL scheme in a URL.
const SASL: &str = "sasl-digest-md5";

#[derive(Clone)]
pub(crate) enum Login {
    /// Sent after the connection was established.
    Auth { scheme: String, secret: String },
    /// Negotiated when the connection is established.
    #[cfg(feature = "sasl")]
    Sasl(SaslOptions),
}

impl Login {
    /// Parses `digest:USER:PASSWORD`, `sasl-digest-md5:USER:PASSWORD`, or another scheme and its
    /// secret. Errors do not repeat the text.
    pub(crate) fn parse(text: &str) -> Result<Login> {
        let wrong = || {
            invalid(format!(
                "invalid auth: expected SCHEME:SECRET, such as auth=digest:USER:PASSWORD or \
                 auth={SASL}:USER:PASSWORD"
            ))
        };
        let (scheme, secret) = text.split_once(':').ok_or_else(wrong)?;
        let user = secret.split_once(':').filter(|(user, _)| !user.is_empty());
        match (scheme, user) {
            ("digest" | SASL, None) => Err(wrong()),
            (SASL, Some((user, password))) => Login::digest_md5(user, password),
            _ if scheme.is_empty() || secret.is_empty() => Err(wrong()),
            _ => Ok(Login::Auth { scheme: scheme.to_owned(), secret: secret.to_owned() }),
        }
    }

    #[cfg(feature = "sasl")]
    fn digest_md5(user: &str, password: &str) -> Result<Login> {
        Ok(Login::Sasl(SaslOptions::digest_md5(user.to_owned(), password.to_owned()).into()))
    }

    #[cfg(not(feature = "sasl"))]
    fn digest_md5(_: &str, _: &str) -> Result<Login> {
        Err(invalid(format!(
            "auth={SASL} needs the cargo feature `sasl` of fencelock (cargo add fencelock --features \
             sasl)"
        )))
    }

    pub(crate) fn put_into(&self, connector: Connector) -> Connector {
        match self {
            Login::Auth { scheme, secret } => connector.with_auth(scheme, secret.as_bytes()),
            #[cfg(feature = "sasl")]
            Login::Sasl(options) => connector.with_sasl(options.clone()),
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Login::Auth { scheme, .. } => write!(f, "{scheme}:***"),
            #[cfg(feature = "sasl")]
            Login::Sasl(_) => f.write_str("sasl:***"),
        }
    }
}
