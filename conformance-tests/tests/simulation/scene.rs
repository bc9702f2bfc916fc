//! The three kinds of store, as one run sees them: where processes connect, what can happen to
//! them, and what is left at the end.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::memory::Memory;
use fencelock_core::{DistributedLock, Label, Locks, Settings, Ttl};

use crate::lease::backend::LeaseBackend;
use crate::lease::server::LeaseServer;
use crate::mutant::Mutant;
use crate::session::backend::SessionBackend;
use crate::session::server::SessionServer;
use crate::world::conditions::Conditions;
use crate::world::dice::Dice;
use crate::world::faulty::{Faults, Faulty};
use crate::world::gate::Gate;
use crate::world::history::History;
use crate::world::link::Link;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Core's own memory store.
    Memory,
    /// The shape of Redis.
    Leases,
    /// The shape of ZooKeeper.
    Sessions,
}

impl Kind {
    pub(crate) const ALL: [Kind; 3] = [Kind::Memory, Kind::Leases, Kind::Sessions];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Kind::Memory => "memory",
            Kind::Leases => "leases",
            Kind::Sessions => "sessions",
        }
    }
}

pub(crate) enum Store {
    Memory(Memory),
    Leases(Arc<LeaseServer>),
    Sessions(Arc<SessionServer>),
}

pub(crate) struct Scene {
    pub(crate) store: Store,
    pub(crate) history: Arc<History>,
    conditions: Conditions,
    seed: u64,
    ttl: Duration,
    /// Of all clients of a memory store, which is one process.
    gate: Arc<Gate>,
}

/// One process and its connection.
pub(crate) struct Process {
    pub(crate) locks: Locks,
    pub(crate) gate: Arc<Gate>,
    /// The memory store has none: nothing can happen on the way.
    pub(crate) link: Option<Arc<Link>>,
    /// Where the conditions makes the backend fail.
    pub(crate) faults: Option<Arc<Faults>>,
}

impl Scene {
    pub(crate) fn new(
        kind: Kind,
        seed: u64,
        conditions: &Conditions,
        ttl: Duration,
        mutant: Option<Mutant>,
    ) -> Scene {
        let history = Arc::new(History::new(conditions.calm));
        // In a calm no waiter needs a check, and a rare one hides no lost wake-up.
        let check_every = Duration::from_secs(if conditions.calm { 60 } else { 1 });
        let store = match kind {
            Kind::Memory => Store::Memory(Memory::new()),
            Kind::Leases => {
                let server =
                    LeaseServer::new(history.clone(), mutant, check_every, conditions.rate);
                Store::Leases(Arc::new(server))
            }
            Kind::Sessions => {
                let timeout = ttl.max(Duration::from_secs(1));
                Store::Sessions(Arc::new(SessionServer::new(history.clone(), mutant, timeout)))
            }
        };
        Scene { store, history, conditions: conditions.clone(), seed, ttl, gate: Arc::default() }
    }

    pub(crate) fn connect(&self, process: u32) -> Process {
        let link = |in_order| Arc::new(Link::new(process, self.seed, &self.conditions, in_order));
        match &self.store {
            Store::Memory(memory) => {
                let locks = memory.locks(self.settings(process)).expect("inside a runtime");
                Process { locks, gate: self.gate.clone(), link: None, faults: None }
            }
            Store::Leases(server) => {
                let link = link(false);
                self.over(LeaseBackend::connect(server, link.clone()), link)
            }
            Store::Sessions(server) => {
                let link = link(true);
                self.over(SessionBackend::connect(server, link.clone()), link)
            }
        }
    }

    fn over<S: DistributedLock>(&self, backend: Arc<S>, link: Arc<Link>) -> Process {
        let (process, gate) = (link.process, link.gate.clone());
        let settings = self.settings(process);
        let faults = (self.conditions.backend_faults > 0).then(|| {
            let dice = Dice::of(&[self.seed, 11, u64::from(process)]);
            Faults::new(process, gate.clone(), self.history.clone(), &self.conditions, dice)
        });
        let locks = match &faults {
            Some(faults) => {
                let faulty = Faulty::new(backend, faults.clone());
                Locks::new(Arc::new(faulty), "sim://", settings)
            }
            None => Locks::new(backend, "sim://", settings),
        };
        let locks = locks.expect("inside a runtime");
        Process { locks, gate, link: Some(link), faults }
    }

    fn settings(&self, process: u32) -> Settings {
        let ttl = Ttl::new(self.ttl).expect("a sensible TTL");
        let settings =
            Settings::default().ttl(ttl).label(Label::new(&format!("process {process}")));
        settings.unreachable_after(Duration::from_secs(4)).expect("a sensible bound")
    }

    pub(crate) fn evict(&self, dice: &mut Dice, locks: usize) {
        let lock = usize::try_from(dice.below(locks as u64)).unwrap_or(0);
        match &self.store {
            Store::Memory(_) => {}
            Store::Leases(server) => server.evict(lock),
            Store::Sessions(server) => server.evict(lock),
        }
    }

    pub(crate) fn wipe(&self) {
        if let Store::Leases(server) = &self.store {
            server.wipe();
        }
    }

    /// Something is about to silence `process`.
    pub(crate) fn goes_silent(&self, process: u32, dice: &mut Dice) {
        if let Store::Sessions(server) = &self.store {
            let most = u64::try_from(server.timeout.as_millis()).unwrap_or(0) * 35 / 100;
            server.goes_silent(process, dice.millis(0..=most));
        }
    }

    pub(crate) fn cut_off(&self, process: u32, cut_off: bool) {
        if let Store::Sessions(server) = &self.store {
            server.cut_off(process, cut_off);
        }
    }

    pub(crate) fn leftovers(&self) -> Vec<String> {
        match &self.store {
            Store::Memory(memory) if memory.is_empty() => Vec::new(),
            Store::Memory(memory) => vec![format!("{memory:?}")],
            Store::Leases(server) => server.leftovers(),
            Store::Sessions(server) => server.leftovers(),
        }
    }
}
