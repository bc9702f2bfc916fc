//! The core of [fencelock](https://docs.rs/fencelock): everything that is the same for all stores.
//!
//! Users want the `fencelock` crate, which re-exports this one. Whoever writes a store implements
//! [`DistributedLock`]; waiting, renewing, cancelling and cleaning up are done here, once.

mod acquire;
mod backoff;
mod batch;
pub mod batching;
mod boot_clock;
mod claim;
mod cleanup;
mod client;
mod connect;
mod connection;
mod distributed_lock;
mod error;
mod guard;
mod hold;
mod lock;
mod locks;
pub mod memory;
mod mode;
mod moment;
mod name;
mod options;
mod profile;
mod schedule;
mod scratch;
mod telemetry;
mod token;
pub mod url;
mod wait;
mod worker;

pub use boot_clock::BootClock;
pub use claim::{Claim, IfBusy, LockKind, OwnerToken, WatchHandle};
pub use distributed_lock::{
    Acquisition, AttemptOutcome, DistributedLock, Participant, ParticipantId, ReleaseOutcome,
    RenewOutcome, Report, Residue, Snapshot, WaiterCheck,
};
pub use error::{Error, ErrorKind, LostReason, Operation, Result};
pub use guard::Guard;
pub use lock::{Lock, RwLock};
pub use locks::Locks;
pub use mode::{Mode, Permits};
pub use moment::{Clock, Moment, TokioClock, lease_end};
pub use name::LockName;
pub use options::{Label, Settings, Ttl, parse_duration};
pub use profile::{Liveness, Modes, Order, Profile, Reach, RenewalPlan, TokenOrder};
pub use scratch::Scratch;
pub use token::{FencingToken, TokenEpoch};
