//! Throughput, latency and hand-off of one store, without other clients on its servers.
//!
//! The clients are tasks of this process, which connect to the servers directly.

use std::time::Duration;

use fencelock::{Locks, Result};
use fencelock_testkit::deployments::Deployment;
use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use tokio::time::{Instant, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use crate::bench::{self, LockSource, Note};
use crate::compare::board::Board;
use crate::compare::data::{Cost, FixedRate, HandOff, Load, Spread};
use crate::compare::plan::Plan;
use crate::compare::report::counted;

pub(crate) async fn measure(
    deployment: &dyn Deployment,
    board: &Board<'_>,
    plan: &Plan,
) -> Result<()> {
    let locks = super::connect(&super::url_of(deployment)).await?;
    let source = LockSource::Store(locks.clone());
    // A virtual machine for Java compiles meanwhile, and connections are made.
    source.drive(load(16, 16, plan.point * 4, Note::Acquire)).await?;
    let most = plan.clients.iter().copied().max().unwrap_or(1);
    let mut fastest = 0.0;
    for &clients in plan.clients {
        let before = Used::so_far(deployment).await;
        let measured = repeated(&source, clients, clients, board, plan).await?;
        if clients == most {
            fastest = measured.load.pairs_per_s.median;
            let used = Used::so_far(deployment).await;
            board.store(|store| store.cost_so_far().set_cpu(&before, &used, measured.pairs));
        }
        board.store(|store| store.own_locks.push(measured.load));
    }
    for &clients in plan.clients {
        let measured = repeated(&source, clients, 1, board, plan).await?;
        board.store(|store| store.one_lock.push(measured.load));
    }
    for &count in plan.locks {
        let measured = repeated(&source, Plan::MANY_CLIENTS, count, board, plan).await?;
        board.store(|store| store.shared_locks.push(measured.load));
    }
    let hand_off = hand_off(&source, plan).await?;
    board.store(|store| store.hand_off = Some(hand_off));
    let fixed_rate = at_rate(&locks, fastest / 2.0, plan.point * 3).await?;
    board.store(|store| store.fixed_rate = Some(fixed_rate));
    board.saw(plan.point * 6, "hand-off and a fixed rate are measured");
    locks.close().await
}

fn load(clients: u32, locks: u32, time: Duration, note: Note) -> bench::Load {
    bench::Load { clients: 0..clients, locks, time, note }
}

struct Measured {
    load: Load,
    pairs: u64,
}

async fn repeated(
    source: &LockSource,
    clients: u32,
    locks: u32,
    board: &Board<'_>,
    plan: &Plan,
) -> Result<Measured> {
    let (mut rates, mut p50s, mut p99s) = (Vec::new(), Vec::new(), Vec::new());
    let mut pairs = 0;
    for _ in 0..plan.repeats {
        let seen = source.drive(load(clients, locks, plan.point, Note::Acquire)).await?;
        let done = seen.pairs.iter().sum::<u64>();
        pairs += done;
        rates.push(done as f64 / seen.elapsed);
        let latencies = bench::histogram(&[seen]);
        p50s.push(in_us(latencies.value_at_quantile(0.5)));
        p99s.push(in_us(latencies.value_at_quantile(0.99)));
    }
    let [pairs_per_s, acquire_p50_us, acquire_p99_us] = [rates, p50s, p99s].map(Spread::of);
    let load = Load { clients, locks, pairs_per_s, acquire_p50_us, acquire_p99_us };
    let rate = load.pairs_per_s.median;
    board.saw(
        plan.point * plan.repeats,
        &format!(
            "{} with {}: {rate:.0} pairs/s",
            counted(clients.into(), "client", "clients"),
            counted(locks.into(), "lock", "locks")
        ),
    );
    Ok(Measured { load, pairs })
}

/// Several runs, since one p99 says little without another.
async fn hand_off(source: &LockSource, plan: &Plan) -> Result<HandOff> {
    let clients = Plan::MANY_CLIENTS / 2;
    let time = (plan.point * 4 / plan.repeats).max(Duration::from_millis(500));
    let mut took = bench::new_histogram();
    let (mut p99s, mut pairs, mut overtaken) = (Vec::new(), vec![0; clients as usize], 0);
    for _ in 0..plan.repeats {
        let seen = source.drive(load(clients, 1, time, Note::Hold)).await?;
        let handed_off = bench::handed_off(seen.holds.iter().copied());
        p99s.push(in_us(handed_off.took.value_at_quantile(0.99)));
        let added = took.add(&handed_off.took);
        debug_assert!(added.is_ok(), "histograms of one shape");
        overtaken += handed_off.overtaken as u64;
        pairs.iter_mut().zip(&seen.pairs).for_each(|(all, one)| *all += one);
    }
    let at = |quantile| in_us(took.value_at_quantile(quantile));
    Ok(HandOff {
        clients,
        grants: pairs.iter().sum(),
        p50_us: at(0.5),
        p90_us: at(0.9),
        p99_us: at(0.99),
        p99_runs_us: Some(Spread::of(p99s)),
        max_us: in_us(took.max()),
        distribution: distribution(&took),
        fairness: bench::fairness(&pairs),
        overtaken,
    })
}

/// No more points than a chart has pixels across.
fn distribution(took: &Histogram<u64>) -> Vec<(f64, f64)> {
    const POINTS: f64 = 200.0;
    let mut points: Vec<(f64, f64)> = Vec::new();
    let mut below = 0;
    for recorded in took.iter_recorded() {
        below += recorded.count_at_value();
        let share = below as f64 / took.len() as f64;
        if points.last().is_none_or(|(_, last)| share - last >= 1.0 / POINTS) || share >= 1.0 {
            points.push((in_us(recorded.value_iterated_to()), share));
        }
    }
    points
}

/// Clients with a lock of their own each ask at fixed times, all together at `rate`.
async fn at_rate(locks: &Locks, rate: f64, time: Duration) -> Result<FixedRate> {
    let clients = Plan::MANY_CLIENTS;
    let rate = rate.max(1.0);
    let interval = Duration::from_secs_f64(f64::from(clients) / rate);
    let start = Instant::now();
    let end = start + time.max(interval * 4).max(Duration::from_millis(500));
    let each = (0..clients).map(|client| {
        let lock = locks.lock(format!("compare-rate-{client}"));
        let first = start + interval * client / clients;
        let task = AbortOnDropHandle::new(tokio::spawn(async move {
            let mut corrected = bench::new_histogram();
            let mut plain = bench::new_histogram();
            let expected = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
            let mut due = first;
            while due < end {
                sleep_until(due).await;
                let asked = bench::now();
                let guard = lock.acquire().await?;
                let took = bench::now() - asked;
                guard.release().await?;
                plain.saturating_record(took);
                let recorded = corrected.record_correct(took, expected);
                debug_assert!(recorded.is_ok(), "within a day");
                due += interval;
            }
            Ok::<_, fencelock::Error>((corrected, plain))
        }));
        async { task.await.map_err(super::broken) }
    });
    let (mut corrected, mut plain) = (bench::new_histogram(), bench::new_histogram());
    for one in try_join_all(each).await? {
        let (one_corrected, one_plain) = one?;
        let added = corrected.add(one_corrected).and(plain.add(one_plain));
        debug_assert!(added.is_ok(), "histograms of one shape");
    }
    let at = |quantile| in_us(corrected.value_at_quantile(quantile));
    Ok(FixedRate {
        asked_per_s: rate,
        done_per_s: plain.len() as f64 / start.elapsed().as_secs_f64(),
        acquire_p50_us: at(0.5),
        acquire_p99_us: at(0.99),
        acquire_p999_us: at(0.999),
        acquire_max_us: in_us(corrected.max()),
        uncorrected_p99_us: in_us(plain.value_at_quantile(0.99)),
    })
}

/// Processor time so far.
struct Used {
    /// `None` where there are no servers, or they are not ours.
    servers_s: Option<f64>,
    client_ns: u64,
}

impl Used {
    async fn so_far(deployment: &dyn Deployment) -> Used {
        // A server that does not answer reports nothing; the load itself would have failed.
        let servers_s = deployment.meter().await.ok().and_then(|meter| meter.cpu_s);
        Used { servers_s, client_ns: bench::cpu_time() }
    }
}

impl Cost {
    fn set_cpu(&mut self, before: &Used, after: &Used, pairs: u64) {
        let pairs = pairs.max(1) as f64;
        self.server_cpu_us_per_pair = before
            .servers_s
            .zip(after.servers_s)
            .map(|(before, after)| 1e6 * (after - before) / pairs);
        self.client_cpu_us_per_pair =
            Some((after.client_ns - before.client_ns) as f64 / 1e3 / pairs);
    }
}

fn in_us(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_rises_to_one() {
        let mut took = bench::new_histogram();
        for value in 1..=10_000 {
            took.saturating_record(value * 1000);
        }
        let points = distribution(&took);
        assert!(points.len() <= 201 && points.len() > 50, "{}", points.len());
        assert!(points.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1));
        assert!((points.last().expect("points").1 - 1.0).abs() < 1e-9);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_fixed_rate_is_kept() {
        let locks = fencelock::connect("mem://").await.expect("memory");
        let seen = at_rate(&locks, 2_000.0, Duration::from_millis(500)).await.expect("measured");
        assert!(seen.done_per_s > 0.0 && seen.acquire_p50_us <= seen.acquire_max_us, "{seen:?}");
        assert!(seen.uncorrected_p99_us <= seen.acquire_max_us, "{seen:?}");
    }
}
