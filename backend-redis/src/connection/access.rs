//! The settings of all connections of a store: login, database, TLS, timeouts, address map.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencelock_core::Result;
use fencelock_core::backend::invalid;
use fencelock_core::url::{Params, StoreUrl, hosts_in};
use fencelock_net::{Login, Timeouts, Tls};

use super::host::HostPort;

pub(crate) const PORT: u16 = 6379;

/// The parameters of the URLs of this crate, besides those of all stores.
pub(crate) const PARAMETERS: [&str; 8] = [
    "db",
    "password_file",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_server_name",
    "connect_timeout",
    "answer_timeout",
];

/// To connect: enough for a TLS handshake around the world. A reply: longer than any script runs, shorter than
/// a waiter's patience.
const TIMEOUTS: Timeouts =
    Timeouts { connect: Duration::from_secs(2), answer: Duration::from_secs(1) };

/// How servers are accessed.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) login: Login,
    pub(crate) database: u16,
    pub(crate) tls: Option<Tls>,
    pub(crate) timeouts: Timeouts,
    pub(crate) addresses: AddressMap,
}

type Translate = dyn Fn(&str, u16) -> (String, u16) + Send + Sync;

/// Translates the addresses that a cluster or Sentinel names to those reachable from here.
#[derive(Clone, Default)]
pub(crate) struct AddressMap(Option<Arc<Translate>>);

impl fmt::Debug for AddressMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "AddressMap" } else { "None" })
    }
}

impl AddressMap {
    pub(crate) fn by(
        translate: impl Fn(&str, u16) -> (String, u16) + Send + Sync + 'static,
    ) -> AddressMap {
        AddressMap(Some(Arc::new(translate)))
    }

    /// Parses `internal:port=external:port,...`; addresses that are not in it stay as they are.
    fn read(text: &str) -> Result<AddressMap> {
        let wrong = || {
            invalid(
                "parameter address_map: expected INTERNAL:PORT=EXTERNAL:PORT,… with the hosts \
                     that the servers name first",
            )
        };
        let mut map = HashMap::new();
        for pair in text.split(',') {
            let (internal, external) = pair.split_once('=').ok_or_else(wrong)?;
            let one = |text| hosts_in(text, PORT).ok().and_then(|mut hosts| hosts.pop());
            let (internal, external) =
                (one(internal).ok_or_else(wrong)?, one(external).ok_or_else(wrong)?);
            if map.insert(internal, external).is_some() {
                return Err(invalid("parameter address_map names a host twice"));
            }
        }
        Ok(AddressMap::by(move |name, port| {
            let named = (name.to_owned(), port);
            map.get(&named).cloned().unwrap_or(named)
        }))
    }

    /// The address at which a host that a server named is reached.
    pub(crate) fn translate(&self, host: HostPort) -> HostPort {
        match &self.0 {
            Some(translate) => {
                let (name, port) = translate(&host.name, host.port);
                HostPort { name, port }
            }
            None => host,
        }
    }
}

impl Default for Access {
    fn default() -> Access {
        Access {
            login: Login::default(),
            database: 0,
            tls: None,
            timeouts: TIMEOUTS,
            addresses: AddressMap::default(),
        }
    }
}

impl Access {
    /// As `url` says, whose path names `database`, if it can and does.
    pub(crate) fn from_url(
        url: &StoreUrl,
        params: Params<'_>,
        database: Option<u16>,
    ) -> Result<Access> {
        let timeouts = TIMEOUTS.or_of_url(params)?;
        let addresses = params.text("address_map").map(AddressMap::read).transpose()?;
        Ok(Access {
            login: login_of(url, params)?,
            database: database_of(database, params)?,
            tls: tls_of(is_secure(url.scheme()), params)?,
            timeouts,
            addresses: addresses.unwrap_or_default(),
        })
    }
}

fn is_secure(scheme: &str) -> bool {
    scheme.starts_with("rediss") || scheme.starts_with("valkeys")
}

pub(crate) fn hosts<'a>(list: impl IntoIterator<Item = (&'a str, u16)>) -> Vec<HostPort> {
    list.into_iter().map(|(name, port)| HostPort { name: name.to_owned(), port }).collect()
}

pub(crate) fn hosts_of(url: &StoreUrl, port: u16) -> Result<Vec<HostPort>> {
    let hosts = url.hosts(port)?;
    Ok(hosts.into_iter().map(|(name, port)| HostPort { name, port }).collect())
}

fn login_of(url: &StoreUrl, params: Params<'_>) -> Result<Login> {
    let file = params.text("password_file");
    Login::of_parts(url.user(), url.password(), file, "password_file")?
        .ok_or_else(|| invalid("a user without a password; a password alone is :PASSWORD@host"))
}

/// The database in the path, or in the parameter.
fn database_of(path: Option<u16>, params: Params<'_>) -> Result<u16> {
    match (path, params.number("db")?) {
        (Some(_), Some(_)) => Err(invalid("db is given twice, in path and parameter")),
        (path, parameter) => Ok(path.or(parameter).unwrap_or(0)),
    }
}

pub(crate) fn database_in(text: &str) -> Result<Option<u16>> {
    if text.is_empty() {
        return Ok(None);
    }
    // Without the text: the rest of a password with a / in it may stand there.
    let wrong = |_| invalid("the path is not a database; expected a number, such as /0");
    text.parse().map(Some).map_err(wrong)
}

/// The parameters about TLS, for a scheme with or without it.
fn tls_of(is_tls: bool, params: Params<'_>) -> Result<Option<Tls>> {
    if is_tls {
        return Tls::from_params(params).map(Some);
    }
    let names = ["tls_ca", "tls_cert", "tls_key", "tls_server_name"];
    match names.iter().any(|name| params.text(name).is_some()) {
        true => {
            Err(invalid("tls_ca, tls_cert, tls_key and tls_server_name are for rediss:// only"))
        }
        false => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(end: &str) -> Result<Access> {
        let url = StoreUrl::parse(&format!("rediss://{end}"))?;
        let own = [&PARAMETERS[..], &["address_map"]].concat();
        Access::from_url(&url, url.params(&own)?, None)
    }

    #[test]
    fn addresses_are_translated_by_the_map() {
        let map = "10.0.0.1:7000=lb.example:17000,[fd00::2]=[::1]:2";
        let addresses = access(&format!("h?address_map={map}")).unwrap().addresses;
        let translate =
            |name: &str, port| addresses.translate(HostPort { name: name.to_owned(), port });
        assert_eq!(translate("10.0.0.1", 7000).to_string(), "lb.example:17000");
        assert_eq!(translate("fd00::2", 6379), HostPort { name: "::1".to_owned(), port: 2 });
        assert_eq!(translate("10.0.0.1", 7001).to_string(), "10.0.0.1:7001");
    }

    #[test]
    fn values_out_of_bounds_or_given_twice_are_refused() {
        for (end, says) in [
            ("h?address_map=a", "INTERNAL:PORT=EXTERNAL:PORT"),
            ("h?address_map=a=b,", "INTERNAL:PORT=EXTERNAL:PORT"),
            ("h?address_map=a:x=b", "INTERNAL:PORT=EXTERNAL:PORT"),
            ("h?address_map=a=b,a:6379=c", "a host twice"),
            ("h?connect_timeout=9ms", "connect_timeout must be 10ms to 1m"),
            ("h?answer_timeout=2m", "answer_timeout must be 10ms to 1m"),
            ("h?answer_timeout=5", "parameter answer_timeout=5: expected a duration"),
            (":p@h?password_file=x", "given twice"),
            ("me@h", "a user without a password"),
        ] {
            let error = access(end).unwrap_err().to_string();
            assert!(error.contains(says), "{end}: {error}");
        }
        let long = access("me@h?password_file=x&connect_timeout=5s&answer_timeout=3s").unwrap();
        assert_eq!(long.timeouts.connect, Duration::from_secs(5));
        assert_eq!(long.timeouts.answer, Duration::from_secs(3));
        assert!(matches!(long.login, Login::File { .. }));
    }
}
