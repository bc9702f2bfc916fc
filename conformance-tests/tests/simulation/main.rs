//! The core under simulated stores: random clients, lost and late messages, cuts, pauses, crashes,
//! backends that panic, hang or block, and sessions that expire, all from a seed and under tokio's
//! paused clock.
//!
//! Backends are tested against real servers elsewhere. Here the stores are small enough to be right
//! beyond doubt, or wrong in one known way, and a year of trouble fits in a minute.
//!
//! `SIM_SEEDS=n` runs n seeds per kind of store, half of them new in each run; `SIM_SEED=n` that
//! seed only, with all its events if it fails. Whatever fails prints the command that repeats it.

mod backends;
#[allow(dead_code)] // Its own tests, which run with the mutants.
#[path = "../mutants/catalogue.rs"]
mod catalogue;
#[path = "../mutants/mutant.rs"]
mod mutant;
mod run;
mod scene;

/// A store with leases, the shape of Redis.
mod lease {
    pub(crate) mod backend;
    pub(crate) mod script;
    pub(crate) mod server;
}

/// What the tests do: random runs, and directed ones.
mod scenes {
    mod closing;
    mod failing;
    mod leaving;
    mod renewing;
    pub(crate) mod scripted;
    mod seeds;
    mod waiting;
}

/// A store with sessions, the shape of ZooKeeper.
mod session {
    pub(crate) mod acquisition;
    pub(crate) mod backend;
    pub(crate) mod server;
}

/// What happens to the stores and to their clients.
mod world {
    pub(crate) mod clients;
    pub(crate) mod conditions;
    pub(crate) mod dice;
    pub(crate) mod faulty;
    pub(crate) mod gate;
    pub(crate) mod history;
    pub(crate) mod link;
}
