//! A store's URL in its parts.

use std::fmt;

use percent_encoding::percent_decode_str;

use super::{hosts, params};
use crate::backend::invalid;
use crate::types::error::Result;
use crate::types::options::Settings;
use params::Params;

/// A store's URL in its parts: `scheme://[user[:password]@]authority[/path][?name=value&…]`.
///
/// The authority is kept whole, since it may contain several hosts. `Display` and `Debug` show
/// neither the password nor any parameter's value, nor a part that contains a password when the `@`
/// after it was forgotten.
#[derive(Clone)]
pub struct StoreUrl {
    scheme: String,
    user: Option<String>,
    password: Option<String>,
    authority: String,
    path: String,
    params: Vec<(String, String)>,
    defaults: Settings,
}

impl StoreUrl {
    /// Parses `url`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) without a `scheme://`, for a parameter without `=`, for one
    /// given twice, for percent-encoding that is invalid or not UTF-8, and for white space at an end.
    pub fn parse(url: &str) -> Result<StoreUrl> {
        if url.trim() != url {
            // As part of a directory or a prefix it would name another store, without an error.
            return Err(invalid(
                "invalid store URL: white space at its beginning or end, such as the newline of the \
                 file that it was read from; remove it, or percent-encode it in a name",
            ));
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(|| without_scheme(url))?;
        let scheme_fits = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        if scheme.is_empty() || !scheme.chars().all(scheme_fits) {
            return Err(invalid(
                "invalid store URL: expected a scheme before ://, such as redis:// or file://, and nothing \
                 before it, such as a name or quotation marks",
            ));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        if !authority.is_empty() && (path.contains('@') || query.contains('@')) {
            // A password with a / or ? in it: its rest must not be taken for a path.
            return Err(invalid(
                "invalid store URL: unexpected @ after the host; percent-encode / ? # @ in a user or \
                 password, and an @ in a path or parameter",
            ));
        }
        let (login, authority) = match authority.rsplit_once('@') {
            Some((login, authority)) => (Some(login), authority),
            None => (None, authority),
        };
        let (user, password) = match login {
            None => (None, None),
            Some(login) => match login.split_once(':') {
                Some((user, password)) => (Some(user), Some(password)),
                None => (Some(login), None),
            },
        };
        let url = StoreUrl {
            scheme: scheme.to_ascii_lowercase(),
            user: user.filter(|user| !user.is_empty()).map(decode).transpose()?,
            password: password.map(decode).transpose()?,
            authority: authority.to_owned(),
            path: decode(path)?,
            params: Vec::new(),
            defaults: Settings::default(),
        };
        match parse_query(query) {
            Ok(params) => Ok(StoreUrl { params, ..url }),
            Err(error) => Err(error.with_store(&url.to_string().into())),
        }
    }

    /// Sets the settings that hold where no parameter says otherwise.
    #[must_use]
    pub fn with_defaults(mut self, settings: Settings) -> StoreUrl {
        self.defaults = settings;
        self
    }

    /// The scheme, in lower case.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The user, if there is one.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password, if there is one. Keep it out of logs.
    #[must_use]
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Whether it has a password or another secret, such as `auth=digest:USER:PASSWORD`: parameters that are named
    /// `auth`, or end with `password`.
    #[must_use]
    pub fn has_secret(&self) -> bool {
        let is_secret = |name: &str| name == "auth" || name.ends_with("password");
        self.password.is_some() || self.params.iter().any(|(name, _)| is_secret(name))
    }

    /// The host or hosts as given: `h1:6379,h2`.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The hosts of the authority with their ports, `port` where none is given: `h1:6379,h2` or
    /// `[::1]:7000`, without the brackets.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when there is none, or one is not `HOST` or `HOST:PORT`.
    pub fn hosts(&self, port: u16) -> Result<Vec<(String, u16)>> {
        hosts::hosts_in(&self.authority, port)
    }

    /// The path with its leading `/`, or nothing.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The parameters, each of which must be common to all stores or one of `own`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) that names an unknown parameter, the known ones and the nearest.
    pub fn params(&self, own: &[&str]) -> Result<Params<'_>> {
        self.params_or_advice(own, &[])
    }

    /// As [`params`](StoreUrl::params), for a store whose URLs are written for other libraries too: an error
    /// about one of their parameters ends with its `advice`, as in `("sslcert", "here it is tls_cert=FILE")`.
    ///
    /// # Errors
    /// As [`params`](StoreUrl::params).
    pub fn params_or_advice(&self, own: &[&str], advice: &[(&str, &str)]) -> Result<Params<'_>> {
        let known = params::COMMON.iter().chain(own).copied();
        if let Some((name, _)) =
            self.params.iter().find(|(name, _)| !known.clone().any(|known| known == name))
        {
            return Err(match advice.iter().find(|(others, _)| others == name) {
                Some((_, advice)) => invalid(format!("unknown parameter {name:?}: {advice}")),
                None => params::unknown(&self.scheme, name, known),
            });
        }
        Ok(self.given_params())
    }

    /// The settings common to all stores, without a check of the store's own parameters.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a value out of its range.
    pub fn settings(&self) -> Result<Settings> {
        self.given_params().settings()
    }

    /// The parameters, known or not: for a program that needs one of them, and has the store check the others.
    #[must_use]
    pub fn given_params(&self) -> Params<'_> {
        Params { params: &self.params, defaults: &self.defaults }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        let is_plain = |text: &&str| text.chars().all(|c| c.is_alphanumeric() || "-._".contains(c));
        // A user without a password may be the password.
        let with_password = self.password.as_deref().is_some_and(|password| !password.is_empty());
        match (self.user.as_deref(), &self.password) {
            (None, None) => {}
            (None, Some(_)) => f.write_str(":***@")?,
            (Some(user), Some(_)) if with_password && is_plain(&user) => write!(f, "{user}:***@")?,
            (Some(_), _) => f.write_str("***@")?,
        }
        // A password without the `@` after it becomes part of the host, and then of the path.
        if !hosts::is_plain(&self.authority) {
            return f.write_str("***");
        }
        f.write_str(&self.authority)?;
        match self.path.rsplit_once('@') {
            // One slash too many before `USER:PASSWORD@HOST`.
            Some((_, rest)) if self.authority.is_empty() => write!(f, "/***@{rest}"),
            // A port in the wrong place, or a text that was taken for one.
            None if self.authority.is_empty() || !self.path.contains(':') => {
                f.write_str(&self.path)
            }
            _ => f.write_str("/***"),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The error for a text without `://`. It may contain a password in any place, so none of it is
/// repeated.
fn without_scheme(text: &str) -> crate::Error {
    const EXPECTED: &str =
        "expected scheme://…, such as redis://HOST:6379 or file:///var/lib/locks";
    let hint = match (text, text.rsplit_once(':')) {
        ("", _) => return invalid(format!("the store URL is empty: {EXPECTED}")),
        (text, _) if text.starts_with('/') => "; a directory is given as file:///DIR",
        (_, Some((_, "6379"))) => "; a Redis server is given as redis://HOST:6379",
        (_, Some((_, "26379"))) => "; a sentinel is given as redis+sentinel://HOST:26379/SERVICE",
        (_, Some((_, "5432"))) => {
            "; a PostgreSQL server is given as postgres://USER@HOST:5432/DATABASE"
        }
        (_, Some((_, "2181"))) => "; a ZooKeeper server is given as zk://HOST:2181",
        _ => "",
    };
    invalid(format!("invalid store URL: {EXPECTED}{hint}"))
}

fn parse_query(query: &str) -> Result<Vec<(String, String)>> {
    let mut params: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(params::without_value(&decode(pair)?));
        };
        let name = decode(name)?;
        if params.iter().any(|(given, _)| *given == name) {
            return Err(params::repeated(&name));
        }
        params.push((name, decode(value)?));
    }
    Ok(params)
}

/// The message shows nothing of the text, which may be a password.
fn decode(text: &str) -> Result<String> {
    let mut escapes = text.split('%').skip(1);
    let is_escape =
        |it: &str| it.get(..2).is_some_and(|hex| hex.bytes().all(|it| it.is_ascii_hexdigit()));
    if !escapes.all(is_escape) {
        return Err(invalid(
            "invalid store URL: a % begins a percent-encoded byte, such as %2F; write %25 for % itself",
        ));
    }
    match percent_decode_str(text).decode_utf8() {
        Ok(decoded) => Ok(decoded.into_owned()),
        Err(_) => Err(invalid("the URL's percent-encoding is not UTF-8")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn parses_the_parts_of_a_url() {
        let url = "redis://me:p%40ss@h1:6379,h2/3?ttl=2s&prefix=";
        let url = StoreUrl::parse(url).unwrap();
        assert_eq!(url.scheme(), "redis");
        assert_eq!((url.user(), url.password()), (Some("me"), Some("p@ss")));
        assert_eq!((url.authority(), url.path()), ("h1:6379,h2", "/3"));
        let settings = url.params(&[]).unwrap().settings().unwrap();
        assert_eq!(settings.ttl.get(), Duration::from_secs(2));
        assert_eq!(&*settings.prefix, "");
    }

    #[test]
    fn unknown_names_are_errors_that_help() {
        let url = StoreUrl::parse("mem://?tll=2s").unwrap();
        let error = url.params(&["fsync"]).unwrap_err().to_string();
        assert!(error.contains("did you mean ttl?"), "{error}");
        let all = "ttl, prefix, unreachable_after, token_epoch, label, metrics_by_lock, \
                   local_handoffs, fsync";
        assert!(error.contains(all), "{error}");
        for (bad, says) in [
            ("mem", "scheme://"),
            ("mem://?ttl", "ttl=VALUE"),
            ("mem://?Left", "name=VALUE"),
            ("mem://?ttl=2s&ttl=3s", "\"ttl\" is given twice"),
            ("mem://?ttl=2s&tt%6c=3s", "\"ttl\" is given twice"),
            ("mem://?%74tl=2s&ttl=3s", "\"ttl\" is given twice"),
            ("redis://me:hunter/2@host/0", "percent-encode"),
            ("redis://me:hunter?2=1@host/0", "percent-encode"),
            ("redis://me:p@hunter/2@host/0", "percent-encode"),
            ("redis://me:p@hunter?w=2@host/0", "percent-encode"),
            ("redis://host/0?label=me@home", "percent-encode"),
            ("redis://host/0?label=50%hunter", "write %25"),
            ("redis://:hunter%@host/0", "write %25"),
            ("mem://?prefix=%ff", "UTF-8"),
            ("redis://:hunter2@host\n", "white space"),
            ("file:///var/lib/locks\n", "white space"),
            (" mem://?prefix=a", "white space"),
        ] {
            let error = StoreUrl::parse(bad).unwrap_err().to_string();
            assert!(error.contains(says) && !error.contains("hunter"), "{bad}: {error}");
        }
        for (bad, says) in [
            ("mem://?ttl=30", "parameter ttl=30: expected a duration"),
            ("mem://?token_epoch=x", "whole number"),
            ("mem://?token_epoch=128", "0 to 127"),
            ("mem://?ttl=1ms", "out of range"),
        ] {
            let url = StoreUrl::parse(bad).unwrap();
            let error = url.params(&[]).unwrap().settings().unwrap_err().to_string();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }

    proptest! {
        /// Where it was not recognised as one.
        #[test]
        fn a_password_behind_one_slash_too_many_is_never_shown(password in "[a-zA-Z0-9]{12,30}") {
            for url in [format!("redis:///me:{password}@host/0"), format!("zk:////:{password}@h")] {
                let shown = format!("{}", StoreUrl::parse(&url).unwrap());
                prop_assert!(!shown.contains(&password), "{}", shown);
            }
        }

        #[test]
        fn nothing_panics(text in ".{0,80}") {
            if let Ok(url) = StoreUrl::parse(&text) {
                let _ = url.params(&["x"]).map(|params| params.settings());
            }
        }
    }
}
