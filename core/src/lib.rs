//! The core of [fencelock](https://docs.rs/fencelock): everything that is the same for all stores.
//!
//! Applications use the `fencelock` crate, which re-exports this one. The author of a backend
//! implements [`DistributedLock`]; waiting, renewing, cancelling and cleaning up are done here, once.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod acquire;
mod all;
pub mod backend;
mod cells;
mod claim;
mod client;
mod guard;
mod guards;
mod handoff;
mod lock;
mod locks;
pub mod memory;
mod owner;
mod recipes;
mod renewal;
mod store;
pub mod sync;
mod telemetry;
mod time;
mod types;
pub mod url;

pub use all::{All, all};
pub use cells::{Cell, CellValue, CellVersion, CellWatch};
#[doc(hidden)]
pub use cells::{ExpiredCell, ExpiredCells};
pub use guard::Guard;
pub use guards::Guards;
pub use lock::{Lock, RwLock};
pub use locks::{Health, Locks};
pub use owner::Owner;
pub use recipes::barrier::{Barrier, Trip};
pub use recipes::counter::Counter;
pub use recipes::election::observing::Observer;
pub use recipes::election::{Election, Leader, Term};
pub use recipes::ids::Ids;
pub use recipes::latch::Latch;
pub use recipes::once::{Claimed, Once, Run, Tick};
pub use store::batching;
pub use store::cell_store::{CellStore, Cells, Content, Keep, Notifier, Stamp};
pub use store::check::Check;
pub use store::claim::{Claim, IfBusy, LockKind, OwnerToken, WatchHandle};
pub use store::distributed_lock::{
    Acquisition, AttemptOutcome, DistributedLock, Participant, ParticipantId, ReleaseOutcome,
    RenewOutcome, Residue, Snapshot, WaiterCheck,
};
pub use store::profile::{
    CellDurability, Liveness, Modes, Order, Profile, Reach, RenewalPlan, TokenOrder,
};
pub use store::scratch::Scratch;
pub use time::boot_clock::BootClock;
pub use time::moment::{Clock, Moment, TokioClock, lease_end};
pub use types::error::{Error, ErrorKind, LostReason, Operation, Result};
pub use types::mode::{Mode, Permits};
pub use types::name::LockName;
pub use types::options::{Label, Settings, Ttl, parse_duration};
pub use types::token::{FencingToken, TokenEpoch};
