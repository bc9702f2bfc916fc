//! What a store guarantees, and when it cannot: facts that the conformance suite checks, and the
//! texts of the guarantee table.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::types::error::{Error, ErrorKind, Result, invalid};
use crate::types::mode::Mode;
use crate::types::options::format_duration;

/// The guarantees of one connected store.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// // What this store cannot promise as it is configured, for the log at the start of a service.
/// for reason in &*locks.profile().exclusion_fails_when {
///     eprintln!("exclusion fails when {reason}");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The store's name in metrics: `memory`, `file`, `postgres`, `redis`, `redlock`,
    /// `zookeeper`.
    pub store: &'static str,
    /// Which clients its locks exclude.
    pub reach: Reach,
    /// What frees the lock of a holder that died.
    pub liveness: Liveness,
    /// How held locks are renewed.
    pub renewal: RenewalPlan,
    /// The longest TTL for which the guarantees hold; [`Ttl::MAX`](crate::Ttl::MAX) where no TTL is
    /// too long.
    pub longest_ttl: Duration,
    /// The order in which waiters are granted.
    pub order: Order,
    /// The supported modes.
    pub modes: Modes,
    /// Whether a writer can become a reader without letting the lock go:
    /// [`Guard::downgrade`](crate::Guard::downgrade).
    pub downgrade: bool,
    /// How far its fencing tokens increase.
    pub tokens: TokenOrder,
    /// The most acquisitions of one process for one grant, whatever
    /// [`Lock::local_handoffs`](crate::Lock::local_handoffs) asks for: the tokens that a store reserves.
    /// 1 where it reserves none.
    pub max_local_handoffs: u32,
    /// How durable its cells are, of which latches, barriers, counters, `once` and elections are made.
    /// `None` where it has none.
    pub cells: Option<CellDurability>,
    /// When exclusion fails; empty where it never does.
    pub exclusion_fails_when: Cow<'static, [&'static str]>,
}

/// Which clients a store's locks exclude.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// use fencelock::Reach;
/// let reach = locks.profile().reach;
/// if reach != Reach::Network {
///     eprintln!("other machines are not excluded: the locks exclude {reach}");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The tasks of one process.
    Process,
    /// The processes of one machine.
    Machine,
    /// All clients that reach the servers.
    Network,
}

/// What frees the lock of a holder that died.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// use fencelock::Liveness;
/// println!("a dead holder's lock is free {}", locks.profile().liveness);
/// assert_eq!(locks.profile().liveness, Liveness::Lease);
/// # Ok(()) }
/// ```
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
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// use fencelock::RenewalPlan;
/// assert_eq!(locks.profile().renewal, RenewalPlan::ThirdOfTtl);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewalPlan {
    /// Not by time, since their validity has no end; only a holder that was woken is checked.
    None,
    /// Each at a third of its TTL.
    ThirdOfTtl,
    /// Each at this interval, whatever its TTL, such as the heartbeat of a session that carries all
    /// locks. Renewals due together are one batch.
    Every(Duration),
}

/// The order in which waiters are granted.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// use fencelock::Order;
/// assert_eq!(locks.profile().order, Order::Arrival);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// In the order in which they arrived at the store.
    Arrival,
    /// In no defined order.
    Any,
}

/// The modes that a store supports, besides exclusive.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// if !locks.profile().modes.permits {
///     eprintln!("choose another store: this one has no semaphores");
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modes {
    /// Shared, for readers.
    pub shared: bool,
    /// Permits of a semaphore.
    pub permits: bool,
}

impl Modes {
    /// Every mode.
    pub const ALL: Modes = Modes { shared: true, permits: true };
}

/// How far fencing tokens increase.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # use fencelock_core as fencelock;
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// println!("fencing tokens rise {}", locks.profile().tokens);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenOrder {
    /// While the store's process lives.
    Process,
    /// Across restarts of processes, until the machine reboots: the data is in its memory.
    Boot,
    /// Across restarts, for as long as the store keeps its data.
    Data,
    /// Also when the store loses its data, unless its clock steps back at the same time.
    BeyondData,
}

/// How long what was written to a cell stays there.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// match locks.profile().cells {
///     Some(durability) => println!("counters live {durability}"),
///     None => println!("this store has no counters"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellDurability {
    /// While the store's process lives.
    Process,
    /// Across restarts of processes, until the machine reboots: the data is in its memory.
    Boot,
    /// As the store's own data: as its persistence and replication are configured, the last writes may be
    /// lost with a power failure or a failover.
    Data,
    /// Every confirmed write is on disk, on a majority of the servers where there are several; a store
    /// of one machine syncs only what is kept for ever.
    Synced,
}

/// How long a confirmed write lives.
impl fmt::Display for CellDurability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CellDurability::Process => "while the process lives",
            CellDurability::Boot => "across crashes, until the machine reboots",
            CellDurability::Data => "with the store's data, except for its last writes",
            CellDurability::Synced => "with the store's data, once confirmed",
        })
    }
}

/// Which clients are excluded.
impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reach::Process => "tasks of one process",
            Reach::Machine => "processes of one machine",
            Reach::Network => "all clients of the servers",
        })
    }
}

/// When the lock of a crashed holder is freed.
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

/// How far tokens increase.
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
    /// Checks that the store supports `mode` and `ttl`.
    pub(crate) fn require(&self, mode: Mode, ttl: Duration) -> Result<()> {
        let has = match mode {
            Mode::Exclusive => true,
            Mode::Shared => self.modes.shared,
            Mode::Permits(_) => self.modes.permits,
        };
        if has {
            return self.require_ttl(ttl);
        }
        let (store, mode) = (self.store, mode.as_str());
        let message = format!("the {store} store has no {mode} locks; see docs/guarantees.md");
        Err(Error::new(ErrorKind::Unsupported, message))
    }

    /// Checks that the guarantees hold for `ttl`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`].
    pub fn require_ttl(&self, ttl: Duration) -> Result<()> {
        if ttl <= self.longest_ttl {
            return Ok(());
        }
        let (ttl, longest) = (format_duration(ttl), format_duration(self.longest_ttl));
        let store = self.store;
        Err(invalid(format!(
            "a TTL of {ttl} is longer than this {store} store allows; expected at most {longest}"
        )))
    }
}
