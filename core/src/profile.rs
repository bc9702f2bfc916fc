//! What a store promises, and when it cannot: facts that the conformance suite checks, and the
//! words that the guarantee table is made of.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::mode::Mode;
use crate::options::in_words;

/// The promises of one connected store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The store's word, as in metrics: `memory`, `file`, `redis`, `redlock`, `zookeeper`.
    pub store: &'static str,
    /// Whom its locks exclude.
    pub reach: Reach,
    /// What frees the lock of a holder that died.
    pub liveness: Liveness,
    /// How held locks are renewed.
    pub renewal: RenewalPlan,
    /// The longest TTL that it keeps its promises for; [`Ttl::MAX`](crate::Ttl::MAX) where no TTL is too long.
    pub longest_ttl: Duration,
    /// In which order waiters are granted.
    pub order: Order,
    /// Which modes it has.
    pub modes: Modes,
    /// How long its fencing tokens rise.
    pub tokens: TokenOrder,
    /// When exclusion does not hold; empty where it always does.
    pub exclusion_fails_when: Cow<'static, [&'static str]>,
}

/// Whom a store's locks exclude.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The tasks of one process.
    Process,
    /// The processes of one machine.
    Machine,
    /// Everybody who reaches the servers.
    Network,
}

/// What frees the lock of a holder that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// The operating system, at once, when the process ends.
    Process,
    /// The end of the lease: its TTL after the last renewal.
    Lease,
    /// The end of the session, this long after the connection's last sign of life.
    Session(Duration),
}

/// How held locks are renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalPlan {
    /// Not by time, since their validity has no end; only a holder that was rung is asked about.
    None,
    /// Each at a third of its TTL.
    ThirdOfTtl,
    /// Each this often, whatever its TTL, as the heartbeat of a session that carries them all;
    /// those due together are one batch.
    Every(Duration),
}

impl RenewalPlan {
    /// How often a lock with this `ttl` is renewed.
    pub(crate) fn period(self, ttl: Duration) -> Option<Duration> {
        match self {
            RenewalPlan::None => None,
            RenewalPlan::ThirdOfTtl => Some(ttl / 3),
            RenewalPlan::Every(period) => Some(period),
        }
    }
}

/// In which order waiters are granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In the order of their arrival at the store.
    Arrival,
    /// In none.
    Any,
}

/// Which modes a store has. Exclusive is always there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modes {
    /// Readers.
    pub shared: bool,
    /// Permits.
    pub permits: bool,
}

impl Modes {
    /// Every mode.
    pub const ALL: Modes = Modes { shared: true, permits: true };
}

/// How long fencing tokens rise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenOrder {
    /// While the store's process lives.
    Process,
    /// Across restarts of processes, until the machine reboots: the data are in its memory.
    Boot,
    /// Across restarts, for as long as the store keeps its data.
    Data,
    /// Also when the store loses its data, unless its clock steps back at the same time.
    BeyondData,
}

/// Whom it excludes.
impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reach::Process => "tasks of one process",
            Reach::Machine => "processes of one machine",
            Reach::Network => "everybody who reaches the servers",
        })
    }
}

/// When a dead holder's lock is free.
impl fmt::Display for Liveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Liveness::Process => f.write_str("at once"),
            Liveness::Lease => f.write_str("after its TTL"),
            Liveness::Session(timeout) => write!(f, "after the session timeout ({timeout:?})"),
        }
    }
}

/// How waiters are granted.
impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Order::Arrival => "in order of arrival",
            Order::Any => "in no order",
        })
    }
}

/// How long they rise.
impl fmt::Display for TokenOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TokenOrder::Process => "while the process lives",
            TokenOrder::Boot => "across crashes, until the machine reboots",
            TokenOrder::Data => "across crashes and reboots, with its data",
            TokenOrder::BeyondData => "even if the store loses its data",
        })
    }
}

impl Profile {
    /// Refuses what the store does not have.
    pub(crate) fn require(&self, mode: Mode, ttl: Duration) -> Result<()> {
        let has = match mode {
            Mode::Exclusive => true,
            Mode::Shared => self.modes.shared,
            Mode::Permits(_) => self.modes.permits,
        };
        if has {
            return self.require_ttl(ttl);
        }
        Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the {} store has no {} locks; see docs/guarantees.md",
                self.store,
                mode.as_str()
            ),
        ))
    }
    /// Refuses a TTL that the store cannot keep its promises for.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`].
    pub fn require_ttl(&self, ttl: Duration) -> Result<()> {
        if ttl <= self.longest_ttl {
            return Ok(());
        }
        let (ttl, longest) = (in_words(ttl), in_words(self.longest_ttl));
        Err(Error::new(
            ErrorKind::InvalidArgument,
            format!(
                "a TTL of {ttl} is longer than this {} store allows; expected at most {longest}",
                self.store
            ),
        ))
    }
}
