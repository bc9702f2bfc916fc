//! Which faults come, in which order: all of them, shuffled, again and again.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::rigs::{Fault, Rig};

pub(super) struct Deck {
    all: Vec<Option<Fault>>,
    left: Vec<Option<Fault>>,
    of_clients: Vec<Fault>,
    random: StdRng,
}

/// The faults of one round.
#[derive(Clone, Debug, Default)]
pub(super) struct Hand {
    /// What is done to the servers.
    pub(super) to_servers: Option<Fault>,
    /// What is done to the clients meanwhile.
    pub(super) to_clients: Option<Fault>,
}

impl Hand {
    pub(super) fn faults(&self) -> Vec<Fault> {
        self.to_servers.into_iter().chain(self.to_clients).collect()
    }
}

impl Deck {
    pub(super) fn shuffled(seed: u64, rig: &dyn Rig) -> Deck {
        let mut of_clients = vec![Fault::ClientsFrozen];
        of_clients.extend(rig.shares_between_processes().then_some(Fault::ClientsKilled));
        // A round without any fault shows what the others are compared with.
        let mut all = vec![None];
        all.extend(of_clients.iter().copied().chain(rig.faults()).map(Some));
        Deck { all, left: Vec::new(), of_clients, random: StdRng::seed_from_u64(seed) }
    }

    pub(super) fn draw(&mut self) -> Hand {
        if self.left.is_empty() {
            self.left.clone_from(&self.all);
            self.left.shuffle(&mut self.random);
        }
        let Some(fault) = self.left.pop().flatten() else { return Hand::default() };
        if self.of_clients.contains(&fault) {
            return Hand { to_servers: None, to_clients: Some(fault) };
        }
        let also = self.random.random_range(0..3) == 0;
        let which = self.random.random_range(0..self.of_clients.len());
        let to_clients = also.then_some(self.of_clients[which]);
        Hand { to_servers: Some(fault), to_clients }
    }
}
