//! What a client says about a lock that it waits for and holds itself: in the error of a wait limit,
//! and in the log when there is no limit.
//!
//! Most often two of its tasks take turns, which is as it should be. But code that acquires again what
//! it holds waits for itself, and without a limit for ever and in silence.

use std::sync::Arc;
use std::time::Duration;

use crate::claim::hold::Hold;
use crate::telemetry::program;
use crate::time::moment::Moment;
use crate::types::mode::Mode;
use crate::types::name::LockName;

/// How long a lock must have been held here, and waited for without a limit, to be logged.
pub(crate) const LONG: Duration = Duration::from_secs(10);

/// Why a lock that is `wanted` is not free of which this client has the `holds`.
pub(crate) fn words(wanted: Mode, holds: &[Arc<Hold>]) -> Option<String> {
    let hold = holds.first()?;
    let instead = match (wanted, hold.mode()) {
        (Mode::Permits(_), Mode::Permits(_)) => "take what it needs at once, with permits(n)",
        (Mode::Permits(_), _) | (_, Mode::Permits(_)) => {
            "release what it holds first, or give the permits another name: a lock and permits of one \
             name exclude each other"
        }
        (Mode::Exclusive, Mode::Shared) => {
            "release the read guard first, or acquire write() at the beginning"
        }
        // Of another owner, since one shares its own.
        _ if hold.claim().request.is_owned => {
            "acquire it for the Owner that holds it; two owners of which each holds what the other acquires wait \
             for ever: let each acquire all that it needs in one all([…])"
        }
        // Also a reader behind a writer of another client, which waits for the own reader.
        (Mode::Exclusive | Mode::Shared, Mode::Exclusive) | (Mode::Shared, Mode::Shared) => {
            "pass it the guard, or make both acquisitions owned_by one Owner"
        }
    };
    Some(match hold.mode() {
        Mode::Permits(_) => {
            let held: u64 = holds.iter().map(permits_of).sum();
            let permits = if held == 1 { "permit" } else { "permits" };
            format!(
                "this client holds {held} {permits} itself: if other tasks do, that is a wait as any other; \
                 code that acquires again while it holds may wait for itself: {instead}"
            )
        }
        Mode::Exclusive | Mode::Shared => {
            let with_token = match hold.claim().local_handoffs() {
                1 => format!(", with token {}", hold.grant.token),
                // Each turn has another one.
                _ => String::new(),
            };
            format!(
                "this client holds it itself{with_token}: if another task does, that is a wait as any \
                 other; code that acquires again what it holds waits for itself: {instead}"
            )
        }
    })
}

fn permits_of(hold: &Arc<Hold>) -> u64 {
    match hold.mode() {
        Mode::Permits(permits) => permits.n().into(),
        Mode::Exclusive | Mode::Shared => 0,
    }
}

/// Logs that an acquisition of `lock` has waited [`LONG`] without a limit, if this client, whose own
/// `holds` are given, has held the lock itself for as long. Once for each hold.
pub(crate) fn log(lock: &LockName, wanted: Mode, mut holds: Vec<Arc<Hold>>, now: Moment) {
    holds.retain(|hold| hold.grant.since + LONG <= now);
    if matches!(wanted, Mode::Permits(_))
        && wanted.is_compatible_with(holds.iter().map(|hold| hold.mode()))
    {
        // It waits for the permits of others.
        return;
    }
    // All of them, so that readers and permits that come and go are logged together.
    let logged_before = holds.iter().filter(|hold| hold.mark_logged()).count();
    if let Some(why) = words(wanted, &holds).filter(|_| logged_before == 0) {
        program::call(|| {
            tracing::warn!(
                target: "fencelock", %lock, mode = %wanted, %why, "still waiting, and there is no wait limit");
        });
    }
}
