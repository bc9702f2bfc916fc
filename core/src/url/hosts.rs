//! The hosts of a URL, and whether their text may be shown.
//!
//! The text contains a password when the `@` after it is missing or percent-encoded. So a text that
//! is not plainly a host is never repeated, neither by `Display` nor by an error.

use std::net::Ipv6Addr;

use crate::backend::invalid;
use crate::types::error::Result;

/// The hosts of a list such as `h1:6379,h2`, as [`StoreUrl::hosts`](super::StoreUrl::hosts) reads them.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when there is none, or one is not `HOST` or `HOST:PORT`.
pub fn hosts_in(list: &str, port: u16) -> Result<Vec<(String, u16)>> {
    if list.is_empty() {
        return Err(invalid("missing host: expected HOST or HOST:PORT"));
    }
    let parts = list.split(',').enumerate();
    parts
        .map(|(index, text)| {
            let (name, given) = split(text).ok_or_else(|| not_a_host(index, text))?;
            Ok((name.to_owned(), given.unwrap_or(port)))
        })
        .collect()
}

/// Whether `authority` contains only hosts and ports.
pub(super) fn is_plain(authority: &str) -> bool {
    authority.is_empty() || authority.split(',').all(|text| split(text).is_some())
}

fn not_a_host(index: usize, text: &str) -> crate::Error {
    let number = index + 1;
    if text.split_once(':').is_some_and(|(name, port)| is_name(name) && is_name(port)) {
        return invalid(format!(
            "invalid port of host {number} of the URL (not shown, since it may be a password): \
             expected HOST:PORT with a number up to 65535, and USER:PASSWORD only before an @"
        ));
    }
    invalid(format!(
        "invalid host {number} of the URL (not shown, since it may contain a password): expected \
         SCHEME://USER:PASSWORD@HOST:PORT, with / ? # @ percent-encoded in the user and password \
         only, and an IPv6 address in brackets"
    ))
}

/// Splits `HOST` or `HOST:PORT`. The brackets of an IPv6 address are removed.
fn split(text: &str) -> Option<(&str, Option<u16>)> {
    let (name, rest) = match text.strip_prefix('[') {
        Some(text) => text.split_once(']').filter(|(address, _)| is_ipv6(address))?,
        None => {
            let end = text.find(':').unwrap_or(text.len());
            let (name, rest) = text.split_at(end);
            (is_name(name).then_some(name)?, rest)
        }
    };
    match rest.strip_prefix(':') {
        None => rest.is_empty().then_some((name, None)),
        // `parse` accepts a `+`.
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some((name, Some(port.parse().ok()?)))
        }
        Some(_) => None,
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || "-._".contains(c))
}

/// Whether `text` is an IPv6 address, with a zone for a link-local one: `fe80::1%eth0`.
fn is_ipv6(text: &str) -> bool {
    let (address, zone) = text.split_once('%').unwrap_or((text, "0"));
    address.parse::<Ipv6Addr>().is_ok() && is_name(zone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_with_their_ports() {
        for (text, hosts) in [
            ("h", vec![("h", 1)]),
            (
                "h1:6379,h-2_x.local,10.0.0.1:7",
                vec![("h1", 6379), ("h-2_x.local", 1), ("10.0.0.1", 7)],
            ),
            ("[::1]:7000,[fe80::1%eth0]", vec![("::1", 7000), ("fe80::1%eth0", 1)]),
        ] {
            let hosts: Vec<_> =
                hosts.into_iter().map(|(name, port)| (name.to_owned(), port)).collect();
            assert_eq!(hosts_in(text, 1).unwrap(), hosts);
            assert!(is_plain(text));
        }
    }

    #[test]
    fn what_is_not_a_host_is_not_repeated() {
        for text in [
            "me:hunter2%40h:6379",
            ":hunter2%40h",
            "hunter2%40h",
            "me:hunter2h",
            "hunter2:h",
            "hunter2 h",
            "h:",
            "h:70000",
            "h:+1",
            "[hunter2]",
            "[::1]hunter2",
            "[::1%hunter2%40]",
            "::1",
            "a,,b",
            "a,hunter2:b",
        ] {
            let error = hosts_in(text, 1).unwrap_err().to_string();
            assert!(error.contains("HOST:PORT") && !error.contains("hunter2"), "{text}: {error}");
            assert!(!is_plain(text), "{text}");
        }
        assert!(hosts_in("a,hunter2:b", 1).unwrap_err().to_string().contains("host 2 of"));
    }
}
