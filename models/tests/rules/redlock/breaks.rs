//! Without any one of the rules two clients hold the lock at once, or a token falls, in the settings
//! in which neither happens with all rules. The tests have the numbers of the table of rules.

use crate::redlock::rules::Dropped;
use crate::redlock::steps::{FALL, OVERLAP};
use crate::redlock::{breaks, settings};

#[test]
fn row_1_without_a_delayed_restart() {
    breaks(settings::restart(), Dropped::DelayedRestart, OVERLAP);
}

#[test]
fn row_2_with_a_delay_shorter_than_the_ttl() {
    breaks(settings::restart(), Dropped::LongDelay, OVERLAP);
}

#[test]
fn row_3_with_the_uptime_for_an_age() {
    breaks(settings::restart(), Dropped::AgeByRecord, OVERLAP);
}

#[test]
fn row_4_with_rates_beyond_the_margin() {
    breaks(settings::rates(), Dropped::RatesWithinMargin, OVERLAP);
}

#[test]
fn row_5_with_a_clients_own_clock_beyond_the_margin() {
    breaks(settings::clock_step(), Dropped::OwnAgeWithinMargin, OVERLAP);
}

#[test]
fn row_6_with_a_majority_of_those_that_reply() {
    breaks(settings::contention(), Dropped::AbstainersCount, OVERLAP);
}

#[test]
fn row_7_with_the_run_id_as_incarnation() {
    breaks(settings::proxy(), Dropped::IncarnationByRecord, OVERLAP);
}

#[test]
fn row_8_without_the_record_in_the_vote() {
    breaks(settings::proxy(), Dropped::RecordAtVote, OVERLAP);
}

#[test]
fn row_9_without_a_write_back() {
    breaks(settings::contention(), Dropped::WriteBack, FALL);
}

#[test]
fn row_10_with_a_write_back_acknowledged_without_the_lock() {
    breaks(settings::contention(), Dropped::MineAtWriteBack, FALL);
}

#[test]
fn row_12_with_an_extension_by_a_quarantined_node() {
    breaks(settings::extension(), Dropped::OpenAtExtension, OVERLAP);
}

#[test]
fn row_13_with_an_extension_after_the_end() {
    breaks(settings::late_extension(), Dropped::ExtensionInTime, FALL);
}

#[test]
fn row_14_with_one_owner_for_all_rounds() {
    breaks(settings::contention(), Dropped::FreshOwner, OVERLAP);
}

#[test]
fn row_15_with_a_release_that_does_not_compare() {
    breaks(settings::contention(), Dropped::CompareAtRelease, OVERLAP);
}

#[test]
fn row_16_with_clocks_that_do_not_agree() {
    breaks(settings::far_ahead(), Dropped::ClockAgreement, FALL);
}

#[test]
fn row_18_with_the_proposal_of_an_earlier_round() {
    breaks(settings::second_round(), Dropped::FreshProposal, FALL);
}

#[test]
fn row_20_with_two_sets_of_nodes() {
    breaks(settings::two_sets(), Dropped::OneSetOfNodes, OVERLAP);
}
