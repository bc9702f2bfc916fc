//! Claims, and their identities in the scripts.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
    Permits { n: i64, limit: i64 },
}

impl Mode {
    /// Its share of a group's sum.
    pub(crate) fn share(self) -> i64 {
        if let Mode::Permits { n, .. } = self { n } else { 1 }
    }

    /// The letter of the group it belongs to.
    pub(crate) fn group(self) -> &'static str {
        match self {
            Mode::Exclusive => "x",
            Mode::Shared => "s",
            Mode::Permits { .. } => "p",
        }
    }

    fn parse(text: &str) -> Option<Mode> {
        match text {
            "x" => Some(Mode::Exclusive),
            "s" => Some(Mode::Shared),
            _ => {
                let (n, limit) = text.strip_prefix('p')?.split_once('/')?;
                Some(Mode::Permits { n: n.parse().ok()?, limit: limit.parse().ok()? })
            }
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mode::Exclusive => f.write_str("x"),
            Mode::Shared => f.write_str("s"),
            Mode::Permits { n, limit } => write!(f, "p{n}/{limit}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The identity.
    pub(crate) text: String,
    pub(crate) mode: Mode,
    /// In ms.
    pub(crate) ttl: i64,
    pub(crate) process: String,
    pub(crate) owner: String,
}

impl Claim {
    pub(crate) fn new(mode: Mode, ttl: i64, process: &str, owner: u64) -> Claim {
        let owner = format!("{owner:08x}");
        let text = format!("{mode} {ttl} {process} {owner} a label");
        Claim { text, mode, ttl, process: process.into(), owner }
    }

    pub(crate) fn parse(text: &str) -> Option<Claim> {
        let mut words = text.splitn(5, ' ');
        let mode = Mode::parse(words.next()?)?;
        let ttl = words.next()?.parse().ok()?;
        let (process, owner) = (words.next()?.into(), words.next()?.into());
        words.next()?;
        Some(Claim { text: text.into(), mode, ttl, process, owner })
    }

    /// The push that notifies it of a grant.
    pub(crate) fn granted(&self, token: i64) -> String {
        format!("{} {token}", self.owner)
    }
}
