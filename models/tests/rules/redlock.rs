//! Redlock's rules, checked exhaustively: all orders in which a few messages can arrive, be lost or
//! late, with nodes that lose their data and clocks that differ.
//!
//! The client's decisions are not written here again: the model calls the pure functions of
//! `fencelock_redis::redlock` that the store calls, and restates only the node's side, which is Lua.
//! With all rules no run overlaps and no token falls (`holds.rs`); without any one of them one does
//! (`breaks.rs`), which shows that the model detects what the rule prevents.
//!
//! Bounds: three nodes, two clients, the numbers of rounds, ticks and faults in `settings.rs`, one
//! late message for each client and node. Simplifications: a reply arrives when it is sent or never; a
//! late reply is modelled by a late decision.

mod breaks;
mod client;
mod holds;
mod rules;
mod server;
mod settings;
mod state;
mod steps;
mod units;

use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model};

use crate::redlock::rules::{Dropped, Setting};
use crate::redlock::steps::{COMES_BACK, FALL, OVERLAP};

/// Checks every run that `setting` allows. Requires at least `floor` states, since a setting that
/// allows less than intended would pass as well, and that each of `happens` occurs in some run.
fn holds(setting: Setting, floor: usize, happens: &[&'static str]) {
    let start = Instant::now();
    let checked = setting.checker().threads(2).finish_when(HasDiscoveries::AnyFailures);
    let checker = checked.spawn_bfs().join();
    let states = checker.unique_state_count();
    println!("{states} states, {} steps, {:.1?}", checker.state_count(), start.elapsed());
    for property in [OVERLAP, FALL, COMES_BACK] {
        if let Some(path) = checker.discovery(property) {
            panic!("violated: {property}:\n{:#?}", path.into_actions());
        }
    }
    for property in happens {
        checker.assert_any_discovery(property);
    }
    assert!(states >= floor, "only {states} states");
}

/// Searches for a violation of `property`, by one of the shortest runs or a slightly longer one.
fn breaks(setting: Setting, dropped: Dropped, property: &'static str) {
    let start = Instant::now();
    let checked = setting.without(dropped).checker().threads(2);
    let checker = checked.finish_when(HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
    let steps = checker.assert_any_discovery(property).into_actions();
    let (states, length) = (checker.unique_state_count(), steps.len());
    println!("without {dropped:?}: {length} steps, {states} states, {:.1?}", start.elapsed());
    println!("    {steps:?}");
}
