//! Which store, from one URL: a scheme table, and parameters that are all known or an error.
//!
//! Swallowed or misspelt settings cost people their locks, so nothing is ignored here: an unknown
//! scheme names the ones there are, an unknown parameter the nearest spelling.

mod hosts;
mod params;

use std::fmt;

use percent_encoding::percent_decode_str;

pub use crate::connect::{Connecting, Scheme, connect, connect_lazy, connect_within};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Settings;

pub use params::Params;

pub(crate) fn unknown_scheme(schemes: &[Scheme], given: &str) -> Error {
    let names = || schemes.iter().flat_map(|scheme| scheme.names.iter().copied());
    let list: Vec<String> = names().map(|name| format!("{name}://")).collect();
    let list = if list.is_empty() { "none".to_owned() } else { list.join(", ") };
    Error::new(
        ErrorKind::InvalidArgument,
        format!(
            "no store for {given}://{}; this program was built with: {list}",
            did_you_mean_scheme(given, names)
        ),
    )
}

/// A scheme that is `given` and more, as redis+unix is unix and more, or is nearly it.
fn did_you_mean_scheme<'a, I: Iterator<Item = &'a str>>(
    given: &str,
    names: impl Fn() -> I,
) -> String {
    match names().find(|name| name.split(['+', '-']).any(|part| part == given)) {
        Some(name) => format!(" (did you mean {name}?)"),
        None => did_you_mean(given, names()),
    }
}

/// A store's URL in its parts: `scheme://[user[:password]@]authority[/path][?name=value&…]`.
///
/// The authority is left whole, since several hosts may stand in it. `Display` and `Debug` show
/// neither the password nor any parameter's value, nor a part in which a password stands when the
/// `@` behind it was forgotten.
#[derive(Clone)]
pub struct StoreUrl {
    scheme: String,
    user: Option<String>,
    password: Option<String>,
    authority: String,
    path: String,
    params: Vec<(String, String)>,
}

impl StoreUrl {
    /// Takes `url` apart.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] without a `scheme://`, for a parameter without `=`, for one
    /// given twice, and for percent-encoding that is not UTF-8.
    pub fn parse(url: &str) -> Result<StoreUrl> {
        let Some((scheme, rest)) = url.split_once("://") else {
            // The text may hold a password in a place nobody foresaw: it is not repeated.
            return Err(invalid(
                "invalid store URL: expected scheme://…, such as redis://HOST or file:///var/lib/jobs/locks",
            ));
        };
        let scheme_fits = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        if scheme.is_empty() || !scheme.chars().all(scheme_fits) {
            return Err(invalid(
                "invalid store URL: expected a scheme, such as redis:// or file://",
            ));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        if !authority.is_empty() && (path.contains('@') || query.contains('@')) {
            // A password with a / or ? in it: the rest of it must not be taken for a path.
            return Err(invalid(
                "unexpected \"@\" after the host; percent-encode / ? # @ in a user or password, and \
                 @ in a path or parameter",
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
        Ok(StoreUrl {
            scheme: scheme.to_ascii_lowercase(),
            user: user.filter(|user| !user.is_empty()).map(decode).transpose()?,
            password: password.map(decode).transpose()?,
            authority: authority.to_owned(),
            path: decode(path)?,
            params: parse_query(query)?,
        })
    }

    /// The scheme, in lower case.
    #[must_use]
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The user, if one is named.
    #[must_use]
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The password, if there is one. Not for logs.
    #[must_use]
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Host or hosts, as given: `h1:6379,h2`.
    #[must_use]
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// The hosts of the authority with their ports, `port` where none is given: `h1:6379,h2` or
    /// `[::1]:7000`, without the brackets.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when there is none, or one is not `HOST` or `HOST:PORT`.
    pub fn hosts(&self, port: u16) -> Result<Vec<(String, u16)>> {
        hosts::parse(&self.authority, port)
    }

    /// The path with its leading `/`, or nothing.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The parameters, after checking that each is common to all stores or one of `own`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] that names an unknown one, the known ones and the nearest.
    pub fn params(&self, own: &[&str]) -> Result<Params<'_>> {
        let known = params::COMMON.iter().chain(own).copied();
        if let Some((name, _)) =
            self.params.iter().find(|(name, _)| !known.clone().any(|known| known == name))
        {
            return Err(params::unknown(&self.scheme, name, known));
        }
        Ok(Params { params: &self.params })
    }

    /// The settings common to all stores, whatever other parameters there are.
    pub(crate) fn settings(&self) -> Result<Settings> {
        Params { params: &self.params }.settings()
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://", self.scheme)?;
        let is_plain = |text: &&str| text.chars().all(|c| c.is_alphanumeric() || "-._".contains(c));
        // A name without a password may be the password.
        let with_password = self.password.as_deref().is_some_and(|password| !password.is_empty());
        match (self.user.as_deref(), &self.password) {
            (None, None) => {}
            (None, Some(_)) => f.write_str(":***@")?,
            (Some(user), Some(_)) if with_password && is_plain(&user) => write!(f, "{user}:***@")?,
            (Some(_), _) => f.write_str("***@")?,
        }
        // A password without its `@` runs into the host, and from there into the path.
        if !hosts::is_plain(&self.authority) {
            return f.write_str("***");
        }
        f.write_str(&self.authority)?;
        match self.path.rsplit_once('@') {
            // One slash too many before `USER:PASSWORD@HOST`.
            Some((_, rest)) if self.authority.is_empty() => write!(f, "/***@{rest}"),
            // A port that came too late, or what was taken for one.
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

fn parse_query(query: &str) -> Result<Vec<(String, String)>> {
    let mut params: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(invalid("a URL parameter has no value; expected name=value"));
        };
        let name = decode(name)?;
        if params.iter().any(|(given, _)| *given == name) {
            return Err(params::repeated(&name));
        }
        params.push((name, decode(value)?));
    }
    Ok(params)
}

fn decode(text: &str) -> Result<String> {
    match percent_decode_str(text).decode_utf8() {
        Ok(text) => Ok(text.into_owned()),
        Err(_) => Err(invalid("the URL's percent-encoding is not UTF-8")),
    }
}

/// The hosts of a list such as `h1:6379,h2`, as [`StoreUrl::hosts`] reads them.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] when there is none, or one is not `HOST` or `HOST:PORT`.
pub fn hosts_in(list: &str, port: u16) -> Result<Vec<(String, u16)>> {
    hosts::parse(list, port)
}

fn did_you_mean<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near = known.map(|known| (strsim::damerau_levenshtein(given, known), known)).min();
    match near {
        Some((distance, known)) if distance <= 3 && distance < known.len() => {
            format!(" (did you mean {known}?)")
        }
        _ => String::new(),
    }
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn takes_a_url_apart() {
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
        assert!(error.contains("ttl, prefix, unreachable_after, token_epoch, fsync"), "{error}");
        for (bad, says) in [
            ("mem", "scheme://"),
            ("mem://?ttl", "name=value"),
            ("mem://?ttl=2s&ttl=3s", "given twice"),
            ("mem://?ttl=2s&tt%6c=3s", "given twice"),
            ("redis://me:hunter/2@host/0", "percent-encode"),
            ("redis://me:hunter?2=1@host/0", "percent-encode"),
            ("redis://me:p@hunter/2@host/0", "percent-encode"),
            ("redis://me:p@hunter?w=2@host/0", "percent-encode"),
            ("redis://host/0?label=me@home", "percent-encode"),
            ("mem://?prefix=%ff", "UTF-8"),
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
        #[test]
        fn a_password_is_never_shown(password in "[a-zA-Z0-9]{12,30}", user in "[a-z]{0,5}") {
            let url = format!("redis://{user}:{password}@host/0?ttl=2s&token={password}");
            let url = StoreUrl::parse(&url).unwrap();
            let shown = format!("{url} {url:?}");
            prop_assert!(!shown.contains(&password));
            let error = url.params(&[]).unwrap_err();
            let shown = format!("{error} {error:?}");
            prop_assert!(!shown.contains(&password));
        }

        /// Also where it was not recognised as one.
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
