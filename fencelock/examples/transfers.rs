//! Money that moves between accounts: 20 clerks transfer random amounts between random accounts, in both
//! directions at the same time, and the sum of all accounts stays what it was. `fencelock::all` acquires
//! the locks of both accounts in one order for everyone. Clerks that acquired first the one and then the
//! other would soon wait for each other for ever.
//!
//! ```sh
//! cargo run --example transfers
//! cargo run --features redis --example transfers -- redis://127.0.0.1/
//! ```

use std::sync::Arc;
use std::time::Duration;

use fencelock::{FencingToken, Lock, Locks};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ACCOUNTS: usize = 6;
const CLERKS: u64 = 20;
/// In cents, as all amounts.
const AT_FIRST: u64 = 1_000_000;

/// The bank's database. One transaction is atomic, two are not. The sleep is the round trip.
struct Database(Mutex<Vec<(u64, Option<FencingToken>)>>);

impl Database {
    /// `SELECT balance FROM accounts WHERE id = $1`, for both.
    async fn balances(&self, accounts: [usize; 2]) -> [u64; 2] {
        sleep(Duration::from_millis(1)).await;
        let rows = self.0.lock().await;
        accounts.map(|account| rows[account].0)
    }

    /// `UPDATE accounts SET balance = $2, token = $3 WHERE id = $1 AND token <= $3`, for both. Each
    /// account has the token of its own lock. Unless it updates both rows, it is rolled back.
    async fn set_balances(&self, updates: [(usize, u64, FencingToken); 2]) -> bool {
        sleep(Duration::from_millis(1)).await;
        let mut rows = self.0.lock().await;
        let fresh = updates.iter().all(|(account, _, token)| rows[*account].1 <= Some(*token));
        if fresh {
            for (account, balance, token) in updates {
                rows[account] = (balance, Some(token));
            }
        }
        fresh
    }

    async fn sum(&self) -> u64 {
        self.0.lock().await.iter().map(|(balance, _)| balance).sum()
    }
}

struct Bank {
    locks: Locks,
    database: Database,
}

impl Bank {
    fn lock(&self, account: usize) -> Lock {
        self.locks.lock(format!("account/{account}"))
    }

    /// Reads both balances and writes both, as far as there is money.
    async fn transfer(
        &self,
        [from, to]: [usize; 2],
        amount: u64,
        tokens: [FencingToken; 2],
    ) -> Result<()> {
        let [payer, payee] = self.database.balances([from, to]).await;
        let amount = amount.min(payer);
        let updates = [(from, payer - amount, tokens[0]), (to, payee + amount, tokens[1])];
        match self.database.set_balances(updates).await {
            true => Ok(()),
            false => Err("a later holder of a lock has written already".into()),
        }
    }

    async fn locked_transfer(&self, accounts: [usize; 2], amount: u64) -> Result<()> {
        let locks = accounts.map(|account| self.lock(account));
        let both = fencelock::all(locks).wait_at_most(Duration::from_secs(30)).acquire().await?;
        // In the order in which the locks were given, whatever that of their acquisition.
        let tokens = [both[0].fencing_token(), both[1].fencing_token()];
        // Dropped if one of the locks is lost.
        both.run(self.transfer(accounts, amount, tokens)).await??;
        Ok(both.release().await?)
    }
}

/// What one clerk does: ten transfers, without locks if there are `tokens` of all accounts.
async fn clerk(bank: Arc<Bank>, seed: u64, tokens: Option<Vec<FencingToken>>) -> Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    for _ in 0..10 {
        let from = random.random_range(0..ACCOUNTS);
        let to = (from + random.random_range(1..ACCOUNTS)) % ACCOUNTS;
        let amount = random.random_range(1..=100_000);
        match &tokens {
            Some(tokens) => bank.transfer([from, to], amount, [tokens[from], tokens[to]]).await?,
            None => bank.locked_transfer([from, to], amount).await?,
        }
    }
    Ok(())
}

/// The sum of all accounts after the transfers of all clerks.
async fn sum_after(bank: &Arc<Bank>, tokens: Option<Vec<FencingToken>>) -> Result<u64> {
    let clerks = (0..CLERKS).map(|seed| clerk(bank.clone(), seed, tokens.clone()));
    clerks.collect::<JoinSet<_>>().join_all().await.into_iter().collect::<Result<()>>()?;
    Ok(bank.database.sum().await)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("FENCELOCK_URL").ok());
    let locks = fencelock::connect(url.as_deref().unwrap_or("mem://")).await?;
    let database = Database(Mutex::new(vec![(AT_FIRST, None); ACCOUNTS]));
    let bank = Arc::new(Bank { locks: locks.clone(), database });
    let before = bank.database.sum().await;

    let after = sum_after(&bank, None).await?;
    println!("{CLERKS} clerks made 10 transfers each: {before} cents before, {after} after");
    assert_eq!(after, before, "no money appears or vanishes");

    // All accounts at once, for clerks that ask for no lock themselves.
    let held = fencelock::all((0..ACCOUNTS).map(|account| bank.lock(account))).acquire().await?;
    let tokens = (0..ACCOUNTS).map(|account| held[account].fencing_token()).collect();
    let broken = sum_after(&bank, Some(tokens)).await?;
    println!("the same without locks: {broken} cents after");
    assert_ne!(
        broken, before,
        "transfers that read one balance at the same time lose each other's"
    );
    held.release().await?;
    Ok(locks.close().await?)
}
