//! Locks that are held, and nothing else: what keeping them costs this process.

use fencelock::Result;
use serde::Serialize;

use super::figures::{cpu_time, now};
use super::options::{Options, Workload, store_word};

#[derive(Serialize)]
pub(super) struct Line<'a> {
    store: &'a str,
    workload: Workload,
    locks: u32,
    lost: usize,
    /// Of one core, in this process, while nothing happened but renewals.
    cpu_percent: f64,
}

impl Options {
    /// Holds many locks and does nothing else.
    pub(super) fn hold(&self) -> Result<Line<'_>> {
        fencelock_cli::runtime()?.block_on(async {
            let locks = fencelock::connect(&self.url).await?;
            let mut guards = Vec::new();
            for n in 0..self.clients {
                guards.push(locks.lock(format!("bench-held-{n}")).acquire().await?);
            }
            let (start, used) = (now(), cpu_time());
            tokio::time::sleep(self.seconds).await;
            let (elapsed, used) = (now() - start, cpu_time() - used);
            let lost = guards.iter().filter(|guard| !guard.is_held()).count();
            drop(guards);
            locks.close().await?;
            Ok(Line {
                store: store_word(&self.url),
                workload: self.workload,
                locks: self.clients,
                lost,
                cpu_percent: (1e4 * used as f64 / elapsed as f64).round() / 1e2,
            })
        })
    }
}
