//! The core under simulated stores: random clients, lost and late messages, cuts, pauses, crashes,
//! backends that panic, hang or block, and sessions that expire, all from a seed and under tokio's paused clock.
//!
//! Drivers are tested against real servers elsewhere. Here the stores are small enough to be right
//! beyond doubt, or wrong in one known way, and a year of trouble fits in a minute.
//!
//! `SIM_SEEDS=n` runs n seeds per kind of store, half of them new in each run; `SIM_SEED=n` that
//! seed only, with all its events if it fails. Whatever fails prints the command that repeats it.

#[path = "simulation/backends.rs"]
mod backends;
#[path = "mutants/catalogue.rs"]
mod catalogue;
#[path = "simulation/clients.rs"]
mod clients;
#[path = "simulation/closing.rs"]
mod closing;
#[path = "simulation/conditions.rs"]
mod conditions;
#[path = "simulation/dice.rs"]
mod dice;
#[path = "simulation/failing.rs"]
mod failing;
#[path = "simulation/faulty.rs"]
mod faulty;
#[path = "simulation/gate.rs"]
mod gate;
#[path = "simulation/history.rs"]
mod history;
#[path = "simulation/lease_backend.rs"]
mod lease_backend;
#[path = "simulation/lease_script.rs"]
mod lease_script;
#[path = "simulation/lease_server.rs"]
mod lease_server;
#[path = "simulation/leaving.rs"]
mod leaving;
#[path = "simulation/link.rs"]
mod link;
#[path = "mutants/mutant.rs"]
mod mutant;
#[path = "simulation/renewing.rs"]
mod renewing;
#[path = "simulation/run.rs"]
mod run;
#[path = "simulation/scene.rs"]
mod scene;
#[path = "simulation/scripted.rs"]
mod scripted;
#[path = "simulation/seeds.rs"]
mod seeds;
#[path = "simulation/session_acquisition.rs"]
mod session_acquisition;
#[path = "simulation/session_backend.rs"]
mod session_backend;
#[path = "simulation/session_server.rs"]
mod session_server;
#[path = "simulation/waiting.rs"]
mod waiting;
