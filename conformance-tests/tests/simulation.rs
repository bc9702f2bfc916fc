//! The core under simulated stores: random clients, lost and late messages, cuts, pauses, crashes,
//! backends that panic, hang or block, and sessions that expire, all from a seed and under tokio's
//! paused clock.
//!
//! Backends are tested against real servers elsewhere. Here the stores are small enough to be right
//! beyond doubt, or wrong in one known way, and a year of trouble fits in a minute.
//!
//! `SIM_SEEDS=n` runs n seeds per kind of store, half of them new in each run; `SIM_SEED=n` that
//! seed only, with all its events if it fails. Whatever fails prints the command that repeats it.

#[path = "simulation/backends.rs"]
mod backends;
#[path = "mutants/catalogue.rs"]
mod catalogue;
#[path = "simulation/world/clients.rs"]
mod clients;
#[path = "simulation/scenes/closing.rs"]
mod closing;
#[path = "simulation/world/conditions.rs"]
mod conditions;
#[path = "simulation/world/dice.rs"]
mod dice;
#[path = "simulation/scenes/failing.rs"]
mod failing;
#[path = "simulation/world/faulty.rs"]
mod faulty;
#[path = "simulation/world/gate.rs"]
mod gate;
#[path = "simulation/world/history.rs"]
mod history;
#[path = "simulation/lease/backend.rs"]
mod lease_backend;
#[path = "simulation/lease/script.rs"]
mod lease_script;
#[path = "simulation/lease/server.rs"]
mod lease_server;
#[path = "simulation/scenes/leaving.rs"]
mod leaving;
#[path = "simulation/world/link.rs"]
mod link;
#[path = "mutants/mutant.rs"]
mod mutant;
#[path = "simulation/scenes/renewing.rs"]
mod renewing;
#[path = "simulation/run.rs"]
mod run;
#[path = "simulation/scene.rs"]
mod scene;
#[path = "simulation/scenes/scripted.rs"]
mod scripted;
#[path = "simulation/scenes/seeds.rs"]
mod seeds;
#[path = "simulation/session/acquisition.rs"]
mod session_acquisition;
#[path = "simulation/session/backend.rs"]
mod session_backend;
#[path = "simulation/session/server.rs"]
mod session_server;
#[path = "simulation/scenes/waiting.rs"]
mod waiting;
