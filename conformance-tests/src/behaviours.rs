//! The required behaviours of every store, in groups: plain async functions, each named after the
//! guarantee that it tests.
//!
//! A behaviour uses a store as any client does, and panics if the guarantee is violated. It must leave
//! nothing behind: the suite checks that afterwards.

use std::sync::Arc;

use crate::suite::context::Context;
use crate::suite::needs::Need;
use crate::suite::{Behaviour, Running};

mod cancel;
mod closing;
mod errors;
mod exclusion;
mod inspecting;
mod modes;
mod names;
mod network;
mod options;
mod ownership;
mod processes;
mod renewal;
mod replies;
mod tokens;
mod validity;
mod waiting;
mod work;

/// The suite, by group.
pub const BEHAVIOURS: &[&[Behaviour]] = &[
    exclusion::BEHAVIOURS,
    ownership::BEHAVIOURS,
    waiting::BEHAVIOURS,
    validity::BEHAVIOURS,
    renewal::BEHAVIOURS,
    replies::BEHAVIOURS,
    network::BEHAVIOURS,
    modes::BEHAVIOURS,
    names::BEHAVIOURS,
    options::BEHAVIOURS,
    cancel::BEHAVIOURS,
    closing::BEHAVIOURS,
    tokens::BEHAVIOURS,
    errors::BEHAVIOURS,
    inspecting::BEHAVIOURS,
    processes::BEHAVIOURS,
];

/// One of the suite's behaviours.
const fn behaviour(
    group: &'static str,
    name: &'static str,
    needs: &'static [Need],
    run: fn(Arc<Context>) -> Running,
) -> Behaviour {
    Behaviour { name, group, needs, run }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_no_group_is_empty() {
        let all: Vec<String> =
            BEHAVIOURS.iter().flat_map(|group| group.iter()).map(Behaviour::full_name).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        assert!(BEHAVIOURS.iter().all(|group| !group.is_empty()));
    }

    /// A file that is missing from the list would never run.
    #[test]
    fn every_group_of_behaviours_is_in_the_list() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/src/behaviours");
        let listed: BTreeSet<&str> = BEHAVIOURS.iter().map(|group| group[0].group).collect();
        for file in std::fs::read_dir(directory).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            let group = name.trim_end_matches(".rs");
            assert!(group == "work" || listed.contains(group), "{group} is not in BEHAVIOURS");
        }
    }
}
