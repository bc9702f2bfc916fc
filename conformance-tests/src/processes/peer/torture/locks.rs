//! Locks: each worker acquires, holds, writes, and leaves in one of many ways.
//!
//! The workers are careless: they write without asking the guard first, since a process can be
//! stopped between the question and the write anyway. What keeps the register right is its check of
//! the token.

use std::io;
use std::time::Duration;

use fencelock_core::{ErrorKind, Guard, Lock, Result, all};
use rand::RngExt;
use rand::seq::IteratorRandom;
use tokio::time::{sleep, timeout};

use super::tools::{Calm, Tools};
use super::transactions::Transactions;
use crate::history::{ClaimId, What};
use crate::how::How;
use crate::processes::register::process::Registers;
use crate::processes::workload::{Errors, is_account, lock_name};

pub(super) struct Client {
    pub(super) tools: Tools,
    pub(super) registers: Registers,
    pub(super) transactions: Option<Transactions>,
}

/// What came of asking for a lock, or for several.
enum Asked<G> {
    Granted(G),
    Refused,
    /// It was dropped on the way.
    Cancelled,
}

/// For how long a client waits.
#[derive(Clone, Copy)]
enum Patience {
    /// Not at all.
    Tries,
    AtMost(Duration),
    /// It drops the acquisition after that time.
    DropsAfter(Duration),
    Endless,
}

/// Acquires with that patience: by `tried`, or by `acquired`, which has its wait limit.
async fn ask<G>(
    patience: Patience,
    tried: impl Future<Output = Result<Option<G>>>,
    acquired: impl Future<Output = Result<G>>,
) -> Result<Asked<G>> {
    let asked = match patience {
        Patience::Tries => tried.await?,
        Patience::DropsAfter(time) => match timeout(time, acquired).await {
            Ok(acquired) => Some(acquired?),
            Err(_) => return Ok(Asked::Cancelled),
        },
        Patience::AtMost(_) | Patience::Endless => Some(acquired.await?),
    };
    Ok(asked.map_or(Asked::Refused, Asked::Granted))
}

impl Client {
    pub(super) async fn work(mut self, calm: Calm) -> io::Result<Errors> {
        while !calm.has_come() {
            self.once().await?;
        }
        Ok(self.tools.errors)
    }

    async fn once(&mut self) -> io::Result<()> {
        let number = self.tools.random.random_range(0..self.tools.workload.locks);
        let is_account = is_account(number);
        if is_account && self.tools.workload.locks > 3 && self.tools.random.random_bool(0.3) {
            return self.move_money().await;
        }
        let (name, how) = (lock_name(number), self.any_mode());
        let patience = self.any_patience();
        let mut lock = self.lock(how, &name, is_account);
        if let Patience::AtMost(limit) = patience {
            lock = lock.wait_at_most(limit);
        }
        let claim = self.tools.history.invoke(&name, how);
        let asked = ask(patience, lock.try_acquire(), lock.acquire()).await;
        if let Some(guard) = self.answered(asked, std::slice::from_ref(&claim)).await {
            self.tools.history.granted(&guard, &claim);
            self.hold(&guard, &name, how, &claim).await?;
            self.leave(guard, &claim).await;
        }
        Ok(())
    }

    /// Locks two or three accounts at once, and moves money to the first of them.
    async fn move_money(&mut self) -> io::Result<()> {
        let accounts = (0..self.tools.workload.locks).filter(|number| is_account(*number));
        let count = self.tools.random.random_range(2..=3);
        let names: Vec<String> = accounts.map(lock_name).sample(&mut self.tools.random, count);
        let patience = self.any_patience();
        let (mut locks, mut claims) = (Vec::new(), Vec::new());
        for name in &names {
            locks.push(self.lock(How::Exclusive, name, true));
            claims.push(self.tools.history.invoke(name, How::Exclusive));
        }
        let mut all = all(locks);
        if let Patience::AtMost(limit) = patience {
            all = all.wait_at_most(limit);
        }
        let asked = ask(patience, all.try_acquire(), all.acquire()).await;
        let Some(guards) = self.answered(asked, &claims).await else { return Ok(()) };
        let mut accounts = Vec::new();
        for (index, (name, claim)) in names.into_iter().zip(&claims).enumerate() {
            self.tools.history.granted(&guards[index], claim);
            accounts.push((name, guards[index].fencing_token().get()));
        }
        let balances = self.registers.balances(&accounts).await?;
        sleep(self.tools.usual_hold()).await;
        let amount = self.tools.random.random_range(1..100);
        self.registers.collect(&accounts, balances, amount).await?;
        for (index, claim) in claims.iter().enumerate() {
            self.tools.history.releasing(&guards[index], claim);
        }
        if self.tools.random.random_bool(0.9) {
            let released = guards.release().await;
            // An error is of one of them, and does not say of which.
            if released.is_ok() {
                claims.iter().for_each(|claim| self.tools.history.released(claim, &released));
            }
        }
        Ok(())
    }

    /// The lock, and as an account's mostly with local hand-offs.
    fn lock(&mut self, how: How, name: &str, is_account: bool) -> Lock {
        let lock = how.lock(&self.tools.locks, name).ttl(self.tools.workload.ttl);
        let most = self.tools.locks.profile().max_local_handoffs.min(16);
        if how == How::Exclusive && is_account && most > 1 && self.tools.random.random_bool(0.8) {
            return lock.local_handoffs(most);
        }
        lock
    }

    /// Writes down what came of asking, if it is not a grant.
    async fn answered<G>(&mut self, asked: Result<Asked<G>>, claims: &[ClaimId]) -> Option<G> {
        let (what, error) = match asked {
            Ok(Asked::Granted(granted)) => return Some(granted),
            Ok(Asked::Refused) => (What::Refused, None),
            Ok(Asked::Cancelled) => (What::Unknown, None),
            // Only a busy lock is a sure no.
            Err(error) if error.kind() == ErrorKind::WaitTimedOut => (What::Refused, None),
            Err(error) => (What::Unknown, Some(error)),
        };
        for claim in claims {
            self.tools.history.record(claim, what);
        }
        if let Some(error) = error {
            self.tools.count(&error).await;
        }
        None
    }

    fn any_mode(&mut self) -> How {
        let modes = self.tools.locks.profile().modes;
        match self.tools.random.random_range(0..10) {
            0 if modes.shared => How::Shared,
            1 if modes.permits => {
                How::Permits { n: self.tools.random.random_range(1..=2), limit: 3 }
            }
            _ => How::Exclusive,
        }
    }

    fn any_patience(&mut self) -> Patience {
        let ms = Duration::from_millis(self.tools.random.random_range(0..100));
        match self.tools.random.random_range(0..10) {
            0 => Patience::Tries,
            1 => Patience::AtMost(ms),
            2 => Patience::DropsAfter(ms / 5),
            _ => Patience::Endless,
        }
    }

    /// Reads, waits, writes: another one in between is what a lock is there to prevent.
    async fn hold(
        &mut self,
        guard: &Guard,
        name: &str,
        how: How,
        claim: &ClaimId,
    ) -> io::Result<()> {
        let token = guard.fencing_token().get();
        let read = match how == How::Exclusive {
            true => Some(self.registers.read(name, token).await?),
            false => None,
        };
        // Made at once: later the guard would refuse what the database is to refuse.
        let check = match (read, &self.transactions) {
            (Some(_), Some(_)) => guard.check().ok(),
            _ => None,
        };
        if self.tools.random.random_range(0..2_000) == 0 {
            self.tools.hold_for_long(guard, claim).await;
        }
        match (&mut self.transactions, check) {
            (Some(transactions), Some(check)) if transactions.are_due(&mut self.tools) => {
                transactions.run(&mut self.tools, name, &check, claim).await;
            }
            _ => sleep(self.tools.usual_hold()).await,
        }
        if let Some(values) = read {
            self.registers.write(name, token, values.map(|value| value + 1)).await?;
        }
        Ok(())
    }

    async fn leave(&mut self, guard: Guard, claim: &ClaimId) {
        match self.tools.random.random_range(0..20) {
            0 => {
                self.tools.history.releasing(&guard, claim);
                drop(guard);
            }
            1 => {
                self.tools.history.releasing(&guard, claim);
                // Dropped on its way.
                let _ = timeout(Duration::ZERO, guard.release()).await;
            }
            _ => {
                // What it answered is in the history.
                let _ = self.tools.history.release(guard, claim).await;
            }
        }
    }
}
