//! What a lock costs: what goes over the lines, and what stays in memory.

use std::ops::Range;
use std::time::Duration;

use fencelock::{Error, ErrorKind, Guard, Locks, Result};
use fencelock_conformance::{How, Params, Want};
use fencelock_testkit::deployments::{self, Deployment, Meter};
use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::time::{Instant, sleep};

use crate::compare::board::Board;
use crate::compare::data::Spread;
use crate::compare::plan::Plan;

/// What of one client's acquisitions and releases goes over its lines, which must be proxied.
pub(crate) async fn on_the_lines(deployment: &dyn Deployment, board: &Board<'_>) -> Result<()> {
    const PAIRS: u32 = 300;
    const BOUND: Duration = Duration::from_secs(2);
    let locks = super::connect(&super::url_of(deployment)).await?;
    let lock = locks.lock("compare-cost");
    // The first one prepares what later ones use again.
    lock.acquire().await?.release().await?;
    let before = metered(deployment).await?;
    let end = Instant::now() + BOUND;
    let mut pairs = 0.0;
    while pairs < f64::from(PAIRS) && Instant::now() < end {
        lock.acquire().await?.release().await?;
        pairs += 1.0;
    }
    let after = metered(deployment).await?;
    locks.close().await?;
    board.store(|store| {
        let cost = store.cost_so_far();
        let each = |of: fn(&Meter) -> Option<u64>| grown(&before, &after, of).map(|it| it / pairs);
        cost.requests_per_pair = each(requests);
        cost.bytes_to_servers_per_pair = each(|it| it.traffic.map(|it| it.bytes_to_servers));
        cost.bytes_from_servers_per_pair = each(|it| it.traffic.map(|it| it.bytes_from_servers));
        cost.commands_per_pair = each(|it| it.commands);
    });
    Ok(())
}

/// What locks that are just held send over the lines.
pub(crate) async fn of_holding(
    deployment: &dyn Deployment,
    board: &Board<'_>,
    plan: &Plan,
) -> Result<()> {
    const LOCKS: u32 = 200;
    let params = params(deployment);
    let ttl = params.ttl;
    let locks = super::connect(&params.on_url(&deployment.url())).await?;
    let guards = hold(&locks, LOCKS).await?;
    let time = (plan.point * 4).max(ttl * 2 / 3);
    let mut meters = vec![(Instant::now(), metered(deployment).await?)];
    for _ in 0..plan.repeats {
        sleep(time).await;
        meters.push((Instant::now(), metered(deployment).await?));
    }
    release(guards).await?;
    locks.close().await?;
    let each = |from: &(Instant, Meter), to: &(Instant, Meter), of: fn(&Meter) -> Option<u64>| {
        let lock_minutes = f64::from(LOCKS) * (to.0 - from.0).as_secs_f64() / 60.0;
        grown(&from.1, &to.1, of).map(|it| it / lock_minutes)
    };
    let (first, last) = (&meters[0], &meters[meters.len() - 1]);
    let runs: Option<Vec<f64>> =
        meters.windows(2).map(|pair| each(&pair[0], &pair[1], bytes)).collect();
    board.store(|store| {
        let idle = store.cost_so_far().idle.get_or_insert_default();
        idle.locks = LOCKS;
        idle.ttl_s = ttl.as_secs_f64();
        idle.requests_per_minute = each(first, last, requests);
        idle.bytes_per_minute = each(first, last, bytes);
        idle.bytes_per_minute_runs = runs.map(Spread::of);
    });
    Ok(())
}

/// What held locks take in the servers, and in a fresh process that holds them.
pub(crate) async fn of_memory(deployment: &dyn Deployment, board: &Board<'_>) -> Result<()> {
    const WARM: u32 = 500;
    const LOCKS: u32 = 2_500;
    let peer =
        deployments::spawn_client(deployment, &params(deployment)).await.map_err(super::broken)?;
    let hold = async |slots: Range<u32>| {
        let asked = slots.map(async |slot| {
            let name = format!("compare-held-{slot}");
            peer.acquire(u64::from(slot), &name, How::Exclusive).await
        });
        let held = stream::iter(asked).buffer_unordered(TOGETHER).collect::<Vec<_>>().await;
        held.into_iter().collect::<std::result::Result<Vec<_>, _>>().map_err(super::broken)
    };
    // The first locks allocate what all share: connections, buffers, tables.
    hold(0..WARM).await?;
    let (before, resident_before) = (metered(deployment).await?, resident_bytes(peer.id()));
    hold(WARM..LOCKS).await?;
    let (after, resident_after) = (metered(deployment).await?, resident_bytes(peer.id()));
    peer.ask(Want::Leave).await.map_err(super::broken)?;
    let each = |bytes: f64| bytes / f64::from(LOCKS - WARM);
    board.store(|store| {
        let idle = store.cost_so_far().idle.get_or_insert_default();
        idle.server_memory_bytes = grown(&before, &after, |it| it.memory_bytes).map(each);
        let resident = resident_before.zip(resident_after);
        idle.client_memory_bytes =
            resident.map(|(before, after)| each(after.saturating_sub(before) as f64));
    });
    Ok(())
}

/// A TTL that each store accepts: a quorum's must be shorter than the quarantine of a node.
fn params(deployment: &dyn Deployment) -> Params {
    Params { ttl: Duration::from_secs(2), ..Params::under(&deployment.prefix()) }
}

fn requests(meter: &Meter) -> Option<u64> {
    meter.traffic.map(|traffic| traffic.requests)
}

fn bytes(meter: &Meter) -> Option<u64> {
    meter.traffic.map(|traffic| traffic.bytes_to_servers + traffic.bytes_from_servers)
}

fn grown(before: &Meter, after: &Meter, of: fn(&Meter) -> Option<u64>) -> Option<f64> {
    of(before).zip(of(after)).map(|(before, after)| after.saturating_sub(before) as f64)
}

async fn metered(deployment: &dyn Deployment) -> Result<Meter> {
    deployment.meter().await.map_err(super::broken)
}

/// How many requests a service would send at once.
const TOGETHER: usize = 128;

async fn hold(locks: &Locks, count: u32) -> Result<Vec<Guard>> {
    let asked = (0..count).map(|n| {
        let lock = locks.lock(format!("compare-held-{n}"));
        async move { lock.acquire().await }
    });
    stream::iter(asked).buffer_unordered(TOGETHER).collect::<Vec<_>>().await.into_iter().collect()
}

async fn release(guards: Vec<Guard>) -> Result<()> {
    let released = stream::iter(guards.into_iter().map(Guard::release));
    let released = released.buffer_unordered(TOGETHER).collect::<Vec<_>>().await;
    // A machine that is too busy loses some. They were renewed until then.
    let lost = |error: &Error| error.kind() == ErrorKind::NotHeld;
    released.into_iter().filter(|released| !released.as_ref().is_err_and(lost)).collect()
}

/// Of a process; proc_pid_statm(5).
fn resident_bytes(process: u32) -> Option<u64> {
    let statm = std::fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
