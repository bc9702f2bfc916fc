//! What a change of the set does to each node, and how far it has come: read from the incarnation
//! records, so that a repeat after an interruption finishes it. Pure.
//!
//! First a majority of the old set is closed, so that nothing is granted or extended there. Then
//! the nodes that only the new set has are born, and last those of the old set are moved: born if
//! the new set has them too, else closed in its name. So a majority of the old set that has moved
//! proves that all this is done; without one everything after the closing is repeated, since a
//! client of the new set that started too early may have written records as well.

use std::time::Duration;

use fencelock_core::{Error, ErrorKind, Result};

use crate::redlock::config::RedlockStore;
use crate::redlock::rules::clocks::{Offset, agreement};
use crate::redlock::rules::incarnation::{Deployment, IncarnationRecord, RecordState};

/// The change from one set to the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) old: Deployment,
    pub(super) new: Deployment,
}

/// The sets that a node is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Old,
    Both,
    New,
}

/// How far the change of one node has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Unmarked,
    /// In the old set, or waiting to be.
    Old,
    /// Closed with the old set.
    Closed,
    /// In the new set, or closed in its name.
    Moved,
    /// Closed with another set.
    Retired(Deployment),
    /// In another set.
    OtherSet(Deployment),
    Foreign,
}

impl Change {
    pub(super) fn between(old: &RedlockStore, new: &RedlockStore) -> Result<Change> {
        let change = Change { old: old.deployment(), new: new.deployment() };
        let next = change.old.epoch.checked_add(1);
        if next == Some(change.new.epoch) {
            return Ok(change);
        }
        let expected = next.map_or("none".to_owned(), |next| next.to_string());
        let message = format!(
            "the new set has set_epoch={}, the old one {}; expected set_epoch={expected} in the new \
             URL",
            change.new.epoch, change.old.epoch
        );
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    pub(super) fn stage(&self, text: Option<&str>) -> Stage {
        let Some(text) = text else { return Stage::Unmarked };
        let Some(record) = IncarnationRecord::parse(text) else { return Stage::Foreign };
        match (record.deployment, record.state) {
            (theirs, _) if theirs == self.new => Stage::Moved,
            (theirs, RecordState::Closed) if theirs == self.old => Stage::Closed,
            (theirs, _) if theirs == self.old => Stage::Old,
            (theirs, RecordState::Closed) => Stage::Retired(theirs),
            (theirs, _) => Stage::OtherSet(theirs),
        }
    }

    /// The pause between closing and birth, in which nothing may be granted: a lock of the old set
    /// may live for longer than the new set's delay covers.
    pub(super) fn pause(&self) -> Duration {
        self.old.delay.saturating_sub(self.new.delay)
    }
}

impl Stage {
    /// Whether the old set grants nothing there: an empty node counts once its record is closed.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self, Stage::Closed | Stage::Moved)
    }

    /// The error for a node that cannot be closed, or, if only the new set has it, not be used.
    pub(super) fn require_for(&self, side: Side) -> Result<()> {
        let message = match (self, side) {
            (Stage::Unmarked | Stage::Closed | Stage::Moved, _)
            | (Stage::Old, Side::Old | Side::Both)
            | (Stage::Retired(_), Side::New) => return Ok(()),
            (Stage::Foreign, _) => {
                let message = "another program wrote to its incarnation record's key; the value \
                               was left as it is";
                return Err(Error::new(ErrorKind::Foreign, message).retryable(false));
            }
            (Stage::Retired(theirs) | Stage::OtherSet(theirs), Side::Old | Side::Both) => {
                format!("it belongs to another set than the old URL says: {theirs}")
            }
            (Stage::Old, Side::New) => {
                "it belongs to the old set, and the old URL does not name it".to_owned()
            }
            (Stage::OtherSet(theirs), Side::New) => format!(
                "it belongs to another set: {theirs}; if that is no longer in use, delete the key \
                 fencelock:redlock there"
            ),
        };
        Err(Error::new(ErrorKind::Refused, message))
    }
}

/// Whether the clocks of a majority of the old set agree, and those of all `newcomers` with them.
/// `None` in the old set is an unknown clock.
pub(super) fn clocks_agree(
    old: &[Option<Offset>],
    newcomers: &[Option<Offset>],
    tolerance_us: u64,
) -> bool {
    let Some(agreed) = agreement(old, tolerance_us) else { return false };
    let members = old.iter().zip(&agreed.members).filter(|(_, member)| **member);
    let mut all: Vec<Option<Offset>> = members.map(|(offset, _)| *offset).collect();
    all.extend(newcomers);
    let together = agreement(&all, tolerance_us);
    together.is_some_and(|together| together.members.iter().all(|member| *member))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Deployment = Deployment { nodes: 3, epoch: 1, delay: Duration::from_secs(60) };
    const NEW: Deployment = Deployment { nodes: 5, epoch: 2, delay: Duration::from_secs(40) };
    const CHANGE: Change = Change { old: OLD, new: NEW };
    const OTHER: Deployment = Deployment { epoch: 7, ..OLD };

    fn stage(state: RecordState, deployment: Deployment) -> Stage {
        let record = IncarnationRecord { run_id: "abc".to_owned(), state, born_us: 5, deployment };
        CHANGE.stage(Some(&record.to_string()))
    }

    #[test]
    fn a_record_shows_how_far_its_node_has_come() {
        assert_eq!(CHANGE.stage(None), Stage::Unmarked);
        assert_eq!(CHANGE.stage(Some("hello")), Stage::Foreign);
        for state in [RecordState::Born, RecordState::Open] {
            assert_eq!(stage(state, OLD), Stage::Old);
            assert_eq!(stage(state, NEW), Stage::Moved);
            assert_eq!(stage(state, OTHER), Stage::OtherSet(OTHER));
        }
        assert_eq!(stage(RecordState::Closed, OLD), Stage::Closed);
        assert_eq!(stage(RecordState::Closed, NEW), Stage::Moved);
        assert_eq!(stage(RecordState::Closed, OTHER), Stage::Retired(OTHER));
    }

    #[test]
    fn a_node_in_use_elsewhere_is_not_used() {
        for in_use in [Stage::Old, Stage::OtherSet(OTHER), Stage::Foreign] {
            in_use.require_for(Side::New).unwrap_err();
        }
        for free in [Stage::Unmarked, Stage::Closed, Stage::Moved, Stage::Retired(OTHER)] {
            free.require_for(Side::New).unwrap();
        }
        for other in [Stage::Retired(OTHER), Stage::OtherSet(OTHER), Stage::Foreign] {
            assert!(!other.is_closed());
            other.require_for(Side::Old).unwrap_err();
            other.require_for(Side::Both).unwrap_err();
        }
        assert!(!Stage::Unmarked.is_closed(), "a client may still write a record for the old set");
    }

    #[test]
    fn the_locks_of_a_set_with_a_longer_delay_expire_first() {
        assert_eq!(CHANGE.pause(), Duration::from_secs(20));
        assert_eq!(Change { old: NEW, new: OLD }.pause(), Duration::ZERO);
    }

    #[test]
    fn clocks_of_new_nodes_agree_with_a_majority_of_the_old_ones() {
        let at = |offset| Some(Offset { at_least: offset, at_most: offset });
        let old = [at(0), at(50), at(900)];
        assert!(clocks_agree(&old, &[at(-50), at(20)], 100));
        assert!(clocks_agree(&old, &[], 100));
        assert!(!clocks_agree(&old, &[at(20), at(-51)], 100), "too far from one of them");
        assert!(!clocks_agree(&old, &[at(900)], 100), "with the minority");
        assert!(!clocks_agree(&[at(0), None, None], &[at(0), at(0)], 100), "without a majority");
    }
}
