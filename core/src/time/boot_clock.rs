//! The clock of every store that outlives the process: `CLOCK_BOOTTIME`, which also runs while the
//! machine sleeps.
//!
//! A laptop or a VM that was suspended for longer than a lease must find its lock lost, and
//! tokio's timers, on `CLOCK_MONOTONIC`, would not notice. One `timerfd` per clock wakes all
//! sleepers; other systems than Linux use a coarse tokio timer.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use rustix::time::clock_gettime;

use crate::sync::Mutex;
use crate::time::moment::{Clock, Moment};

/// Time since the machine booted, suspends included, and its timer.
///
/// All of one machine agree until it reboots, so that its processes may share moments of it; a store that
/// outlives a reboot keeps the boot's id with them. Those of two machines differ, and those of two time
/// namespaces: what clients of several machines compare is a [`StoreTime`](crate::backend::StoreTime).
///
/// One task on the runtime that created it wakes the sleepers; it ends with the clock. When that
/// runtime ends first, every sleep ends: a caller on another runtime then finds the store closed.
#[derive(Debug)]
pub struct BootClock {
    sleepers: Arc<Sleepers>,
    task: tokio::task::AbortHandle,
}

impl BootClock {
    /// Starts the clock's task on the current runtime.
    ///
    /// # Errors
    /// When the process has no file descriptor left for the timer.
    ///
    /// # Panics
    /// Outside a tokio runtime whose I/O and time drivers are enabled.
    pub fn start() -> std::io::Result<BootClock> {
        let timer = Arc::new(timer::Timer::new()?);
        let sleepers = Arc::new(Sleepers { timer: timer.clone(), queue: Mutex::default() });
        let stop = StopOnDrop(sleepers.clone());
        let task = tokio::spawn(wake_sleepers(timer, stop)).abort_handle();
        Ok(BootClock { sleepers, task })
    }
}

impl Drop for BootClock {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Clock for BootClock {
    fn now(&self) -> Moment {
        now()
    }

    fn sleep_until(&self, at: Moment) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(Sleep { sleepers: &self.sleepers, at, ticket: None })
    }
}

fn now() -> Moment {
    let time = clock_gettime(timer::CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Moment::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

#[derive(Debug)]
struct Sleepers {
    timer: Arc<timer::Timer>,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    by_time: BTreeMap<(Moment, u64), Waker>,
    last_ticket: u64,
    /// The task's runtime has ended: no timer fires any more.
    stopped: bool,
    /// The timer's setting. Only an earlier sleeper sets it again.
    armed: Option<Moment>,
}

impl Sleepers {
    /// Registers a sleeper. `false` when the clock has stopped and will not wake it.
    fn register(&self, at: Moment, ticket: &mut Option<u64>, waker: &Waker) -> bool {
        let mut queue = self.queue.lock();
        if queue.stopped {
            return false;
        }
        let ticket = *ticket.get_or_insert_with(|| {
            queue.last_ticket += 1;
            queue.last_ticket
        });
        queue.by_time.insert((at, ticket), waker.clone());
        if queue.armed.is_none_or(|armed| at < armed) {
            queue.armed = Some(at);
            self.timer.set(at);
        }
        true
    }

    /// Wakes all sleepers that are due and sets the timer for the next.
    fn wake_due(&self) {
        let due = {
            let mut queue = self.queue.lock();
            let later = queue.by_time.split_off(&(now(), u64::MAX));
            let due = std::mem::replace(&mut queue.by_time, later);
            queue.armed = queue.by_time.keys().next().map(|(at, _)| *at);
            if let Some(at) = queue.armed {
                self.timer.set(at);
            }
            due
        };
        due.into_values().for_each(Waker::wake);
    }
}

/// Ends every sleep when the task ends: no caller may wait for a bound that cannot be kept.
struct StopOnDrop(Arc<Sleepers>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        let sleepers = {
            let mut queue = self.0.queue.lock();
            queue.stopped = true;
            std::mem::take(&mut queue.by_time)
        };
        sleepers.into_values().for_each(Waker::wake);
    }
}

async fn wake_sleepers(timer: Arc<timer::Timer>, stop: StopOnDrop) {
    loop {
        timer.fired().await;
        stop.0.wake_due();
    }
}

struct Sleep<'a> {
    sleepers: &'a Sleepers,
    at: Moment,
    ticket: Option<u64>,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.at == Moment::NEVER {
            return Poll::Pending;
        }
        if now() >= self.at {
            return Poll::Ready(());
        }
        let (sleepers, at) = (self.sleepers, self.at);
        let is_asleep = sleepers.register(at, &mut self.ticket, cx.waker());
        if is_asleep { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.sleepers.queue.lock().by_time.remove(&(self.at, ticket));
        }
    }
}

#[cfg(target_os = "linux")]
mod timer {
    //! `timerfd` on `CLOCK_BOOTTIME`.

    use rustix::time::{
        ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec,
        timerfd_create, timerfd_settime,
    };
    use std::os::fd::OwnedFd;
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use crate::time::moment::Moment;

    pub(super) const CLOCK: ClockId = ClockId::Boottime;

    #[derive(Debug)]
    pub(super) struct Timer(AsyncFd<OwnedFd>);

    impl Timer {
        pub(super) fn new() -> std::io::Result<Timer> {
            let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
            let fd = timerfd_create(TimerfdClockId::Boottime, flags)?;
            // The safe constructor is deprecated for types that may not own their descriptor; an
            // OwnedFd does, and the replacement is unsafe code.
            #[allow(deprecated)]
            let timer = AsyncFd::with_interest(fd, Interest::READABLE)?;
            Ok(Timer(timer))
        }

        pub(super) fn set(&self, at: Moment) {
            const SECOND: u64 = 1_000_000_000;
            let nanos = at.as_nanos();
            let value = Timespec {
                tv_sec: i64::try_from(nanos / SECOND).unwrap_or(i64::MAX),
                // A remainder of a second fits every integer type; all zero would disarm.
                tv_nsec: (nanos % SECOND).max(1) as _,
            };
            let interval = Timespec { tv_sec: 0, tv_nsec: 0 };
            let spec = Itimerspec { it_interval: interval, it_value: value };
            // Fails only for an invalid value, which is not built above, or a bad descriptor.
            let set = timerfd_settime(self.0.get_ref(), TimerfdTimerFlags::ABSTIME, &spec);
            debug_assert!(set.is_ok(), "timerfd_settime: {set:?}");
        }

        pub(super) async fn fired(&self) {
            let mut expirations = [0u8; 8];
            match self.0.readable().await {
                Ok(mut ready) => {
                    // Reading is what makes the descriptor wait for the next expiry.
                    let _ = rustix::io::read(self.0.get_ref(), &mut expirations);
                    ready.clear_ready();
                }
                // The runtime is shutting down: no sleeper is left.
                Err(_) => std::future::pending().await,
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod timer {
    //! Other systems: the monotonic clock (on macOS it also runs during sleep) and a tokio timer that
    //! reads it at least once a second, so that a loss after a suspend is noticed at most a second
    //! late. `is_held` is exact all the same.

    use crate::sync::Mutex;
    use rustix::time::ClockId;
    use std::time::Duration;
    use tokio::sync::Notify;

    use crate::time::moment::Moment;

    pub(super) const CLOCK: ClockId = ClockId::Monotonic;

    #[derive(Debug)]
    pub(super) struct Timer {
        at: Mutex<Moment>,
        changed: Notify,
    }

    impl Timer {
        pub(super) fn new() -> std::io::Result<Timer> {
            Ok(Timer { at: Mutex::new(Moment::NEVER), changed: Notify::new() })
        }

        pub(super) fn set(&self, at: Moment) {
            *self.at.lock() = at;
            self.changed.notify_one();
        }

        pub(super) async fn fired(&self) {
            loop {
                let at = *self.at.lock();
                let left = at.duration_since(super::now());
                if left.is_zero() {
                    *self.at.lock() = Moment::NEVER;
                    return;
                }
                let nap = left.min(Duration::from_secs(1));
                tokio::select! {
                    () = tokio::time::sleep(nap) => {}
                    () = self.changed.notified() => {}
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn sleepers_wake_in_order_and_not_early() {
        let clock = Arc::new(BootClock::start().unwrap());
        let start = clock.now();
        let naps: Vec<_> = [30u64, 10, 20]
            .into_iter()
            .map(|ms| {
                let clock = clock.clone();
                let at = start + Duration::from_millis(ms);
                tokio::spawn(async move {
                    clock.sleep_until(at).await;
                    assert!(clock.now() >= at);
                    ms
                })
            })
            .collect();
        for nap in naps {
            nap.await.unwrap();
        }
        assert!(clock.sleepers.queue.lock().by_time.is_empty());
    }

    #[tokio::test]
    async fn a_dropped_sleep_leaves_nothing_and_a_past_one_ends_at_once() {
        let clock = BootClock::start().unwrap();
        let far = clock.now() + Duration::from_secs(3600);
        tokio::select! {
            () = clock.sleep_until(far) => panic!("an hour passed"),
            () = clock.sleep_until(clock.now()) => {}
        }
        assert!(clock.sleepers.queue.lock().by_time.is_empty());
    }
}
