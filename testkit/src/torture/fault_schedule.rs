//! The order of the faults: all of them, shuffled, again and again.

use std::io;

use fencelock_conformance::ServerClock;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};

use super::options::Options;
use crate::deployments::{Deployment, Fault};

pub(super) struct FaultSchedule {
    all: Vec<Option<Fault>>,
    left: Vec<Option<Fault>>,
    of_clients: Vec<Fault>,
    random: StdRng,
}

/// The faults of one round.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundFaults {
    /// The fault of the servers.
    pub(super) to_servers: Option<Fault>,
    /// The fault of the clients meanwhile.
    pub(super) to_clients: Option<Fault>,
    /// Decides when and how far clocks step.
    pub(super) seed: u64,
}

impl RoundFaults {
    pub(super) fn faults(&self) -> Vec<Fault> {
        self.to_servers.into_iter().chain(self.to_clients).collect()
    }
}

impl FaultSchedule {
    pub(super) fn shuffled(
        options: &Options,
        deployment: &dyn Deployment,
    ) -> io::Result<FaultSchedule> {
        let mut of_clients = vec![Fault::ClientsFrozen];
        of_clients.extend(ServerClock::is_possible().then_some(Fault::ClientClockStepped));
        of_clients.extend(deployment.shares_between_processes().then_some(Fault::ClientsKilled));
        let clocks = (!deployment.clocks().is_empty()).then_some(Fault::ServerClockStepped);
        let there = of_clients.iter().copied().chain(deployment.faults()).chain(clocks);
        let mut all: Vec<Option<Fault>> = match &options.only[..] {
            [] => there.map(Some).collect(),
            only => {
                let there: Vec<Fault> = there.collect();
                let wanted = only.iter().filter(|fault| there.contains(fault));
                wanted.copied().map(Some).collect()
            }
        };
        of_clients.retain(|fault| all.contains(&Some(*fault)));
        if all.is_empty() {
            return Err(io::Error::other("this store has none of these faults"));
        }
        // A round without any fault shows what the others are compared with.
        all.extend(options.only.is_empty().then_some(None));
        let random = StdRng::seed_from_u64(options.seed);
        Ok(FaultSchedule { all, left: Vec::new(), of_clients, random })
    }

    pub(super) fn next_round(&mut self) -> RoundFaults {
        if self.left.is_empty() {
            self.left.clone_from(&self.all);
            self.left.shuffle(&mut self.random);
        }
        let Some(fault) = self.left.pop().flatten() else { return RoundFaults::default() };
        if self.of_clients.contains(&fault) {
            return RoundFaults { to_clients: Some(fault), ..RoundFaults::default() };
        }
        let also = self.random.random_range(0..3) == 0;
        let to_clients = self.of_clients.choose(&mut self.random).copied().filter(|_| also);
        RoundFaults { to_servers: Some(fault), to_clients, seed: self.random.random() }
    }
}
