//! The downgrade of a writer to a reader.
//!
//! Other readers may hold the lock as soon as the request is sent, whatever becomes of the answer.
//! So the hold is a reader's from then on, and stays one: a repeated request finds it in either form.

use std::pin::pin;

use crate::engine::client::{ClientInner, silent};
use crate::engine::hold::{Ending, Hold};
use crate::guard::{Guard, run_while};
use crate::store::claim::{Claim, LockKind};
use crate::store::distributed_lock::RenewOutcome;
use crate::sync::Mutex;
use crate::time::backoff::Backoff;
use crate::types::error::{Error, ErrorKind, LostReason, Result, invalid};
use crate::types::mode::Mode;

/// How far the downgrade of a hold is.
#[derive(Debug, Default)]
pub(crate) struct Downgrade(Mutex<Stage>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    None,
    /// Requested, and not confirmed.
    Asked,
    Confirmed,
}

impl Downgrade {
    pub(crate) fn mode(&self, claim: &Claim) -> Mode {
        match *self.0.lock() {
            Stage::None => claim.mode(),
            Stage::Asked | Stage::Confirmed => Mode::Shared,
        }
    }

    /// Begins, unless it has begun. An acquisition of the same owner takes a share first and looks at the
    /// mode then: so it is counted here, or sees a reader.
    ///
    /// # Errors
    /// Others may write.
    fn begin(&self, is_sole: impl FnOnce() -> bool) -> Result<()> {
        let mut stage = self.0.lock();
        if *stage == Stage::None {
            if !is_sole() {
                let message = "other guards of its owner may still write; release them before the \
                               downgrade";
                return Err(invalid(message));
            }
            *stage = Stage::Asked;
        }
        Ok(())
    }

    fn confirm(&self) {
        *self.0.lock() = Stage::Confirmed;
    }

    fn is_confirmed(&self) -> bool {
        *self.0.lock() == Stage::Confirmed
    }
}

/// Downgrades `guard`, unless it is a reader's.
pub(crate) async fn run(guard: &Guard) -> Result<()> {
    let (client, hold) = (guard.client(), guard.hold());
    require(guard)?;
    if !guard.is_held() {
        return Err(lost(guard.lost().await));
    }
    if hold.claim().mode() == Mode::Shared || hold.downgrade().is_confirmed() {
        return Ok(());
    }
    hold.downgrade().begin(|| guard.is_sole())?;
    let asking = pin!(ask(client, hold));
    run_while(|| guard.is_held(), pin!(guard.lost()), asking).await.map_err(lost)?
}

fn require(guard: &Guard) -> Result<()> {
    let claim = guard.hold().claim();
    if claim.kind() != LockKind::ReadWrite {
        return Err(invalid(
            "only a writer of rw_lock() becomes a reader; acquire it by rw_lock(name).write()",
        ));
    }
    let profile = guard.client().store.profile();
    if !profile.downgrade {
        let store = profile.store;
        let message = format!(
            "the {store} store cannot make a writer a reader; release it and acquire read(), or see \
             docs/guarantees.md for the stores that can"
        );
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(())
}

fn lost(reason: LostReason) -> Error {
    Error::new(ErrorKind::Lost, reason.to_string())
}

/// Asks the store until it answers.
async fn ask(client: &ClientInner, hold: &Hold) -> Result<()> {
    let limit = client.settings.unreachable_after;
    let bound = client.now() + limit;
    let mut backoff = Backoff::start();
    let mut last_error = None;
    loop {
        let answer = client.until(bound, hold.cleanup.acquisition.downgrade()).await;
        match answer {
            Some(Ok(RenewOutcome::Renewed { valid_until })) => {
                hold.downgrade().confirm();
                // Too late means that the hold has ended, which the caller finds.
                if hold.extend(valid_until, client.now()) {
                    hold.was_extended();
                }
                return Ok(());
            }
            Some(Ok(RenewOutcome::Lost)) => {
                hold.end(Ending::Lost(LostReason::TakenAway), client.now());
                client.worker.remove(hold.claim().id);
                return Err(lost(LostReason::TakenAway));
            }
            Some(Err(error)) if !error.is_retryable() => return Err(error),
            Some(Err(error)) => last_error = Some(error),
            None => return Err(silent(limit, last_error.or_else(|| unanswered(hold)))),
        }
        let again = client.now() + backoff.next(hold.claim().seed());
        client.store.clock().sleep_until(again.min(bound)).await;
        if client.now() < again {
            return Err(silent(limit, last_error));
        }
    }
}

fn unanswered(hold: &Hold) -> Option<Error> {
    hold.cleanup.acquisition.unanswered()
}
