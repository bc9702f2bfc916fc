//! The peer's side: the program itself, executed again, as a client that carries out requests.
//!
//! It ends as abruptly as it can when its parent goes away, so that no test leaves a process
//! behind; and it never unwinds into the parent's own `main`.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use fencelock_core::{Error, ErrorKind, Guard, Locks, Result};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::sync::watch;

use super::protocol::{Answer, Hello, Reply, Request, Want};
use super::{torture, work};
use crate::harness::Harness;
use crate::harness::scratch::Connect;
use crate::harness::url::UrlHarness;
use crate::processes::database::OpenRegisters;
use crate::processes::trouble;

/// Set for a program that is to be a peer.
pub(crate) const ASKED: &str = "FENCELOCK_CONFORMANCE_PEER";

/// Becomes a peer process and never returns, if this program was executed as one. The first thing
/// in the `main` of a program that calls [`run_against_url`](crate::run_against_url).
///
/// `registers` are those that peers write to in a torture test of a store that is in a database.
pub fn peer_main_if_asked(connect: Connect, registers: Option<OpenRegisters>) {
    let harness: Arc<dyn Harness> = Arc::new(UrlHarness::of_peer(connect));
    serve_if_asked(&[harness], registers);
}

/// As [`peer_main_if_asked`], of the harness that the parent named, or of the only one. [`main`](crate::main) calls
/// it.
pub fn serve_if_asked(harnesses: &[Arc<dyn Harness>], registers: Option<OpenRegisters>) {
    crate::processes::register::process::serve_if_asked();
    let Some(asked) = std::env::var_os(ASKED) else { return };
    let named = harnesses.iter().find(|harness| asked == harness.name());
    let Some(harness) = named.or(harnesses.first()) else { return };
    let served =
        match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
            Ok(runtime) => runtime.block_on(serve(harness, registers)),
            Err(error) => Err(trouble(&error)),
        };
    match served {
        // As abrupt as a crash: what is held is for the store to free.
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("peer process: {error}");
            std::process::exit(1);
        }
    }
}

async fn serve(harness: &Arc<dyn Harness>, registers: Option<OpenRegisters>) -> Result<()> {
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let Some(hello) = next::<Hello>(&mut lines).await? else { return Ok(()) };
    let locks = match harness.connect_peer(&hello.address, &hello.params).await {
        Ok(locks) => locks,
        // The parent decides what that means.
        Err(error) => {
            say(&Reply { id: 0, answer: refusal(&error) });
            return Ok(());
        }
    };
    say(&Reply { id: 0, answer: Answer::Done });
    let (calm, _) = watch::channel(0);
    let peer = Arc::new(State { locks, guards: Mutex::default(), registers, calm });
    while let Some(request) = next::<Request>(&mut lines).await? {
        let peer = peer.clone();
        tokio::spawn(async move {
            let answer = peer.carry_out(request.want).await.unwrap_or_else(|e| refusal(&e));
            say(&Reply { id: request.id, answer });
        });
    }
    Ok(())
}

async fn next<T: serde::de::DeserializeOwned>(
    lines: &mut Lines<BufReader<Stdin>>,
) -> Result<Option<T>> {
    let Some(line) = lines.next_line().await.map_err(|error| trouble(&error))? else {
        return Ok(None);
    };
    serde_json::from_str(&line).map(Some).map_err(|error| trouble(&error))
}

fn say(reply: &Reply) {
    let Ok(mut line) = serde_json::to_vec(reply) else { return };
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    // A parent that is gone is noticed at the end of stdin.
    let _ = out.write_all(&line).and_then(|()| out.flush());
}

fn refusal(error: &Error) -> Answer {
    Answer::Failed { kind: error.kind().message().to_owned(), message: error.to_string() }
}

struct State {
    locks: Locks,
    guards: Mutex<HashMap<u64, Guard>>,
    registers: Option<OpenRegisters>,
    /// How often work was to be finished.
    calm: watch::Sender<u64>,
}

impl State {
    fn guards(&self) -> MutexGuard<'_, HashMap<u64, Guard>> {
        self.guards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn carry_out(&self, want: Want) -> Result<Answer> {
        match want {
            Want::Acquire { slot, name, how, wait_at_most, ttl, local_handoffs } => {
                let mut lock = how.lock(&self.locks, &name);
                if local_handoffs > 1 {
                    lock = lock.local_handoffs(local_handoffs);
                }
                if let Some(limit) = wait_at_most {
                    lock = lock.wait_at_most(limit);
                }
                if let Some(ttl) = ttl {
                    lock = lock.ttl(ttl);
                }
                let guard = lock.acquire().await?;
                let token = guard.fencing_token().get();
                self.guards().insert(slot, guard);
                Ok(Answer::Granted { token })
            }
            Want::Release { slot } => {
                let guard = self.guards().remove(&slot);
                guard.ok_or_else(no_guard)?.release().await?;
                Ok(Answer::Done)
            }
            Want::IsHeld { slot } => {
                let held = self.guards().get(&slot).map(Guard::is_held);
                Ok(Answer::Is(held.ok_or_else(no_guard)?))
            }
            Want::Work { name, how, ttl, rounds, counter, history } => {
                let lock = how.lock(&self.locks, &name).ttl(ttl);
                work::work(&lock, &name, how, rounds, &counter, &history).await?;
                Ok(Answer::Done)
            }
            Want::Participants { name } => {
                let seen = self.locks.inspect(&name).await?;
                let count = seen.holders.len() + seen.waiters.len();
                Ok(Answer::Count(count.try_into().unwrap_or(u64::MAX)))
            }
            Want::Torture(shift) => {
                let calm = self.calm.subscribe();
                let errors = torture::work(&self.locks, &shift, self.registers, &calm).await?;
                Ok(Answer::Errors(errors))
            }
            Want::Sum { counter } => {
                // An addition, after which no earlier request that is still on its way can be carried out.
                Ok(Answer::Sum(self.locks.counter(counter).add(0).await?))
            }
            Want::Calm => {
                self.calm.send_modify(|times| *times += 1);
                Ok(Answer::Done)
            }
            Want::Leave => {
                self.locks.close().await?;
                Ok(Answer::Done)
            }
            Want::WallClock => {
                let time = SystemTime::now().duration_since(UNIX_EPOCH);
                Ok(Answer::Count(time.map_or(0, |time| time.as_secs())))
            }
            Want::Crash => std::process::abort(),
        }
    }
}

fn no_guard() -> Error {
    Error::new(ErrorKind::InvalidArgument, "there is no guard in that slot")
}
