//! Numbers for orders, drawn by 100 workers in four clients: one that people read, from a `counter`, and one
//! by which programs store the order, from `ids`.
//!
//! | | `counter` | `ids` |
//! |---|---|---|
//! | its numbers | 1, 2, 3, …, none twice | unique, large, with gaps, rising within a client |
//! | its cost | a write to the store, which the tasks of a client share | one acquisition for up to 1,024 of them |
//! | after a loss of the store's data | starts again: call `at_least` first | in Redis still unique |
//! | the stores | those with cells | all |
//!
//! A number whose order then fails is missing: only a transaction of the database itself leaves no gap.
//!
//! ```sh
//! cargo run --example order_numbers
//! cargo run --features redis --example order_numbers -- redis://127.0.0.1/
//! cargo run --example order_numbers -- --without # reads and then writes: ends with an error
//! ```

use std::time::Duration;

use fencelock::{Counter, Locks, Reach};
use tokio::task::JoinSet;
use tokio::time::sleep;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

struct Order {
    /// The key of its row, and what other services refer to it by.
    id: u64,
    /// What the customer reads out on the telephone.
    number: i64,
}

async fn place_order(locks: &Locks, without: bool) -> Result<Order> {
    let counter = locks.counter("orders");
    let number = match without {
        false => counter.add(1).await?, // The answer is this caller's own.
        true => read_and_write(&counter).await?,
    };
    // By the hundred, in place of 1,024: what a client has not used is lost with it.
    let ids = locks.ids("orders").block(100);
    Ok(Order { id: ids.next().await?, number })
}

/// The same by a read and a write: workers that read before one of them has written use one number.
async fn read_and_write(counter: &Counter) -> Result<i64> {
    let number = counter.get().await? + 1;
    sleep(Duration::from_millis(1)).await;
    counter.at_least(number).await?;
    Ok(number)
}

async fn worker(locks: Locks, without: bool) -> Result<Vec<Order>> {
    let mut orders = Vec::new();
    for _ in 0..5 {
        orders.push(place_order(&locks, without).await?);
    }
    Ok(orders)
}

#[tokio::main]
async fn main() -> Result<()> {
    let without = std::env::args().any(|arg| arg == "--without");
    let url = std::env::args().skip(1).find(|arg| arg != "--without");
    let url = url.or_else(|| std::env::var("FENCELOCK_URL").ok());
    let url = url.as_deref().unwrap_or("mem://");

    // As in four processes; each client of mem:// would have a store of its own.
    let mut clients = vec![fencelock::connect(url).await?];
    while clients.len() < 4 {
        clients.push(match clients[0].profile().reach {
            Reach::Process => clients[0].clone(),
            _ => fencelock::connect(url).await?,
        });
    }

    // The largest number in the database, in case the store has lost its data.
    let last = clients[0].counter("orders").at_least(1_000).await?;
    let workers = clients.iter().cycle().take(100).map(|locks| worker(locks.clone(), without));
    let drawn = workers.collect::<JoinSet<_>>().join_all().await;
    let drawn = drawn.into_iter().collect::<Result<Vec<Vec<Order>>>>()?;

    let mut numbers: Vec<i64> = drawn.iter().flatten().map(|order| order.number).collect();
    let mut ids: Vec<u64> = drawn.iter().flatten().map(|order| order.id).collect();
    numbers.sort_unstable();
    ids.sort_unstable();
    println!("500 orders have the numbers {} to {}", numbers[0], numbers[499]);
    println!("and the ids {} to {}", ids[0], ids[499]);
    ids.dedup();

    assert!(numbers.into_iter().eq(last + 1..=last + 500), "each number is drawn once");
    assert_eq!(ids.len(), 500, "each id is drawn once");
    let rise = drawn.iter().all(|orders| orders.is_sorted_by(|one, next| one.id < next.id));
    assert!(rise, "the ids of a worker rise");
    for locks in clients {
        locks.close().await?;
    }
    Ok(())
}
