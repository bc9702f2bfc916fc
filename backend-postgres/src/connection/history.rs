//! Which history of commits a server writes, so that a primary that was replaced is passed over.

use std::fmt::Display;

use fencelock_core::Result;
use fencelock_core::backend::program;
use fencelock_core::sync::Mutex;
use tokio_postgres::Client;

use crate::error::unreachable;

/// The identifier of a primary's system, and its timeline, which each promotion raises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct History {
    system: u64,
    timeline: u32,
}

impl History {
    /// That of the client's server; `None` where it does not tell.
    pub(super) async fn of(client: &Client) -> Option<History> {
        let sql = "SELECT system_identifier::pg_catalog.text, pg_catalog.\"left\"(\
                   pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) \
                   FROM pg_catalog.pg_control_system() WHERE NOT pg_catalog.pg_is_in_recovery()";
        let rows = client.query_typed(sql, &[]).await.ok()?;
        let row = rows.first()?;
        let text = |column| row.try_get::<_, &str>(column).ok();
        let timeline = u32::from_str_radix(text(1)?, 16).ok()?;
        Some(History { system: text(0)?.parse().ok()?, timeline })
    }
}

/// The newest history of each system that this process trusted, the last one at the end: a name may lead to another
/// system for a moment, and back to a primary that was replaced.
#[derive(Debug, Default)]
pub(crate) struct Histories(Mutex<Vec<History>>);

impl Histories {
    /// Whether the servers tell it.
    pub(crate) fn are_known(&self) -> bool {
        !self.0.lock().is_empty()
    }

    /// Passes over a primary that was replaced, and still takes writes. A server that never told its history is
    /// believed; one that told it is asked until it does again.
    pub(super) fn require(&self, host: &impl Display, now: Option<History>) -> Result<()> {
        newest(&self.0.lock(), host, now)
    }

    /// The same, and keeps it. Not before the schema's owner is trusted: a stranger's server tells any timeline, and
    /// the right one would be passed over.
    pub(super) fn keep(&self, host: &impl Display, now: Option<History>) -> Result<()> {
        let mut known = self.0.lock();
        newest(&known, host, now)?;
        let Some(now) = now else { return Ok(()) };
        let before = known.last().copied();
        known.retain(|other| other.system != now.system);
        known.push(now);
        drop(known);
        if let Some(before) = before.filter(|before| *before != now) {
            program::call(|| tracing::info!(%host, ?before, ?now, "another primary"));
        }
        Ok(())
    }
}

fn newest(known: &[History], host: &impl Display, now: Option<History>) -> Result<()> {
    let Some(now) = now else {
        if known.is_empty() {
            return Ok(());
        }
        return Err(unreachable(format!("{host} does not tell its timeline now")));
    };
    let is_newer = |last: &&History| last.system == now.system && last.timeline > now.timeline;
    known.iter().find(is_newer).map_or(Ok(()), |last| {
        Err(unreachable(format!(
            "{host} is on timeline {}, and this process has been on {} of the same system: if that primary \
             has replaced this one, end this one; if this one is right, as after a restore, restart the process",
            now.timeline, last.timeline
        )))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also after another system.
    #[test]
    fn only_an_older_timeline_of_the_same_system_is_passed_over() {
        let history = |system, timeline| Some(History { system, timeline });
        let histories = Histories::default();
        let told = [(7, 10, true), (7, 9, false), (7, 11, true), (8, 1, true), (7, 10, false)];
        for (system, timeline, is_fine) in told {
            let now = histories.keep(&"host", history(system, timeline));
            assert_eq!(now.is_ok(), is_fine, "{system} {timeline}");
        }
        histories.keep(&"host", None).unwrap_err();
    }
}
