//! The end of a direction, where every fault takes effect.
//!
//! An outlet takes what is queued, decides by the settings of this very moment whether it waits,
//! passes or vanishes, and writes it. A direction that has lost anything never carries bytes
//! again: TCP knows no stream with a hole, and a client that pairs replies with requests by their
//! order would be shown a fault that no network has. Such a connection is reset when its hole ends.

use std::future::pending;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fencelock_core::{BootClock, Clock};
use rustix::net::Shutdown;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use super::kinds::{AfterDrop, Close, Direction, Item, What};
use super::splitter::{Piece, Splitter};
use super::state::{Link, Path, Settings, Shared, lock};

pub(super) struct Outlet<'a> {
    direction: Direction,
    shared: &'a Shared,
    link: &'a Arc<Link>,
    to: &'a TcpStream,
    queue: UnboundedReceiver<Item>,
    /// The other direction's queue: how the receiver's end of a connection reports to the sender's.
    back: UnboundedSender<Item>,
    settings: watch::Receiver<Settings>,
    splitter: Option<Splitter>,
    /// The receiver is gone: whatever comes is thrown away.
    receiver_gone: bool,
}

/// What the settings want done with the bytes at hand.
enum Verdict {
    Pass,
    Wait(Option<Instant>),
    Swallow,
    /// There was a hole, and it has ended.
    Torn,
}

impl<'a> Outlet<'a> {
    pub(super) fn new(
        direction: Direction,
        shared: &'a Shared,
        link: &'a Arc<Link>,
        to: &'a TcpStream,
        queue: UnboundedReceiver<Item>,
        back: UnboundedSender<Item>,
    ) -> Self {
        let splitter = shared.framing.map(|framing| Splitter::new(framing, direction));
        let settings = shared.settings.subscribe();
        Self { direction, shared, link, to, queue, back, settings, splitter, receiver_gone: false }
    }

    /// Runs until the connection has to be closed, and says how.
    pub(super) async fn run(&mut self) -> Close {
        loop {
            let item = tokio::select! {
                item = self.queue.recv() => item,
                _ = self.settings.changed() => {
                    if let Verdict::Torn = self.look() {
                        return Close::Reset;
                    }
                    continue;
                }
            };
            let Some(Item { at, what, .. }) = item else { return pending().await };
            let end = match self.turn(at).await {
                Err(how) => Some(how),
                Ok(Passage::Closed) => None,
                Ok(Passage::Open) => self.pass(at, what).await,
            };
            if let Some(how) = end {
                return how;
            }
        }
    }

    async fn pass(&mut self, at: Instant, what: What) -> Option<Close> {
        match what {
            What::Bytes(bytes) => self.pass_bytes(at, bytes).await,
            What::Injected(bytes) => self.write(at, &bytes).await.err(),
            What::Reset => Some(Close::Reset),
            What::Fin => {
                let held = self.splitter.as_mut().map(Splitter::flush).unwrap_or_default();
                if let Err(how) = self.write(at, &held).await {
                    return Some(how);
                }
                // It fails if the receiver has gone first, which it then knows best.
                let _ = rustix::net::shutdown(self.to, Shutdown::Write);
                let finished = self.link.finished.fetch_add(1, Ordering::SeqCst) + 1;
                (finished == 2).then_some(Close::Fin)
            }
        }
    }

    async fn pass_bytes(&mut self, at: Instant, bytes: Vec<u8>) -> Option<Close> {
        let mut out = Vec::new();
        let mut dropped = None;
        match &mut self.splitter {
            None => out = bytes,
            Some(splitter) => {
                splitter.push(&bytes);
                while let Some(piece) = splitter.next() {
                    match piece {
                        Piece::Plain(bytes) => out.extend(bytes),
                        Piece::Garbled(bytes) => {
                            tracing::warn!(direction = ?self.direction, "not the framing's protocol");
                            self.shared.stats.send_modify(|stats| stats.garbled += 1);
                            out.extend(bytes);
                        }
                        Piece::Message(request) if self.direction == Direction::ToServer => {
                            // Before it is passed on, or the reply could come first.
                            let doomed = lock(&self.shared.armed).doom(&request);
                            lock(&self.link.outstanding).push_back(doomed);
                            self.shared.stats.send_modify(|stats| stats.requests += 1);
                            out.extend(request);
                        }
                        Piece::Message(reply) => {
                            dropped = lock(&self.link.outstanding).pop_front().flatten();
                            if dropped.is_some() {
                                break;
                            }
                            if std::mem::take(&mut lock(&self.shared.armed).tear) {
                                out.extend(&reply[..reply.len() / 2]);
                                dropped = Some(AfterDrop::Fin);
                                break;
                            }
                            self.shared.stats.send_modify(|stats| stats.replies += 1);
                            out.extend(mangled(self.shared, reply));
                        }
                    }
                }
            }
        }
        if self.splitter.is_none() && self.direction == Direction::ToClient {
            out = mangled(self.shared, out);
        }
        if let (Some(host), Direction::ToClient) = (self.shared.host, self.direction) {
            move_servers(&mut out, host);
        }
        if let Err(how) = self.write(at, &out).await {
            return Some(how);
        }
        dropped.and_then(|then| self.reply_dropped(then))
    }

    fn reply_dropped(&self, then: AfterDrop) -> Option<Close> {
        if then == AfterDrop::BlackHole {
            let settings = self.settings.borrow();
            self.link.cut_off.store(settings.heals + 1, Ordering::SeqCst);
            self.link.tear(self.direction);
        }
        self.shared.stats.send_modify(|stats| stats.dropped_replies += 1);
        match then {
            AfterDrop::Fin => Some(Close::Fin),
            AfterDrop::Reset => Some(Close::Reset),
            AfterDrop::BlackHole => None,
        }
    }

    async fn write(&mut self, at: Instant, bytes: &[u8]) -> Result<(), Close> {
        let mut rest = bytes;
        while !rest.is_empty() && !self.receiver_gone {
            if let Passage::Closed = self.turn(at).await? {
                return Ok(());
            }
            let rate = self.settings.borrow().rate[self.direction as usize];
            // In pieces, or a long message would come late as a whole.
            let piece = if rate == 0 { rest.len() } else { rest.len().min(rate.div_ceil(50)) };
            let written = tokio::select! {
                ready = self.to.writable() => ready.and_then(|()| self.to.try_write(&rest[..piece])),
                // A receiver that does not read must not keep a switch from taking effect.
                _ = self.settings.changed() => continue,
            };
            match written {
                Ok(n) => {
                    rest = &rest[n..];
                    self.shared.count(self.direction, |traffic| traffic.forwarded += n as u64);
                    if rate > 0 {
                        self.narrow(n, rate).await;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    self.receiver_gone = true;
                    // On a real line the receiver's host would answer with an RST, which has to
                    // take the way back with all its faults.
                    let _ = self.back.send(Item::new(What::Reset));
                }
            }
        }
        Ok(())
    }

    /// What these bytes take on a line of this many a second.
    async fn narrow(&mut self, written: usize, rate: usize) {
        let takes = Duration::from_secs_f64(written as f64 / rate as f64);
        tokio::select! {
            () = sleep(takes) => {}
            _ = self.settings.changed() => {}
        }
    }

    /// Waits until what arrived at this time may go, or it is sure that it may not.
    async fn turn(&mut self, at: Instant) -> Result<Passage, Close> {
        loop {
            let until = match self.look_at(at) {
                Verdict::Pass => return Ok(Passage::Open),
                Verdict::Swallow => return Ok(Passage::Closed),
                Verdict::Torn => return Err(Close::Reset),
                Verdict::Wait(until) => until,
            };
            tokio::select! {
                () = sleep_until_maybe(until, self.shared.clock.get()) => {}
                _ = self.settings.changed() => {}
            }
        }
    }

    /// The verdict; a direction that swallows is marked while the settings are locked, so that
    /// healing the proxy sees every connection that has lost something.
    fn look_at(&mut self, at: Instant) -> Verdict {
        let settings = self.settings.borrow_and_update();
        let verdict = verdict(self.direction, self.link, &settings, at);
        if let Verdict::Swallow = verdict {
            self.link.tear(self.direction);
        }
        verdict
    }

    /// The verdict when there is nothing to pass, which therefore tears nothing.
    fn look(&mut self) -> Verdict {
        let settings = self.settings.borrow_and_update();
        verdict(self.direction, self.link, &settings, Instant::now())
    }
}

/// Puts the servers of 127.0.0.1 somewhere else, without a change of any length.
fn move_servers(message: &mut [u8], to: Ipv4Addr) {
    const HERE: &[u8] = b"127.0.0.1";
    let there = to.to_string();
    debug_assert_eq!(there.len(), HERE.len());
    let mut at = 0;
    while let Some(found) = message[at..].windows(HERE.len()).position(|part| part == HERE) {
        at += found;
        message[at..at + HERE.len()].copy_from_slice(there.as_bytes());
        at += HERE.len();
    }
}

enum Passage {
    Open,
    Closed,
}

fn verdict(direction: Direction, link: &Link, settings: &Settings, at: Instant) -> Verdict {
    let path = settings.path[direction as usize];
    let cut_off = link.cut_off.load(Ordering::SeqCst) == settings.heals + 1;
    if cut_off || path == Path::BlackHole {
        return Verdict::Swallow;
    }
    if link.torn[direction as usize].load(Ordering::SeqCst) {
        return Verdict::Torn;
    }
    if path == Path::Stalled {
        return Verdict::Wait(None);
    }
    let delay = settings.delay[direction as usize].saturating_add(settings.distance);
    match at.checked_add(delay) {
        Some(due) if due <= Instant::now() => Verdict::Pass,
        due => Verdict::Wait(due),
    }
}

fn mangled(shared: &Shared, mut bytes: Vec<u8>) -> Vec<u8> {
    let mangle = lock(&shared.armed).mangle.take();
    if let Some(mangle) = mangle {
        mangle(&mut bytes);
        shared.stats.send_modify(|stats| stats.mangled_replies += 1);
    }
    bytes
}

async fn sleep_until_maybe(until: Option<Instant>, fine: Option<&BootClock>) {
    match (until, fine) {
        (None, _) => pending().await,
        (Some(until), None) => sleep_until(until).await,
        (Some(until), Some(clock)) => {
            let left = until.saturating_duration_since(Instant::now());
            clock.sleep_until(clock.now() + left).await;
        }
    }
}
