//! Redlock's rules, checked by trying everything: all orders in which a few messages can arrive,
//! be lost or late, with nodes that lose their data and clocks that differ.
//!
//! What a quorum is decided by is not written here again: the model calls the pure functions of
//! `fencelock_redis::redlock` that the store calls, and writes down only the node's side, which is
//! Lua. With all rules no run overlaps and no token falls (`holds.rs`); without any one of them one
//! does (`breaks.rs`), which shows that the model can see what the rule is for.
//!
//! What is bounded: three nodes, two clients, the numbers of rounds, ticks and faults in
//! `settings.rs`, one late message for each client and node. What is simplified: an answer is heard
//! when it is given or never; a client is heard late by deciding late.

#![allow(clippy::unwrap_used)]

mod breaks;
mod client;
mod fingerprint;
mod holds;
mod rules;
mod server;
mod settings;
mod state;
mod steps;
mod units;

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use crate::rules::{Dropped, Setting};
use crate::steps::{FALL, OVERLAP};

/// Tries all that `setting` allows. At least `floor` states: a setting in which less can happen than
/// was meant would pass as well. Each of `happens` does, somewhere.
fn holds(setting: Setting, floor: usize, happens: &[&'static str]) {
    let start = Instant::now();
    let checked = setting.checker().threads(2).finish_when(HasDiscoveries::AnyFailures);
    let checker = checked.spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{states} states, {} steps, {:.1?}", checker.state_count(), start.elapsed());
    for property in [OVERLAP, FALL] {
        if let Some(path) = checker.discovery(property) {
            panic!("not so that {property}:\n{:#?}", path.into_actions());
        }
    }
    for property in happens {
        checker.assert_any_discovery(property);
    }
    assert!(states >= floor, "no more than {states} states");
}

/// Tries until it is not so that `property`; of the shortest ways, or hardly longer.
fn breaks(setting: Setting, dropped: Dropped, property: &'static str) {
    let start = Instant::now();
    let checked = setting.without(dropped).checker().threads(2);
    let checker = checked.finish_when(HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
    let steps = checker.assert_any_discovery(property).into_actions();
    let (states, length) = (checker.unique_state_count(), steps.len());
    println!("without {dropped:?}: {length} steps, {states} states, {:.1?}", start.elapsed());
    println!("    {steps:?}");
}
