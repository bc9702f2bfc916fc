//! Functions that lock the same order and call each other: `cancel` holds the order's lock and calls
//! `refund`, which is also called alone, and so locks the order itself. Each request has an `Owner`, which
//! is granted again at once what it holds already. Without one the inner function waits for the outer
//! one, and the error says so.
//!
//! ```sh
//! cargo run --features macros --example nested_calls
//! cargo run --features macros,redis --example nested_calls -- redis://127.0.0.1/
//! ```

use std::sync::Arc;
use std::time::Duration;

use fencelock::{ErrorKind, FencingToken, Locks, Owner, locked};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::sleep;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Order {
    cancelled: bool,
    /// How often the customer was paid back.
    refunds: u32,
}

/// The table of orders, which has one. One statement is atomic, two are not. The sleep is the round trip.
struct Database(Mutex<(Order, Option<FencingToken>)>);

impl Database {
    async fn read(&self) -> Order {
        sleep(Duration::from_millis(1)).await;
        self.0.lock().await.0
    }

    /// `UPDATE orders SET …, token = $2 WHERE id = $1 AND token <= $2`
    async fn write(&self, order: Order, token: FencingToken) -> Result<()> {
        sleep(Duration::from_millis(1)).await;
        let mut row = self.0.lock().await;
        if row.1 > Some(token) {
            return Err("a later request has written already".into());
        }
        *row = (order, Some(token));
        Ok(())
    }
}

struct Orders {
    locks: Locks,
    database: Database,
}

impl Orders {
    /// Pays the customer back, once.
    #[locked(by = self.locks, name = "order/{id}", wait = "5s", owner = request, as = guard)]
    async fn refund(&self, id: u32, request: &Owner) -> Result<FencingToken> {
        let order = self.database.read().await;
        if order.refunds == 0 {
            let order = Order { refunds: order.refunds + 1, ..order };
            self.database.write(order, guard.fencing_token()).await?;
        }
        Ok(guard.fencing_token())
    }

    /// Cancels the order: no other request comes between the refund and the mark.
    #[locked(by = self.locks, name = "order/{id}", wait = "5s", owner = request, as = guard)]
    async fn cancel(&self, id: u32, request: &Owner) -> Result<FencingToken> {
        let token = self.refund(id, request).await?;
        assert_eq!(token, guard.fencing_token(), "both guards share one hold");
        let order = Order { cancelled: true, ..self.database.read().await };
        self.database.write(order, token).await?;
        Ok(token)
    }

    /// The same, but `refund` is not told whose request it is.
    #[locked(by = self.locks, name = "order/{id}", wait = "5s")]
    async fn cancel_without_owner(&self, id: u32) -> Result<FencingToken> {
        self.refund(id, &Owner::new()).await
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("FENCELOCK_URL").ok());
    let locks = fencelock::connect(url.as_deref().unwrap_or("mem://")).await?;
    let database = Database(Mutex::new((Order { cancelled: false, refunds: 0 }, None)));
    let orders = Arc::new(Orders { locks: locks.clone(), database });

    // Two owners exclude each other as ever: of all these requests, one pays.
    let mut requests = JoinSet::new();
    for number in 0..10 {
        let orders = orders.clone();
        requests.spawn(async move {
            let request = Owner::new();
            match number % 2 {
                0 => orders.cancel(42, &request).await,
                _ => orders.refund(42, &request).await,
            }
        });
    }
    let tokens = requests.join_all().await.into_iter().collect::<Result<Vec<_>>>()?;
    let order = orders.database.read().await;
    println!("{} requests to cancel or refund one order: {order:?}", tokens.len());
    assert_eq!(order, Order { cancelled: true, refunds: 1 });

    let Err(error) = orders.cancel_without_owner(42).await else {
        return Err("the inner function cannot have the lock while the outer one holds it".into());
    };
    println!("without the owner: {error}");
    let error = error.downcast::<fencelock::Error>()?;
    assert_eq!(error.kind(), ErrorKind::WaitTimedOut);
    assert!(error.to_string().contains("owned_by one Owner"), "it says what to do");
    Ok(locks.close().await?)
}
