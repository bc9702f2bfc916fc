//! `fencelock run` as its users see it: real processes, real signals, real terminals.

mod config;
mod counter;
mod curator;
mod descendants;
mod environment;
mod exit_codes;
mod loss;
mod signals;
mod stores;
mod support;
mod terminal;
mod watchdog;
