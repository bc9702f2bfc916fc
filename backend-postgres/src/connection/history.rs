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

/// The history of the last server that this process trusted.
#[derive(Debug, Default)]
pub(crate) struct LastHistory(Mutex<Option<History>>);

impl LastHistory {
    /// Whether the last server told it.
    pub(crate) fn is_known(&self) -> bool {
        self.0.lock().is_some()
    }

    /// Passes over a primary that was replaced, and still takes writes. A server that never told its history is
    /// believed; one that told it is asked until it does again.
    pub(super) fn require(&self, host: &impl Display, now: Option<History>) -> Result<()> {
        newest(*self.0.lock(), host, now)
    }

    /// The same, and keeps it. Not before the schema's owner is trusted: a stranger's server tells any timeline, and
    /// the right one would be passed over.
    pub(super) fn keep(&self, host: &impl Display, now: Option<History>) -> Result<()> {
        let mut last = self.0.lock();
        newest(*last, host, now)?;
        let before = std::mem::replace(&mut *last, now);
        drop(last);
        if before.is_some() && before != now {
            program::call(|| tracing::info!(%host, ?before, ?now, "another primary"));
        }
        Ok(())
    }
}

fn newest(last: Option<History>, host: &impl Display, now: Option<History>) -> Result<()> {
    let message = match (last, now) {
        (Some(_), None) => format!("{host} does not tell its timeline now"),
        (Some(last), Some(now)) if last.system == now.system && last.timeline > now.timeline => {
            format!(
                "{host} is on timeline {}, and this process has been on {} of the same system: if that primary \
             has replaced this one, end this one; if this one is right, as after a restore, restart the process",
                now.timeline, last.timeline
            )
        }
        _ => return Ok(()),
    };
    Err(unreachable(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_older_timeline_of_the_same_system_is_passed_over() {
        let history = |system, timeline| Some(History { system, timeline });
        for (system, timeline, is_fine) in
            [(7, 10, true), (7, 11, true), (7, 9, false), (8, 1, true)]
        {
            let now = newest(history(7, 10), &"host", history(system, timeline));
            assert_eq!(now.is_ok(), is_fine);
        }
    }
}
