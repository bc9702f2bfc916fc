//! One lock's grants around a failure.
//!
//! Clients in this process loop over the lock, a few milliseconds each; then its holder is killed,
//! or something is done to the servers, and the grants before, during and after are counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fencelock::{Locks, Result};
use fencelock_conformance::{How, Params};
use fencelock_testkit::deployments::{self, Deployment, Fault};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::compare::data::{Spread, Timeline, in_ms};

const CLIENTS: u32 = 4;
const LOCK: &str = "compare-timeline";
const HOLD: Duration = Duration::from_millis(3);
/// The session timeout of the ZooKeeper servers that are started here, so that timelines compare.
const TTL: Duration = Duration::from_secs(2);
const BEFORE: Duration = Duration::from_secs(1);
const BROKEN_FOR: Duration = Duration::from_secs(1);
/// After the first grant again.
const AFTER: Duration = Duration::from_secs(1);
/// A store that has not recovered by then counts as not recovered.
const PATIENCE: Duration = Duration::from_secs(12);

/// What fails.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Failing {
    /// A process of its own that has the lock is killed.
    Holder,
    Servers(Fault),
}

impl std::fmt::Display for Failing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failing::Holder => f.write_str("holder killed"),
            Failing::Servers(fault) => fault.fmt(f),
        }
    }
}

/// Draws the first of `runs`; the others tell how much its gap is worth.
pub(crate) async fn draw(
    deployment: &dyn Deployment,
    failing: Failing,
    runs: u32,
) -> Result<Timeline> {
    let mut first = draw_once(deployment, failing).await?;
    let mut gaps = vec![first.without_progress_s];
    for _ in 1..runs {
        let again = draw_once(deployment, failing).await?;
        first.came_back &= again.came_back;
        gaps.push(again.without_progress_s);
    }
    first.without_progress_runs_s = (runs > 1).then(|| Spread::of(gaps));
    Ok(first)
}

async fn draw_once(deployment: &dyn Deployment, failing: Failing) -> Result<Timeline> {
    let params =
        Params { ttl: TTL, unreachable_after: PATIENCE, ..Params::under(&deployment.prefix()) };
    let locks = super::connect(&params.on_url(&deployment.url())).await?;
    let line = Arc::new(Line::default());
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(line.clone().client(locks.clone()));
    }
    sleep(BEFORE).await;
    let failed_at = match failing {
        Failing::Holder => {
            let mut holder =
                deployments::spawn_client(deployment, &params).await.map_err(super::broken)?;
            holder.acquire(0, LOCK, How::Exclusive).await.map_err(super::broken)?;
            let failed_at = line.began.elapsed();
            holder.kill().await.map_err(super::broken)?;
            failed_at
        }
        Failing::Servers(fault) => {
            let failed_at = line.began.elapsed();
            deployment.inflict(fault, BROKEN_FOR).await.map_err(super::broken)?;
            failed_at
        }
    };
    let healed_at = line.began.elapsed();
    let came_back = line.is_granted_after(healed_at).await;
    let end = line.began.elapsed();
    clients.shutdown().await;
    // The drop of what they held is on its way.
    locks.close().await?;
    Ok(line.drawn(failing, failed_at, healed_at, end, came_back))
}

/// What the clients see.
struct Line {
    began: Instant,
    /// Since then.
    grants: Mutex<Vec<Duration>>,
    errors: AtomicU64,
}

impl Default for Line {
    fn default() -> Line {
        Line { began: Instant::now(), grants: Mutex::default(), errors: AtomicU64::new(0) }
    }
}

impl Line {
    async fn client(self: Arc<Self>, locks: Locks) {
        let lock = locks.lock(LOCK);
        loop {
            match lock.acquire().await {
                Ok(guard) => {
                    self.note(self.began.elapsed());
                    sleep(HOLD).await;
                    // What became of it, the next grant shows.
                    let _ = guard.release().await;
                }
                Err(_) => {
                    self.errors.fetch_add(1, Ordering::Relaxed);
                    sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    fn note(&self, at: Duration) {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner).push(at);
    }

    fn last(&self) -> Option<Duration> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner).last().copied()
    }

    /// Waits for it, and for what comes then.
    async fn is_granted_after(&self, healed_at: Duration) -> bool {
        let give_up = healed_at + PATIENCE;
        while self.last().is_none_or(|last| last <= healed_at) {
            if self.began.elapsed() > give_up {
                return false;
            }
            sleep(Duration::from_millis(20)).await;
        }
        sleep(AFTER).await;
        true
    }

    fn drawn(
        &self,
        failing: Failing,
        failed_at: Duration,
        healed_at: Duration,
        end: Duration,
        came_back: bool,
    ) -> Timeline {
        let grants = self.grants.lock().unwrap_or_else(PoisonError::into_inner);
        let bin = |at: Duration| usize::try_from(at.as_millis() / 100).unwrap_or(usize::MAX);
        let mut grants_per_100_ms = vec![0; bin(end) + 1];
        for grant in grants.iter().filter(|grant| **grant <= end) {
            grants_per_100_ms[bin(*grant)] += 1;
        }
        Timeline {
            failure: failing.to_string(),
            clients: CLIENTS,
            failed_at_ms: in_ms(failed_at),
            healed_at_ms: in_ms(healed_at),
            grants_per_100_ms,
            ttl_s: TTL.as_secs_f64(),
            without_progress_s: longest_gap(&grants, failed_at, end).as_secs_f64(),
            without_progress_runs_s: None,
            came_back,
            errors: self.errors.load(Ordering::Relaxed),
        }
    }
}

/// The longest time without a grant that ends after the failure.
fn longest_gap(grants: &[Duration], failed_at: Duration, end: Duration) -> Duration {
    let starts = std::iter::once(Duration::ZERO).chain(grants.iter().copied());
    let ends = grants.iter().copied().chain([end]);
    let gaps = starts.zip(ends).filter(|(_, end)| *end >= failed_at);
    gaps.map(|(start, end)| end.saturating_sub(start)).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_from_the_last_grant_before_the_failure() {
        let at = Duration::from_millis;
        let grants = [at(0), at(500), at(900), at(2_900), at(3_000)];
        assert_eq!(longest_gap(&grants, at(1_000), at(3_500)), at(2_000));
        // One before the failure is none of its.
        assert_eq!(longest_gap(&grants, at(2_950), at(3_100)), at(100));
        // Nothing came back.
        assert_eq!(longest_gap(&grants[..3], at(1_000), at(9_000)), at(8_100));
    }
}
