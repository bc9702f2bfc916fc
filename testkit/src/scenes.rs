//! Faults of connections and servers that are the same for several stores. A test chooses the clients: `near`
//! connects directly, `far` through the proxy.

use std::time::Duration;

use fencelock_core::{ErrorKind, Locks};
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::helpers::*;
use crate::proxy::{AfterDrop, Close, DropReply, NewConnections, Proxy};
use crate::servers::Instance;

/// The peer vanishes silently, such as behind a firewall that dropped the connection: another connection
/// replaces it within seconds. The TTL of `far` is `ttl`.
///
/// # Panics
/// When a hold is lost, or the waiter is not granted.
pub async fn half_open(proxy: &Proxy, near: &Locks, far: &Locks, ttl: Duration) {
    let kept = acquire(far, "kept").await;
    let blocker = acquire(near, "wanted").await;
    let waiter = spawn_waiter(far, "wanted");
    until_queued(near, "wanted", 1).await;
    proxy.drop_reply(DropReply::first(AfterDrop::BlackHole)).expect("a reply is dropped");
    soon("a reply vanishes", proxy.dropped_reply()).await;
    // The waiter cannot be notified over its connection: it is granted over the next one.
    release(blocker).await;
    let guard = until_granted(waiter).await;
    until_renewed(far, &kept, ttl).await;
    release(guard).await;
    release(kept).await;
}

/// The push of a release has no receiver: the waiter is granted once it has reconnected, in half of the rounds
/// within `soon_after` and the time of some requests, which a busy machine makes long. The TTL of `far` is
/// `ttl`.
///
/// # Panics
/// When it is granted late, or a hold is lost.
pub async fn released_while_down(
    proxy: &Proxy,
    near: &Locks,
    far: &Locks,
    ttl: Duration,
    soon_after: Duration,
) {
    let kept = acquire(far, "kept").await;
    let (mut late, mut request) = (Vec::new(), Vec::new());
    for round in 0..7 {
        let blocker = acquire(near, "wanted").await;
        let waiter = spawn_waiter(far, "wanted");
        until_queued(near, "wanted", 1).await;
        let how = if round % 2 == 0 { Close::Reset } else { Close::Fin };
        let before = proxy.stats().accepted;
        proxy.cut(how, NewConnections::Refused).await.expect("the connections are cut");
        release(blocker).await;
        proxy.heal().await.expect("the proxy heals");
        soon("the client reconnects", proxy.accepted(before + 1)).await;
        let back = Instant::now();
        let guard = until_granted(waiter).await;
        late.push(back.elapsed());
        let asked = Instant::now();
        assert!(is_busy(far, "wanted").await);
        request.push(asked.elapsed());
        release(guard).await;
    }
    // The check of each second would take half of one on average.
    late.sort_unstable();
    request.sort_unstable();
    let bound = soon_after + 10 * request[3];
    assert!(late[3] < bound, "granted so late after reconnecting: {late:?}, not within {bound:?}");
    until_renewed(far, &kept, ttl).await;
    release(kept).await;
}

/// Bytes that are not an answer make the client reconnect.
///
/// # Panics
/// When a waiter is not granted afterwards, or a hold is lost.
pub async fn garbage(proxy: &Proxy, near: &Locks, far: &Locks, garbage: &[&[u8]]) {
    let kept = acquire(far, "kept").await;
    for bytes in garbage {
        let shown = String::from_utf8_lossy(bytes);
        let blocker = acquire(near, "wanted").await;
        let waiter = spawn_waiter(far, "wanted");
        until_queued(near, "wanted", 1).await;
        assert!(proxy.inject(bytes) > 0);
        release(blocker).await;
        let guard = soon(&format!("after {shown:?} a waiter is granted"), waiter).await;
        release(guard.expect("it ends").expect("granted")).await;
        assert!(kept.is_held(), "lost by {shown:?}");
    }
    release(kept).await;
}

/// Tokens rise, also of waiters, whatever the server's clock does, which `jump` sets to so many seconds after the
/// right time. The TTL of `one` is shorter than a jump. `drained` awaits that nothing is left.
///
/// # Panics
/// When a token does not rise, or a waiter is not granted.
pub async fn jumping_clock(
    one: &Locks,
    other: &Locks,
    mut jump: impl AsyncFnMut(i64),
    mut drained: impl AsyncFnMut(),
) {
    let mut last = None;
    for seconds in [0, 40, 0, -40, 3600, -3600, 0] {
        let held = acquire(one, "lock").await;
        assert!(last < Some(held.fencing_token()), "before {seconds}");
        let waiters = [spawn_waiter(other, "lock"), spawn_waiter(one, "lock")];
        until_queued(one, "lock", 2).await;
        jump(seconds).await;
        // Kept or lost, but never a holder without an expiry.
        drop(held);
        let tokens = in_turns(waiters).await;
        assert!(tokens.len() == 2 && tokens.is_sorted(), "{seconds}: {tokens:?}");
        assert!(last < Some(tokens[0]), "{seconds}: {tokens:?} after {last:?}");
        last = tokens.last().copied();
        drained().await;
    }
}

/// Holders that are cut off, on servers whose clocks run fast, do not believe in their leases for too long: they are
/// lost before the next is granted.
///
/// # Panics
/// When one still believes in its lease, or a waiter is not granted.
pub async fn held_on_fast_clocks(near: &Locks, far: &Locks, cut_off: impl FnOnce()) {
    let hold = async |name: &'static str| {
        let lock = far.lock(name).ttl(ms(2500));
        let held = soon("acquired", lock.acquire()).await.expect("acquired");
        let waiter = spawn_waiter(near, name);
        until_queued(near, name, 1).await;
        (held, waiter)
    };
    let held = join_all(["one", "two", "three"].map(hold)).await;
    cut_off();
    join_all(held.into_iter().map(async |(held, waiter)| {
        let next = until_granted(waiter).await;
        assert!(!held.is_held(), "held {:?} too long", held.remaining());
        release(next).await;
    }))
    .await;
}

/// A frozen server: holders are lost in time, and it works again afterwards. The TTL is a second.
///
/// # Panics
/// When a wait is longer than its bound, or the loss is reported late.
pub async fn frozen(server: &Instance, locks: &Locks) {
    let held = acquire(locks, "lock").await;
    let waiter = spawn_waiter(locks, "lock");
    until_queued(locks, "lock", 1).await;
    let frozen = locks.now();
    server.freeze().await.expect("the server freezes");
    let lock = locks.lock("other").wait_at_most(ms(1500));
    let error = soon("a bounded wait ends", lock.acquire()).await.expect_err("it is bounded");
    assert_kind(&error, ErrorKind::Unreachable);
    assert_lost_in_time(locks, &held, frozen, ms(1000)).await;
    server.thaw().expect("the server continues");
    let next = until_granted(waiter).await;
    assert!(next.fencing_token() > held.fencing_token());
    until_renewed(locks, &next, ms(1000)).await;
    release(next).await;
    drop(held);
}
