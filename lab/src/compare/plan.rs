//! How much is measured, and how long that takes.

use std::time::Duration;

use fencelock_testkit::deployments::{Deployment, Fault, Wiring};
use tokio::time::{Instant, timeout_at};

/// A comparison's measure.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// How long each measurement of speed takes.
    pub(super) point: Duration,
    pub(super) repeats: u32,
    /// Numbers of clients with locks of their own, and of clients of one lock.
    pub(super) clients: &'static [u32],
    /// Numbers of locks that a [`MANY_CLIENTS`](Plan::MANY_CLIENTS) clients share.
    pub(super) locks: &'static [u32],
    /// Stores that are broken at the same time: most of that is waiting.
    pub(super) together: usize,
    /// How many of a store's failures get a timeline.
    pub(super) timelines: usize,
    /// How many of the servers' faults are injected.
    pub(super) faults: usize,
    /// How often each of them.
    pub(super) turns: u32,
    /// How often each failure is timed.
    pub(super) runs: u32,
    /// Between clients and servers, if it is to be there.
    pub(super) round_trip: Option<Duration>,
    /// When whatever is still missing is left out.
    pub(super) within: Option<Duration>,
}

impl Plan {
    /// Clients that share locks, hand one on, or keep a rate.
    pub(super) const MANY_CLIENTS: u32 = 64;

    pub(super) fn usual(point: Duration) -> Plan {
        Plan {
            point,
            repeats: 3,
            clients: &[1, 8, 64, 256],
            locks: &[1, 16, 512],
            together: 4,
            timelines: 4,
            faults: 4,
            // Longer measurements imply longer faults.
            turns: point.as_secs_f64().max(1.0) as u32,
            runs: if point >= Duration::from_secs(1) { 3 } else { 1 },
            round_trip: None,
            within: None,
        }
    }

    pub(super) fn quick() -> Plan {
        Plan {
            point: Duration::from_millis(100),
            repeats: 2,
            clients: &[1, 16, 256],
            locks: &[1, 64],
            together: 12,
            timelines: 2,
            faults: 1,
            turns: 1,
            runs: 1,
            round_trip: None,
            // The servers' end and the page take the rest of two minutes.
            within: Some(Duration::from_secs(110)),
        }
    }

    /// Through proxies that make it a network, if there is to be one.
    pub(super) fn wiring(&self, without: Wiring) -> Wiring {
        self.round_trip.map_or(without, Wiring::Distant)
    }

    /// Runs all of a comparison that began then; `None` if there was not enough time for it.
    pub(super) async fn in_time<T>(
        &self,
        began: Instant,
        run: impl Future<Output = T>,
    ) -> Option<T> {
        within(self.within.map(|time| began + time), run).await
    }

    /// Runs one of the measurements of speed, which must leave half of the time to the faults.
    pub(super) async fn in_half_the_time<T>(
        &self,
        began: Instant,
        run: impl Future<Output = T>,
    ) -> Option<T> {
        within(self.within.map(|time| began + time / 2), run).await
    }

    /// What is done to a store: clients that stand still, and what its servers can suffer, the most
    /// telling first. What its profile admits an overlap under comes twice, since that is to be seen.
    pub(super) fn faults(&self, deployment: &dyn Deployment) -> Vec<Fault> {
        let of_servers: Vec<Fault> = telling(deployment).take(self.faults).collect();
        let telling = of_servers.iter().copied().find(|fault| deployment.may_overlap(*fault));
        [Fault::ClientsFrozen].into_iter().chain(of_servers).chain(telling).collect()
    }

    /// The failures to be drawn.
    pub(super) fn failures(&self, deployment: &dyn Deployment) -> Vec<Fault> {
        // A series of restarts, which lasts as long as a restarted node is quarantined.
        let drawn = telling(deployment).filter(|it| *it != Fault::MinorityRestarted);
        drawn.take(self.timelines).collect()
    }

    /// The speed of one store, with the start of its servers.
    pub(super) fn speed_takes(&self) -> Duration {
        let points = 2 * self.clients.len() + self.locks.len();
        let points = u32::try_from(points).unwrap_or(u32::MAX) * self.repeats;
        self.point * (points + 6) + Duration::from_secs(3)
    }

    /// The faults of one store, on average, while others have theirs.
    pub(super) fn faults_take(&self) -> Duration {
        let each = Duration::from_secs(4);
        let faults = self.timelines + 1 + (self.faults + 1) * self.turns as usize;
        each * u32::try_from(faults).unwrap_or(u32::MAX) / u32::try_from(self.together).unwrap_or(1)
    }
}

async fn within<T>(end: Option<Instant>, run: impl Future<Output = T>) -> Option<T> {
    match end {
        Some(end) => timeout_at(end, run).await.ok(),
        None => Some(run.await),
    }
}

/// What happens to these servers in real life: what an operator fears comes first.
pub(super) fn telling(deployment: &dyn Deployment) -> impl Iterator<Item = Fault> {
    let there = deployment.faults();
    TELLING.into_iter().filter(move |fault| there.contains(fault))
}

const TELLING: [Fault; 12] = [
    Fault::ServerRestarted,
    Fault::MasterKilled,
    Fault::LeaderKilled,
    Fault::MinorityRestarted,
    Fault::CutOff,
    Fault::ServerFrozen,
    Fault::MasterFrozen,
    Fault::LeaderFrozen,
    Fault::MinorityFrozen,
    Fault::LeaderIsolated,
    Fault::MajorityCutOff,
    Fault::QuorumLost,
];

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn quick_ends_in_time_whatever_hangs() {
        let (began, plan) = (Instant::now(), Plan::quick());
        assert_eq!(plan.in_half_the_time(began, pending::<()>()).await, None);
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        assert_eq!(plan.in_time(began, pending::<()>()).await, None);
        assert!(began.elapsed() < Duration::from_secs(120), "{:?}", began.elapsed());
        assert_eq!(plan.in_time(began, async { 1 }).await, Some(1), "what is done counts");
    }

    #[test]
    fn quick_plans_ten_stores_for_less_time_than_it_has() {
        let plan = Plan::quick();
        let planned = (plan.speed_takes() + plan.faults_take()) * 10;
        assert!(Some(planned) < plan.within, "{planned:?}");
    }
}
