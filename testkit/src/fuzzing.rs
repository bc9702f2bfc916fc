//! What must hold for all input from outside, whatever it is: the property tests and the fuzz
//! targets of every store ask the same.

use std::error::Error as _;
use std::sync::{Mutex, PoisonError};

use fencelock_core::url::StoreUrl;
use fencelock_core::{LockName, Result};

/// What no other part of a URL is called.
const SECRET: &str = "hunter2-CORRECT-horse";

/// Any two names have different places in a store, and equal ones the same: `encode` makes the
/// place of a key.
///
/// # Panics
/// When that is not so.
pub fn names_are_kept_apart<P: PartialEq>(one: &str, two: &str, encode: impl Fn(&str) -> P) {
    for prefix in ["", "lock:"] {
        let place = |name| LockName::with_prefix(prefix, name).map(|name| encode(name.key()));
        if let (Ok(here), Ok(there)) = (place(one), place(two)) {
            assert_eq!(one == two, here == there, "{one:?} and {two:?} under {prefix:?}");
        }
    }
}

/// Reads a URL by `read`, as connecting does, and finds no password in what is shown of it, nor of
/// an error. A password stands wherever `text` has a `$`.
///
/// # Panics
/// When one is shown.
pub fn a_url_keeps_its_secret(text: &str, read: impl Fn(&StoreUrl) -> Result<()>) {
    let text = text.replace('$', SECRET);
    let shown = all_that_is_shown(&text, read);
    // In other places it is not a password: a host of that name has to be shown.
    let is_password = format!(":{SECRET}@");
    let front = text.split('?').next().unwrap_or_default();
    if text.matches(SECRET).count() == 1 && front.contains(&is_password) {
        assert!(!shown.contains(SECRET), "{text:?} is shown as {shown}");
    }
}

/// As [`a_url_keeps_its_secret`], with `password` for the `$` of `good`, and each slip of the pen
/// that leaves a password where something else is meant: before, after and around it, and as the
/// value of a parameter of `good`.
///
/// # Panics
/// When it is shown.
pub fn a_slip_keeps_the_secret(good: &str, password: &str, read: impl Fn(&StoreUrl) -> Result<()>) {
    let (front, rest) = good.split_once('$').expect("a password");
    let rest = rest.strip_prefix('@').expect("an @ after the password");
    let mut slips = Vec::new();
    for at in ["", "%40", "@@", " @", " ", ":", "/", "//", "#", ",", "&", "?", "=", "%2540"] {
        slips.push(format!("{front}{password}{at}{rest}"));
    }
    let user = front.trim_end_matches(':');
    for colon in ["%3A", "", ";", "::", ":/", "@:", "?", "=", " "] {
        slips.push(format!("{user}{colon}{password}@{rest}"));
        slips.push(format!("{user}{colon}{password}%40{rest}"));
    }
    let (scheme, login) = front.split_once("://").expect("a scheme");
    for colon in [":/", "", ":", "//", "%3A//", ":///", ":////"] {
        slips.push(format!("{scheme}{colon}{login}{password}@{rest}"));
    }
    let (hosts, query) = rest.split_once('?').unwrap_or((rest, ""));
    slips.push(format!("{scheme}://{hosts}:{password}"));
    slips.push(format!("{scheme}://{password}:@{hosts}"));
    for pair in query.split('&') {
        let name = pair.split('=').next().unwrap_or_default();
        slips.push(format!("{front}x@{hosts}?{name}={password}"));
        slips.push(format!("{front}x@{hosts}?{name}x={password}"));
        slips.push(format!("{front}x@{hosts}?{password}={name}"));
        slips.push(format!("{front}x@{hosts}?{password}"));
    }
    for slip in slips {
        let shown = all_that_is_shown(&slip, &read);
        assert!(!shown.contains(password), "{slip:?} is shown as {shown}");
    }
}

/// Of a URL, and of the error that reading it ends with, with its causes.
fn all_that_is_shown(text: &str, read: impl Fn(&StoreUrl) -> Result<()>) -> String {
    let url = match StoreUrl::parse(text) {
        Err(error) => return format!("{error} {error:?}"),
        Ok(url) => url,
    };
    match read(&url) {
        Err(error) => {
            let error = error.with_store(&url.to_string().into());
            let mut shown = format!("{url} {url:?} {error} {error:?}");
            let mut source = error.source();
            while let Some(cause) = source {
                shown += &format!(" {cause} {cause:?}");
                source = cause.source();
            }
            shown
        }
        Ok(()) => format!("{url} {url:?}"),
    }
}

/// Every parameter that a URL has is taken or refused: one that is unknown, and one that is given
/// twice, makes it an error. `good` has parameters already, and is taken by `read`.
///
/// # Panics
/// When one is overlooked.
pub fn no_parameter_is_overlooked(good: &str, more: &str, read: impl Fn(&StoreUrl) -> Result<()>) {
    let read = |text: &str| StoreUrl::parse(text).and_then(|url| read(&url));
    read(good).expect("a good URL");
    let (_, query) = good.split_once('?').expect("parameters");
    for pair in query.split('&') {
        let (name, _) = pair.split_once('=').expect("name and value");
        assert!(read(&format!("{good}&{pair}")).is_err(), "{pair} twice");
        assert!(read(&format!("{good}&{name}{more}x=1")).is_err(), "{name}{more}x");
    }
}

/// A grant is stated by the reply it is read from: its number stands there.
///
/// # Panics
/// When it does not.
pub fn grants_are_stated(reply: &[u8], granted: impl IntoIterator<Item = u64>) {
    let text = String::from_utf8_lossy(reply);
    // Larger ones are not distinguished.
    const LARGEST: u64 = (1 << 56) - 1;
    for number in granted.into_iter().filter(|number| *number < LARGEST) {
        assert!(text.contains(&number.to_string()), "{number} was not stated by {text:?}");
    }
}

/// What garbage must not do to this process: from [`watch`](Harm::watch) on no thread panics, and
/// its memory does not grow by what is only announced.
#[derive(Debug)]
pub struct Harm {
    peak: u64,
}

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// In KiB. An announced length is of gigabytes.
const MUCH: u64 = 512 * 1024;

impl Harm {
    /// Begins to look.
    #[must_use]
    pub fn watch() -> Harm {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.lock().unwrap_or_else(PoisonError::into_inner).push(panic.to_string());
            usual(panic);
        }));
        Harm { peak: peak() }
    }

    /// Nothing of it has happened.
    ///
    /// # Panics
    /// When it has.
    pub fn assert_none(&self) {
        let panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner).clone();
        assert!(panics.is_empty(), "{panics:?}");
        let grown = peak() - self.peak;
        assert!(grown < MUCH, "the process has grown by {grown} KiB");
    }
}

/// The most memory that this process ever had, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|peak| peak.trim().trim_end_matches("kB").trim().parse().ok()).unwrap_or(0)
}
