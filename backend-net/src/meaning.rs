//! What an error of a server means: a row of a store's table.

use fencelock_core::ErrorKind;

/// What the connection does about an error, besides reporting it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Nothing: the server is reachable, and its reply is complete.
    None,
    /// Replace the connection: it is dead, or its server is no longer the right one. The new one is looked for again.
    Reconnect,
    /// Count it: after several in a row the connection is replaced.
    CountTimeout,
    /// Replace it: a pooler is between, in whose sessions named statements are not where they were prepared.
    Unnamed,
}

/// What an error means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// Its kind for the user.
    pub kind: ErrorKind,
    /// What the connection does.
    pub remedy: Remedy,
    /// The explanation before the server's own text.
    pub advice: &'static str,
}

/// An error of this kind.
#[must_use]
pub const fn meaning(kind: ErrorKind, remedy: Remedy, advice: &'static str) -> Meaning {
    Meaning { kind, remedy, advice }
}

/// A retry succeeds later, at this server.
#[must_use]
pub const fn later(advice: &'static str) -> Meaning {
    meaning(ErrorKind::Unreachable, Remedy::None, advice)
}

/// A retry succeeds later, perhaps at another server.
#[must_use]
pub const fn elsewhere(advice: &'static str) -> Meaning {
    meaning(ErrorKind::Unreachable, Remedy::Reconnect, advice)
}

/// A retry gives the same.
#[must_use]
pub const fn refused(advice: &'static str) -> Meaning {
    meaning(ErrorKind::Refused, Remedy::None, advice)
}
