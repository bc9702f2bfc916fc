//! The required behaviours of every store, in groups: plain async functions, each named after the
//! guarantee that it tests. Folders sort the groups by what they promise; a behaviour's name begins
//! with its group, not with the folder.
//!
//! A behaviour uses a store as any client does, and panics if the guarantee is violated. It must leave
//! nothing behind: the suite checks that afterwards.

use prelude::*;

/// Which claims are granted together, to whom, and with what token.
mod grants {
    pub(super) mod exclusion;
    pub(super) mod modes;
    pub(super) mod ownership;
    pub(super) mod tokens;
}
/// Who is next, and what a claim leaves that is given up.
mod waits {
    pub(super) mod cancel;
    pub(super) mod waiting;
}
/// Until when a grant is relied on.
mod losses {
    pub(super) mod closing;
    pub(super) mod renewal;
    pub(super) mod validity;
}
/// What guards do together, and for the work that they protect.
mod guards {
    pub(super) mod downgrade;
    pub(super) mod handoffs;
    pub(super) mod lost_handoffs;
    pub(super) mod owners;
    pub(super) mod several;
    pub(super) mod work_under_a_lock;
}
/// What is made of cells.
mod coordination {
    pub(super) mod barriers;
    pub(super) mod cells;
    pub(super) mod counters;
    pub(super) mod elections;
    pub(super) mod expired_cells;
    pub(super) mod latches;
    pub(super) mod once;
}
/// Faults of the network and of processes.
mod faults {
    pub(super) mod network;
    pub(super) mod processes;
    pub(super) mod replies;
}
/// What the methods take and return.
mod interface {
    pub(super) mod errors;
    pub(super) mod inspecting;
    pub(crate) mod names;
    pub(super) mod options;
}
mod work;

/// What every group is written with.
mod prelude {
    pub(super) use std::sync::Arc;
    pub(super) use std::time::Duration;

    pub(super) use super::{behaviour, work};
    pub(super) use crate::harness::Backdoor;
    pub(super) use crate::how::How;
    pub(super) use crate::network_fault::NetworkFault;
    pub(super) use crate::suite::Behaviour;
    pub(super) use crate::suite::context::Context;
    pub(super) use crate::suite::needs::Need;
}

use coordination::{barriers, cells, counters, elections, expired_cells, latches, once};
use faults::{network, processes, replies};
use grants::{exclusion, modes, ownership, tokens};
use guards::{downgrade, handoffs, lost_handoffs, owners, several, work_under_a_lock};
use interface::{errors, inspecting, names, options};
use losses::{closing, renewal, validity};
use waits::{cancel, waiting};

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
    downgrade::BEHAVIOURS,
    handoffs::BEHAVIOURS,
    lost_handoffs::BEHAVIOURS,
    owners::BEHAVIOURS,
    several::BEHAVIOURS,
    work_under_a_lock::BEHAVIOURS,
    cells::BEHAVIOURS,
    expired_cells::BEHAVIOURS,
    counters::BEHAVIOURS,
    latches::BEHAVIOURS,
    barriers::BEHAVIOURS,
    once::BEHAVIOURS,
    elections::BEHAVIOURS,
    processes::BEHAVIOURS,
];

/// One of the suite's behaviours.
const fn behaviour<Ended: Future<Output = ()> + 'static>(
    group: &'static str,
    name: &'static str,
    needs: &'static [Need],
    run: &'static (impl Fn(Arc<Context>) -> Ended + Sync),
) -> Behaviour {
    Behaviour { name, group, needs, run }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

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
        let entries =
            |path: &Path| std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        let folders = entries(Path::new(directory)).filter(|path| path.is_dir());
        let files: Vec<PathBuf> = folders.flat_map(|folder| entries(&folder)).collect();
        assert!(files.len() >= BEHAVIOURS.len());
        for file in files {
            let group = file.file_stem().unwrap().to_str().unwrap();
            assert!(listed.contains(group), "{group} is not in BEHAVIOURS");
        }
    }
}
