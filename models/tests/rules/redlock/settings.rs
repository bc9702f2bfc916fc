//! Small settings, each for one fault: combined they would have too many states to check.

use crate::redlock::rules::{Setting, Traits};

/// No faults except that messages are lost and overtake each other; one client tries twice.
pub(crate) fn contention() -> Setting {
    Setting { rounds: [2, 1], ..Setting::plain(2) }
}

/// A request is late or arrives twice, also during the next round.
pub(crate) fn late_messages() -> Setting {
    Setting { strays: 1, ..contention() }
}

/// A request is late or arrives twice, and a reply is lost.
pub(crate) fn lost_answers() -> Setting {
    Setting { strays: 1, silences: 1, ..Setting::plain(3) }
}

/// A node restarts, and is open again for the last ticks.
pub(crate) fn restart() -> Setting {
    Setting { restarts: 1, ..Setting::plain(6) }
}

/// A node loses its data and keeps its `run_id`; a proxy delays a request until its next incarnation.
pub(crate) fn proxy() -> Setting {
    Setting { ttl: 2, strays: 1, flushes: 1, ..Setting::plain(3) }
}

/// A node loses its data while others vote.
pub(crate) fn flush() -> Setting {
    Setting { flushes: 1, ..Setting::plain(3) }
}

/// A holder extends while a node restarts, and another node expires keys as early as it may.
pub(crate) fn extension() -> Setting {
    let mut setting = Setting { extensions: [1, 0], restarts: 1, ..Setting::plain(3) };
    setting.nodes[0].fast = 1;
    setting
}

/// A holder extends, and nothing is lost.
pub(crate) fn late_extension() -> Setting {
    Setting { restarts: 0, ..extension() }
}

/// A node that lost its data is back, the lock is reinstalled there, and another node restarts.
pub(crate) fn rolling_restart() -> Setting {
    let mut setting = Setting { extensions: [2, 0], restarts: 1, ..Setting::plain(5) };
    setting.nodes[0].is_quarantined = true;
    setting
}

/// An operator evicts a holder at two nodes while requests to the third are late.
pub(crate) fn eviction() -> Setting {
    let rounds = [1, 0];
    Setting { rounds, extensions: [2, 0], strays: 1, evictions: 2, ..Setting::plain(3) }
}

/// A node's clock runs fast, within the margin.
pub(crate) fn rates() -> Setting {
    let mut setting = Setting::plain(4);
    setting.nodes[0].fast = 1;
    setting
}

/// A node's clock steps forward while it is excluded, against what is assumed: then the clients that
/// were connected before exclude it by their own clocks.
pub(crate) fn clock_step() -> Setting {
    Setting { ttl: 2, restarts: 1, steps: 1, all_are_known: true, ..Setting::plain(4) }
}

/// Clocks differ, each from the next by the tolerance, and are read imprecisely.
pub(crate) fn skew() -> Setting {
    let mut setting = Setting { tolerance: 1, readings: true, horizon: 7, ..second_round() };
    for (node, lead) in setting.nodes.iter_mut().zip([2, 1, 0]) {
        node.lead = lead;
    }
    setting
}

/// One clock is ahead by more than a node is excluded for.
pub(crate) fn far_ahead() -> Setting {
    let mut setting = Setting { readings: true, ..second_round() };
    setting.nodes[0].lead = setting.delay() + 1;
    setting
}

/// A client asks again after the node that gave it a token restarted.
pub(crate) fn second_round() -> Setting {
    Setting { ttl: 2, rounds: [2, 0], restarts: 1, ..Setting::plain(5) }
}

/// One client asks a, b, c and the other a, b, d.
pub(crate) fn two_sets() -> Setting {
    let mut setting = Setting { epochs: [1, 2], ..Setting::plain(3) };
    setting.nodes[2].asked_by[1] = false;
    setting.nodes.push(Traits { asked_by: [false, true], epoch: 2, ..Traits::PLAIN });
    setting
}
