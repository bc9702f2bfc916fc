//! Work in two phases: four shops add up their sales, and then each computes its share of all. No shop may
//! begin the second phase before all have ended the first, so they meet at a `barrier`. One that gives up, here
//! because it has sold more meanwhile, is waited for again.
//!
//! ```sh
//! cargo run --example phases
//! cargo run --features redis --example phases -- redis://127.0.0.1/
//! cargo run --example phases -- --without # no shop waits: ends with an error
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fencelock::{Barrier, ErrorKind, Locks};
use tokio::sync::Mutex;
use tokio::time::sleep;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// What the shops share: the sales of each.
type Sales = Mutex<BTreeMap<&'static str, u32>>;

/// One evening.
#[derive(Clone)]
struct Evening {
    barrier: Barrier,
    sales: Arc<Sales>,
    without: bool,
}

impl Evening {
    fn new(locks: &Locks, name: &str, without: bool) -> Evening {
        let barrier = locks.barrier(name, 4).wait_at_most(Duration::from_secs(30));
        Evening { barrier, sales: Arc::default(), without }
    }

    /// What each shop does, in a process of its own. Returns its share, in percent.
    async fn shop(self, name: &'static str, sold: u32) -> fencelock::Result<u32> {
        self.sales.lock().await.insert(name, sold);
        if !self.without {
            // By its name: a shop that is started again is the same party.
            self.barrier.arrive_as(name).await?;
        }
        let all: u32 = self.sales.lock().await.values().sum();
        Ok(100 * sold / all)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let without = std::env::args().any(|arg| arg == "--without");
    let url = std::env::args().skip(1).find(|arg| arg != "--without");
    let url = url.or_else(|| std::env::var("FENCELOCK_URL").ok());
    let locks = fencelock::connect(url.as_deref().unwrap_or("mem://")).await?;

    // A name for each evening, so that no shop meets what another evening has left.
    let name = format!("evening/{}", locks.ids("evenings").next().await?);
    let evening = Evening::new(&locks, &name, without);
    let mut shops = vec![
        tokio::spawn(evening.clone().shop("north", 40)),
        tokio::spawn(evening.clone().shop("east", 30)),
    ];

    // The south gives up before the west has come.
    let barrier = evening.barrier.clone().wait_at_most(Duration::from_millis(100));
    let gave_up = Evening { barrier, ..evening.clone() }.shop("south", 10).await;
    if let Err(error) = &gave_up {
        println!("the south gives up: {error}");
    }
    shops.push(tokio::spawn(evening.clone().shop("west", 10)));
    sleep(Duration::from_millis(100)).await; // It sells more, and the others wait for it.
    shops.push(tokio::spawn(evening.clone().shop("south", 20)));

    let mut shares = Vec::new();
    for shop in shops {
        shares.push(shop.await??);
    }
    println!("the north, east, west and south have sold {shares:?} percent");
    assert_eq!(shares, [40, 30, 10, 20], "each shop knows the sales of all");
    assert!(gave_up.is_err_and(|error| error.kind() == ErrorKind::WaitTimedOut));
    Ok(locks.close().await?)
}
