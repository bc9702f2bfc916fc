//! `fencelock run`, `once` and `elect` as their users see them: real processes, real signals, real terminals.

mod config;
mod counter;
mod curator;
mod descendants;
mod elect;
mod environment;
mod exit_codes;
mod late;
mod loss;
mod once;
mod signals;
mod stores;
mod terminal;
mod versions;
mod watchdog;
