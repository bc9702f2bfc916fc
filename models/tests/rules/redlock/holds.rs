//! With all rules no violation is found, in any of the settings.

use crate::redlock::rules::Dropped;
use crate::redlock::steps::{GRANT, REINSTALLING, WRITE_BACK};
use crate::redlock::{holds, settings};

#[test]
fn with_all_rules_one_holds_and_tokens_rise() {
    let (once, reinstalled) = (&[GRANT, WRITE_BACK][..], &[GRANT, WRITE_BACK, REINSTALLING][..]);
    for (setting, floor, happens) in [
        // Contending clients are granted one by one.
        (settings::contention(), 40_000, once),
        // Late messages do no harm.
        (settings::late_messages(), 700_000, once),
        // Lost answers do no harm.
        (settings::lost_answers(), 250_000, once),
        // A restarted node does not count.
        (settings::restart(), 600_000, once),
        // A request to an earlier incarnation does nothing.
        (settings::proxy(), 300_000, once),
        // An extended lock is held by no other client.
        (settings::extension(), 500_000, reinstalled),
        // A hold survives a rolling restart.
        (settings::rolling_restart(), 500_000, reinstalled),
        // What a majority has evicted does not come back.
        (settings::eviction(), 100_000, &[GRANT]),
        // A key that ends early within the margin does no harm.
        (settings::rates(), 50_000, once),
        // A client connected before does not trust a nodes clock alone.
        (settings::clock_step(), 150_000, once),
        // Tokens rise on clocks that agree.
        (settings::skew(), 600_000, once),
        // A clock far ahead is excluded.
        (settings::far_ahead(), 10_000, &[GRANT]),
        // A second round is granted more than the first.
        (settings::second_round(), 30_000, &[GRANT]),
        // A client with another set of nodes is excluded.
        (settings::two_sets(), 6_000, &[GRANT]),
        // A node without its data has no lock to acknowledge.
        // Row 11 is not an independent rule: a node that is not open has no client's key (rows 1 and 8), so
        // it has nothing to acknowledge (row 10). The scripts keep it as a safeguard for those rows.
        (settings::flush().without(Dropped::OpenAtWriteBack), 30_000, once),
    ] {
        holds(setting, floor, happens);
    }
}
