//! The parameters of a URL, parsed into their types.
//!
//! Errors name the parameter and not its value, which may contain a password by mistake, or the rest
//! of one that contains a `?`.

use std::fmt;
use std::time::Duration;

use super::mistake::did_you_mean;
use crate::backend::invalid;
use crate::types::error::Result;
use crate::types::options::{Label, Settings, Ttl, parse_duration};
use crate::types::token::TokenEpoch;

/// The parameters of every store.
pub(super) const COMMON: [&str; 7] = [
    "ttl",
    "prefix",
    "unreachable_after",
    "token_epoch",
    "label",
    "metrics_by_lock",
    "local_handoffs",
];

/// Checked parameters of a URL.
#[derive(Clone, Copy)]
pub struct Params<'a> {
    pub(super) params: &'a [(String, String)],
    /// What holds where no parameter says otherwise.
    pub(super) defaults: &'a Settings,
}

impl fmt::Debug for Params<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.params.iter().map(|(name, _)| name)).finish()
    }
}

impl<'a> Params<'a> {
    /// The text of parameter `name`.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&'a str> {
        self.params.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// Parameter `name` as a duration.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if it is not a duration.
    pub fn duration(&self, name: &str) -> Result<Option<Duration>> {
        // Without the cause, which repeats the text.
        let parse = |text| {
            parse_duration(text).map_err(|_| {
                let expected = "a duration: a number with a unit, such as 500ms, 2s or 1m30s";
                wrong_value(name, text, expected)
            })
        };
        self.text(name).map(parse).transpose()
    }

    /// Parameter `name` as a number of an unsigned type.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if it is not
    /// a number or does not fit.
    pub fn number<T: TryFrom<u64>>(&self, name: &str) -> Result<Option<T>> {
        let parse = |text: &str| {
            let number = text.parse::<u64>().ok().and_then(|number| T::try_from(number).ok());
            number.ok_or_else(|| {
                let max = u64::MAX >> (64 - 8 * size_of::<T>());
                wrong_value(name, text, &format!("a whole number from 0 to {max}"))
            })
        };
        self.text(name).map(parse).transpose()
    }

    /// Parameter `name` as `true` or `false`, also written as `1` or `0`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if it is neither.
    pub fn flag(&self, name: &str) -> Result<Option<bool>> {
        let parse = |text| match text {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(wrong_value(name, text, "true or false")),
        };
        self.text(name).map(parse).transpose()
    }

    /// The texts of two parameters that make sense only together.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if one of them is missing.
    pub fn both(&self, one: &str, other: &str) -> Result<Option<(&'a str, &'a str)>> {
        match (self.text(one), self.text(other)) {
            (Some(one), Some(other)) => Ok(Some((one, other))),
            (None, None) => Ok(None),
            _ => Err(invalid(format!("{one} and {other} must be given together"))),
        }
    }

    /// Parameter `ttl`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) if it is not a duration, or out of range.
    pub fn ttl(&self) -> Result<Option<Ttl>> {
        let ttl = self.duration("ttl")?.map(Ttl::new).transpose();
        ttl.map_err(|error| of_parameter("ttl", &error))
    }

    /// The settings common to all stores: those that the URL sets, and for the others the program's
    /// own.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for a value out of its range.
    pub fn settings(&self) -> Result<Settings> {
        let mut settings = self.defaults.clone();
        if let Some(ttl) = self.ttl()? {
            settings = settings.ttl(ttl);
        }
        if let Some(prefix) = self.text("prefix") {
            settings = settings.prefix(prefix);
        }
        if let Some(bound) = self.duration("unreachable_after")? {
            settings = settings
                .unreachable_after(bound)
                .map_err(|error| of_parameter("unreachable_after", &error))?;
        }
        if let Some(epoch) = self.number("token_epoch")? {
            let epoch = TokenEpoch::new(epoch);
            settings = settings.token_epoch(epoch.map_err(|e| of_parameter("token_epoch", &e))?);
        }
        if let Some(text) = self.text("label") {
            settings = settings.label(Label::of_this_process().with(text));
        }
        if let Some(by_lock) = self.flag("metrics_by_lock")? {
            settings = settings.metrics_by_lock(by_lock);
        }
        if let Some(text) = self.text("local_handoffs") {
            let most = text.parse().map_err(|_| {
                wrong_value("local_handoffs", text, "a whole number from 1 to 1024")
            })?;
            settings = settings
                .local_handoffs(most)
                .map_err(|error| of_parameter("local_handoffs", &error))?;
        }
        Ok(settings)
    }
}

/// The error about a value that a setting does not take.
fn of_parameter(name: &str, error: &crate::Error) -> crate::Error {
    invalid(format!("parameter {name}: {}", error.message()))
}

/// An error about the value of the known parameter `name`.
fn wrong_value(name: &str, text: &str, expected: &str) -> crate::Error {
    // The usual mistake is a number without a unit, or a number that is too large.
    let is_short_number = text.len() <= 6 && text.bytes().all(|byte| byte.is_ascii_digit());
    let given = if is_short_number { format!("={text}") } else { String::new() };
    invalid(format!("parameter {name}{given}: expected {expected}"))
}

/// An error about the parameter `name`, which is not one of `known`.
pub(super) fn unknown<'a>(
    scheme: &str,
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> crate::Error {
    let list = known.clone().collect::<Vec<_>>().join(", ");
    let hint = did_you_mean(name, known);
    invalid(format!("unknown parameter{}{hint}; {scheme}:// takes: {list}", quoted(name)))
}

/// An error about the parameter `name`, which is given more than once.
pub(super) fn repeated(name: &str) -> crate::Error {
    invalid(format!("parameter{} is given twice", quoted(name)))
}

/// An error about the parameter `name`, which has no value.
pub(super) fn without_value(name: &str) -> crate::Error {
    let quoted = quoted(name);
    let name = if quoted.is_empty() { "name" } else { name };
    invalid(format!("parameter{quoted} has no value; expected {name}=VALUE"))
}

/// The name with a space before it, if it looks like a parameter's name.
fn quoted(name: &str) -> String {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
    match (1..=24).contains(&name.len()) && name.bytes().all(fits) {
        true => format!(" {name:?}"),
        false => String::new(),
    }
}
