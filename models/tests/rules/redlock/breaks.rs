//! Without any one of the rules two clients hold the lock at once, or a token falls, in the settings
//! in which neither happens with all rules. The rows have the numbers of the table of rules.

use crate::redlock::rules::Dropped;
use crate::redlock::steps::{COMES_BACK, FALL, OVERLAP};
use crate::redlock::{breaks, settings};

#[test]
fn without_any_one_of_the_rules_two_hold_or_a_token_falls() {
    for (row, setting, dropped, property) in [
        // Without a delayed restart.
        (1, settings::restart(), Dropped::DelayedRestart, OVERLAP),
        // With a delay shorter than the ttl.
        (2, settings::restart(), Dropped::LongDelay, OVERLAP),
        // With the uptime for an age.
        (3, settings::restart(), Dropped::AgeByRecord, OVERLAP),
        // With rates beyond the margin.
        (4, settings::rates(), Dropped::RatesWithinMargin, OVERLAP),
        // With a clients own clock beyond the margin.
        (5, settings::clock_step(), Dropped::OwnAgeWithinMargin, OVERLAP),
        // With a majority of those that reply.
        (6, settings::contention(), Dropped::AbstainersCount, OVERLAP),
        // With the run id as incarnation.
        (7, settings::proxy(), Dropped::IncarnationByRecord, OVERLAP),
        // Without the record in the vote.
        (8, settings::proxy(), Dropped::RecordAtVote, OVERLAP),
        // Without a write back.
        (9, settings::contention(), Dropped::WriteBack, FALL),
        // With a write back acknowledged without the lock.
        (10, settings::contention(), Dropped::MineAtWriteBack, FALL),
        // With an extension by a quarantined node.
        (12, settings::extension(), Dropped::OpenAtExtension, OVERLAP),
        // With an extension after the end.
        (13, settings::late_extension(), Dropped::ExtensionInTime, FALL),
        // With one owner for all rounds.
        (14, settings::contention(), Dropped::FreshOwner, OVERLAP),
        // With a release that does not compare.
        (15, settings::contention(), Dropped::CompareAtRelease, OVERLAP),
        // With clocks that do not agree.
        (16, settings::far_ahead(), Dropped::ClockAgreement, FALL),
        // With the proposal of an earlier round.
        (18, settings::second_round(), Dropped::FreshProposal, FALL),
        // With two sets of nodes.
        (20, settings::two_sets(), Dropped::OneSetOfNodes, OVERLAP),
        // With an eviction that is not remembered.
        (21, settings::eviction(), Dropped::EvictionIsRemembered, COMES_BACK),
    ] {
        println!("row {row}");
        breaks(setting, dropped, property);
    }
}
