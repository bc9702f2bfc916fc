//! With all rules no violation is found, in any of the settings.

use crate::redlock::rules::Dropped;
use crate::redlock::steps::{GRANT, REINSTALLING, WRITE_BACK};
use crate::redlock::{holds, settings};

#[test]
fn contending_clients_are_granted_one_by_one() {
    holds(settings::contention(), 40_000, &[GRANT, WRITE_BACK]);
}

#[test]
fn late_messages_do_no_harm() {
    holds(settings::late_messages(), 700_000, &[GRANT, WRITE_BACK]);
}

#[test]
fn lost_answers_do_no_harm() {
    holds(settings::lost_answers(), 250_000, &[GRANT, WRITE_BACK]);
}

#[test]
fn a_restarted_node_does_not_count() {
    holds(settings::restart(), 600_000, &[GRANT, WRITE_BACK]);
}

#[test]
fn a_request_to_an_earlier_incarnation_does_nothing() {
    holds(settings::proxy(), 300_000, &[GRANT, WRITE_BACK]);
}

#[test]
fn an_extended_lock_is_held_by_no_other_client() {
    holds(settings::extension(), 500_000, &[GRANT, WRITE_BACK, REINSTALLING]);
}

#[test]
fn a_hold_survives_a_rolling_restart() {
    holds(settings::rolling_restart(), 500_000, &[GRANT, WRITE_BACK, REINSTALLING]);
}

#[test]
fn a_key_that_ends_early_within_the_margin_does_no_harm() {
    holds(settings::rates(), 50_000, &[GRANT, WRITE_BACK]);
}

#[test]
fn a_client_connected_before_does_not_trust_a_nodes_clock_alone() {
    holds(settings::clock_step(), 150_000, &[GRANT, WRITE_BACK]);
}

#[test]
fn tokens_rise_on_clocks_that_agree() {
    holds(settings::skew(), 600_000, &[GRANT, WRITE_BACK]);
}

#[test]
fn a_clock_far_ahead_is_excluded() {
    holds(settings::far_ahead(), 10_000, &[GRANT]);
}

#[test]
fn a_second_round_is_granted_more_than_the_first() {
    holds(settings::second_round(), 30_000, &[GRANT]);
}

#[test]
fn a_client_with_another_set_of_nodes_is_excluded() {
    holds(settings::two_sets(), 6_000, &[GRANT]);
}

/// Row 11 is not an independent rule: a node that is not open has no client's key (rows 1 and 8), so
/// it has nothing to acknowledge (row 10). The scripts keep it as a safeguard for those rows.
#[test]
fn a_node_without_its_data_has_no_lock_to_acknowledge() {
    let setting = settings::flush().without(Dropped::OpenAtWriteBack);
    holds(setting, 30_000, &[GRANT, WRITE_BACK]);
}
