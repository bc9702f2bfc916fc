//! The stock of a flash sale: 30 buyers for 10 lamps and 30 for 20 umbrellas, all at once, and no
//! item is sold twice. Each item has a lock of its own, so buyers of lamps do not wait for buyers of
//! umbrellas. A buyer that was paused for too long cannot corrupt the stock.
//!
//! ```sh
//! cargo run --features macros --example flash_sale
//! cargo run --features macros,redis --example flash_sale -- redis://127.0.0.1/
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencelock::{FencingToken, Locks, locked};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ITEMS: [(&str, u32); 2] = [("lamp", 10), ("umbrella", 20)];

/// The shop's database. One statement is atomic, two are not. The sleep is the round trip.
struct Database(Mutex<HashMap<&'static str, (u32, Option<FencingToken>)>>);

impl Database {
    /// `SELECT stock FROM items WHERE name = $1`
    async fn stock(&self, item: &str) -> u32 {
        sleep(Duration::from_millis(1)).await;
        self.0.lock().await[item].0
    }

    /// `UPDATE items SET stock = $2, token = $3 WHERE name = $1 AND token <= $3`. Returns whether a row
    /// was updated.
    async fn set_stock(&self, item: &'static str, stock: u32, token: FencingToken) -> bool {
        sleep(Duration::from_millis(1)).await;
        let mut items = self.0.lock().await;
        let fresh = items[item].1 <= Some(token);
        if fresh {
            items.insert(item, (stock, Some(token)));
        }
        fresh
    }
}

struct Shop {
    locks: Locks,
    database: Database,
}

impl Shop {
    /// Sells one item, and returns whether there was one.
    async fn sell(&self, item: &'static str, token: FencingToken) -> bool {
        let stock = self.database.stock(item).await;
        stock > 0 && self.database.set_stock(item, stock - 1, token).await
    }
}

/// Buys one item. The lock of the item is released whatever happens, and a loss drops the sale.
#[locked(by = shop.locks, name = "stock/{item}", wait = "10s", as = guard)]
async fn buy(shop: Arc<Shop>, item: &'static str) -> Result<bool> {
    Ok(shop.sell(item, guard.fencing_token()).await)
}

/// The same without the attribute: buyers that read one stock at the same time all sell its last item.
async fn buy_unlocked(shop: Arc<Shop>, item: &'static str, token: FencingToken) -> Result<bool> {
    Ok(shop.sell(item, token).await)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("FENCELOCK_URL").ok());
    let locks = fencelock::connect(url.as_deref().unwrap_or("mem://")).await?;
    let stocks = ITEMS.map(|(item, stock)| (item, (stock, None)));
    let database = Database(Mutex::new(stocks.into()));
    let shop = Arc::new(Shop { locks: locks.clone(), database });

    // A buyer that reads and is then paused: its lock is not renewed, and another buyer gets it.
    let lock = locks.lock("stock/lamp").fixed_lease(Duration::from_secs(1));
    let (paused, seen) = (lock.acquire().await?, shop.database.stock("lamp").await);

    let sales = ITEMS.map(|(item, stock)| {
        let buyers = (0..30).map(|_| buy(shop.clone(), item));
        (item, stock, buyers.collect::<JoinSet<_>>())
    });
    for (item, stock, buyers) in sales {
        let (sold, left) = (sold(buyers).await?, shop.database.stock(item).await);
        println!("{item}: {sold} of {stock} sold to 30 buyers, {left} left");
        assert_eq!((sold, left), (stock as usize, 0), "each {item} is sold once");
    }
    let late = shop.database.set_stock("lamp", seen - 1, paused.fencing_token()).await;
    assert!(!late, "the stock is not what a buyer saw before it was paused");
    println!("the late write of a buyer that was paused was refused");

    let token = locks.lock("stock/lamp").acquire().await?.fencing_token();
    assert!(shop.database.set_stock("lamp", 10, token).await);
    let buyers = (0..30).map(|_| buy_unlocked(shop.clone(), "lamp", token));
    let sold = sold(buyers.collect()).await?;
    println!("without locks: {sold} lamps sold, of 10");
    assert!(sold > 10, "without its lock it oversells");
    Ok(locks.close().await?)
}

async fn sold(buyers: JoinSet<Result<bool>>) -> Result<usize> {
    let bought = buyers.join_all().await.into_iter().collect::<Result<Vec<bool>>>()?;
    Ok(bought.into_iter().filter(|bought| *bought).count())
}
