//! Rules of cells, checked exhaustively: all orders in which requests can be made,
//! answered, lost, repeated and late. What the simulation runs on the real code has no model here.
//!
//! Each model restates the steps of a store, which are scripts or requests. With the rule it holds;
//! with each alternative that looks as good, some run breaks it, which is why the rule is what it is.

mod settled_writes;

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model};

/// Checks every run. Requires at least `floor` states, since a model that allows less than intended
/// would hold as well.
fn holds<M>(model: M, floor: usize)
where
    M: Model + Send + Sync + 'static,
    M::State: Debug + Hash + Clone + PartialEq + Send + Sync + 'static,
    M::Action: Debug + PartialEq + Clone,
{
    let checker = model.checker().spawn_bfs().join();
    checker.assert_properties();
    let states = checker.unique_state_count();
    println!("{states} states");
    assert!(states >= floor, "only {states} states");
}

/// Searches for a run that violates `property`.
fn breaks<M>(model: M, property: &'static str)
where
    M: Model + Send + Sync + 'static,
    M::State: Debug + Hash + Clone + PartialEq + Send + Sync + 'static,
    M::Action: Debug + PartialEq + Clone,
{
    let finished = HasDiscoveries::AnyOf([property].into());
    let checker = model.checker().finish_when(finished).spawn_bfs().join();
    println!("{:?}", checker.assert_any_discovery(property).into_actions());
}
