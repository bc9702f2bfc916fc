//! What a behaviour needs of a store and of its harness. Without it the behaviour is ignored, and
//! the report gives the reason; it never counts as passed.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fencelock_core::{Liveness, Order, Profile, RenewalPlan, TokenOrder};

use crate::harness::{Backdoor, Store};

/// Something that not every store, or not every harness, has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Need {
    /// Readers.
    Shared,
    /// Permits.
    Permits,
    /// Waiters are granted in the order of their arrival.
    Arrival,
    /// A writer can become a reader.
    Downgrade,
    /// A grant reserves tokens for hand-offs within a process.
    LocalHandoffs,
    /// Values with compare-and-swap.
    Cells,
    /// Silence frees a lock: a lease or session ends although its process lives.
    Silence,
    /// A lease of its own for each lock, so that its TTL decides.
    Lease,
    /// Holds are renewed by time.
    Renewal,
    /// Fencing tokens rise although the store lost its data.
    TokensBeyondData,
    /// A process whose wall clock can be moved.
    ClientClock,
    /// A process as on a machine that booted at another time.
    BootTime,
    /// A backdoor.
    Backdoor(Backdoor),
}

impl Need {
    /// Why this store cannot be tested for it, if so.
    pub(crate) fn lacking(self, profile: &Profile, store: &dyn Store) -> Option<String> {
        let has = match self {
            Need::Shared => profile.modes.shared,
            Need::Permits => profile.modes.permits,
            Need::Arrival => profile.order == Order::Arrival,
            Need::Downgrade => profile.downgrade,
            Need::LocalHandoffs => profile.max_local_handoffs > 1,
            Need::Cells => profile.cells.is_some(),
            Need::Silence => profile.liveness != Liveness::Process,
            Need::Lease => profile.liveness == Liveness::Lease,
            Need::Renewal => profile.renewal != RenewalPlan::None,
            Need::TokensBeyondData => profile.tokens == TokenOrder::BeyondData,
            Need::ClientClock => crate::time::clock::ServerClock::is_possible(),
            Need::BootTime => crate::time::clock::booted_earlier(Duration::ZERO).is_some(),
            Need::Backdoor(backdoor) => store.backdoors().contains(&backdoor),
        };
        if has {
            return None;
        }
        let name = profile.store;
        Some(match self {
            Need::Shared => format!("the {name} store has no shared mode"),
            Need::Permits => format!("the {name} store has no permits"),
            Need::Arrival => format!("the {name} store promises no order"),
            Need::Downgrade => format!("the {name} store cannot make a writer a reader"),
            Need::LocalHandoffs => format!("the {name} store reserves no tokens for hand-offs"),
            Need::Cells => format!("the {name} store has no cells"),
            Need::Silence => format!("the {name} store frees when a process ends, not by time"),
            Need::Lease => format!("the {name} store has no lease for each lock"),
            Need::Renewal => format!("the {name} store's holds need no renewal"),
            Need::TokensBeyondData => {
                format!("the {name} store's tokens rise only while it keeps its data")
            }
            Need::ClientClock => "this machine has no C compiler for the clock's shim".to_owned(),
            Need::BootTime => {
                "this machine gives no process a boot time of its own (unshare --time)".to_owned()
            }
            Need::Backdoor(backdoor) => store.why_not(backdoor),
        })
    }
}

/// What the stores of one harness lack, as the first of them that was opened has answered: to be told so again,
/// a behaviour would open one more, with all the servers that it starts.
#[derive(Debug, Default)]
pub(crate) struct Lacking(Mutex<HashMap<Need, Option<String>>>);

impl Lacking {
    /// Why a behaviour with these needs is ignored, as far as it is known without a store.
    pub(crate) fn known(&self, needs: &[Need]) -> Option<String> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        needs.iter().find_map(|need| known.get(need)?.clone())
    }

    /// The same, of an open store.
    pub(crate) fn of(
        &self,
        needs: &[Need],
        profile: &Profile,
        store: &dyn Store,
    ) -> Option<String> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for need in needs {
            known.entry(*need).or_insert_with(|| need.lacking(profile, store));
        }
        needs.iter().find_map(|need| known.get(need)?.clone())
    }
}
