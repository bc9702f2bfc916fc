//! A flash sale: many buyers, few pieces, and a stock that must be right afterwards.
//!
//! The stock is a value that is read, processed and written, like a row of a database without a
//! transaction. It is in this process, and so are the requests of the buyers, as many at a time as a
//! service admits; a lock for each product serializes them, or nothing does.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use fencelock::{Locks, Result};
use fencelock_testkit::deployments::Deployment;
use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::compare::board::Board;
use crate::compare::data::{FlashSale, Sale};

/// One sale at one store, roughly.
pub(crate) const SALE_TAKES: Duration = Duration::from_secs(2);

/// Buyers, products, pieces of each.
const SALES: [[u32; 3]; 2] = [[1_000, 2, 500], [100_000, 1, 10]];
/// Buyers that are served at the same time.
const TOGETHER: u32 = 256;
/// The way to the database and back.
const ROUND_TRIP: Duration = Duration::from_millis(1);

pub(crate) async fn hold(deployment: &dyn Deployment, board: &Board<'_>) -> Result<()> {
    let locks = super::connect(&super::url_of(deployment)).await?;
    for [buyers, products, pieces] in SALES {
        board.now(&format!("{buyers} buyers of {} pieces", products * pieces));
        let with_lock = sale(Some(&locks), buyers, products, pieces).await?;
        let without_lock = sale(None, buyers, products, pieces).await?;
        let summary = |how: &str, sale: &Sale| {
            format!(
                "{how} a lock {} sold, {} left, {} oversold in {:.2} s",
                sale.sold, sale.left, sale.oversold, sale.took_s
            )
        };
        let (with, without) = (summary("with", &with_lock), summary("without", &without_lock));
        board.saw(
            SALE_TAKES,
            &format!("{buyers} buyers of {} pieces: {with}; {without}", products * pieces),
        );
        let sale = FlashSale {
            buyers,
            products,
            pieces,
            served_together: TOGETHER,
            with_lock,
            without_lock,
        };
        board.store(|store| store.flash_sales.push(sale));
    }
    locks.close().await
}

/// One product.
struct Product {
    lock: Option<fencelock::Lock>,
    left: AtomicU32,
    sold: AtomicU32,
}

impl Product {
    /// One piece for one buyer, if there is one left.
    async fn sell(&self) -> Result<()> {
        // A buyer that comes too late need not wait for the lock.
        if self.left.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        let guard = match &self.lock {
            Some(lock) => Some(lock.acquire().await?),
            None => None,
        };
        let left = self.left.load(Ordering::SeqCst);
        sleep(ROUND_TRIP).await;
        if left > 0 {
            self.left.store(left - 1, Ordering::SeqCst);
            self.sold.fetch_add(1, Ordering::SeqCst);
        }
        match guard {
            Some(guard) => guard.release().await,
            None => Ok(()),
        }
    }
}

async fn sale(locks: Option<&Locks>, buyers: u32, products: u32, pieces: u32) -> Result<Sale> {
    let shelf: std::sync::Arc<[Product]> = (0..products)
        .map(|product| Product {
            lock: locks.map(|locks| locks.lock(format!("compare-sale-{product}"))),
            left: AtomicU32::new(pieces),
            sold: AtomicU32::new(0),
        })
        .collect();
    let began = Instant::now();
    let served = stream::iter(0..buyers).map(|buyer| {
        let shelf = shelf.clone();
        // A task each, so that they run at the same time on all processors.
        let served = tokio::spawn(async move { shelf[(buyer % products) as usize].sell().await });
        let served = AbortOnDropHandle::new(served);
        async move { served.await.map_err(super::broken) }
    });
    let mut served = served.buffer_unordered(TOGETHER as usize);
    let mut errors = 0;
    while let Some(served) = served.next().await {
        errors += u32::from(served?.is_err());
    }
    let took_s = began.elapsed().as_secs_f64();
    let sum = |of: fn(&Product) -> &AtomicU32| -> u32 {
        shelf.iter().map(|product| of(product).load(Ordering::SeqCst)).sum()
    };
    let (left, sold) = (sum(|it| &it.left), sum(|it| &it.sold));
    let oversold = (left + sold).saturating_sub(products * pieces);
    Ok(Sale { left, sold, oversold, took_s, errors })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_lock_sells_each_piece_once_and_nothing_sells_some_twice() {
        let locks = fencelock::connect("mem://").await.expect("memory");
        let locked = sale(Some(&locks), 1_000, 2, 500).await.expect("sold");
        assert_eq!((locked.sold, locked.left, locked.oversold, locked.errors), (1_000, 0, 0, 0));
        let few = sale(Some(&locks), 5_000, 1, 10).await.expect("sold");
        assert_eq!((few.sold, few.left, few.oversold), (10, 0, 0));
        let unlocked = sale(None, 5_000, 1, 10).await.expect("sold");
        assert!(unlocked.oversold > 0, "{unlocked:?}");
    }
}
