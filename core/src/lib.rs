//! The core of [fencelock](https://docs.rs/fencelock): everything that is the same for all stores.
//!
//! Users want the `fencelock` crate, which re-exports this one. Whoever writes a store implements
//! [`DistributedLock`]; waiting, renewing, cancelling and cleaning up are done here, once.

mod agenda;
mod backend;
mod batch;
mod claim;
mod clock;
mod connect;
mod connected;
pub mod crowd;
mod erased;
mod error;
mod guard;
mod hold;
mod keeper;
mod lifecycle;
mod link;
mod lock;
mod locks;
pub mod memory;
mod mode;
mod name;
mod observe;
mod options;
mod pace;
mod profile;
mod scratch;
mod seat;
mod token;
pub mod url;
mod validity;
mod wait;

pub use backend::{
    Acquisition, AttemptOutcome, DistributedLock, Participant, ParticipantId, ReleaseOutcome,
    RenewOutcome, Residue, Snapshot, WaiterCheck,
};
pub use claim::{Claim, IfBusy, LockKind, OwnerToken, WatchHandle};
pub use clock::BootClock;
pub use error::{Error, ErrorKind, LostReason, Operation, Result};
pub use guard::Guard;
pub use lock::{Lock, RwLock};
pub use locks::Locks;
pub use mode::{Mode, Permits};
pub use name::LockName;
pub use options::{Label, Settings, Ttl, parse_duration};
pub use profile::{Liveness, Modes, Order, Profile, Reach, RenewalPlan, TokenOrder};
pub use scratch::Scratch;
pub use token::{FencingToken, TokenEpoch};
pub use validity::{Clock, Moment, TokioClock, lease_end};
