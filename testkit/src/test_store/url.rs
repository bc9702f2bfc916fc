//! Changes to store URLs, as texts: what is not changed, such as a password, stays as it is.

use std::net::IpAddr;

use fencelock_core::url::StoreUrl;
use fencelock_core::{Result, Settings};

use crate::proxy::{Framing, framing};

/// The prefix of the names of locks that `url` sets, or the default one.
///
/// # Errors
/// When its escapes are invalid: the test's own prefix takes its place, so that nobody else would say.
pub(crate) fn prefix(url: &str) -> Result<String> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let Some(pair) = query.split('&').find(|pair| pair.starts_with("prefix=")) else {
        return Ok(Settings::default().key_prefix().to_owned());
    };
    let alone = StoreUrl::parse(&format!("x://?{pair}"))?;
    let params = alone.params(&[])?;
    Ok(params.text("prefix").unwrap_or_default().to_owned())
}

/// `url` with these hosts in place of its own.
pub(crate) fn at_hosts(url: &str, hosts: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    let login = authority.rsplit_once('@').map(|(login, _)| format!("{login}@"));
    format!("{scheme}://{}{hosts}{rest}", login.unwrap_or_default())
}

/// Whether clients of this Postgres store do without TLS: by its parameter, or because its servers are on this
/// machine. Behind a proxy they all would be, and their clients would send the password in the clear.
fn is_plain_postgres(url: &str) -> bool {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    match query.split('&').find_map(|pair| pair.strip_prefix("sslmode=")) {
        Some(mode) => mode == "disable",
        None => {
            let hosts = StoreUrl::parse(url).and_then(|parsed| parsed.hosts(5432));
            let is_here = |host: &str| {
                host == "localhost"
                    || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            };
            hosts.is_ok_and(|hosts| hosts.iter().all(|(host, _)| is_here(host)))
        }
    }
}

/// The servers before which a proxy can be put, and their protocol: not those whose certificates or redirections name
/// their addresses.
pub(crate) fn proxied(url: &str) -> Result<Option<(Framing, Vec<String>)>> {
    let parsed = StoreUrl::parse(url)?;
    let (framing, port): (Framing, u16) = match parsed.scheme() {
        "postgres" | "postgresql" if is_plain_postgres(url) => (framing::postgres, 5432),
        "redis" | "redlock" => (framing::resp, 6379),
        "zk" | "zookeeper" if !url.contains("tls") => (framing::zookeeper, 2181),
        _ => return Ok(None),
    };
    let address = |(host, port): (String, u16)| match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    Ok(Some((framing, parsed.hosts(port)?.into_iter().map(address).collect())))
}

#[cfg(test)]
mod tests {
    use fencelock_conformance::with_params;

    use super::*;

    #[test]
    fn only_the_hosts_are_replaced() {
        for (url, proxied) in [
            ("redis://redis:redis@redis:1/0?x=redis", "redis://redis:redis@p:2/0?x=redis"),
            ("redlock://a:1,b,c", "redlock://p:2"),
            ("zk://a?session=2s", "zk://p:2?session=2s"),
        ] {
            assert_eq!(at_hosts(url, "p:2"), proxied);
        }
    }

    #[test]
    fn only_a_plain_postgres_can_be_behind_a_proxy() {
        for (url, is_plain) in [
            ("postgres://u:p@127.0.0.1:1,[::1],localhost:3/db?ttl=3s", true),
            ("postgres://u:p@db.example/db?ttl=3s&sslmode=disable", true),
            ("postgres://u:p@127.0.0.1,db.example/db", false),
            ("postgres://u:p@127.0.0.1/db?sslmode=verify-full", false),
            ("postgres://u:p@127.0.0.1/db?sslmode=", false),
        ] {
            assert_eq!(is_plain_postgres(url), is_plain, "{url}");
        }
    }

    #[test]
    fn parameters_are_replaced_or_added() {
        let url = with_params("redis://:p%40@h/0?ttl=3s&prefix=a%2F", &[("prefix", "a/b:")]);
        assert_eq!(url, "redis://:p%40@h/0?ttl=3s&prefix=a%2Fb:");
        assert_eq!(prefix(&url).unwrap(), "a/b:");
        assert_eq!(with_params("mem://", &[]), "mem://");
        assert_eq!(prefix("mem://?ttl=3s").unwrap(), "lock:");
        assert!(prefix("redis://h?prefix=a%zz").unwrap_err().to_string().contains("%25"));
    }
}
