//! A background task of which one instance runs, whatever the number of processes: a leader. It holds a
//! lock for as long as it works, maybe for days. When it loses the lock it stops and queues again, and
//! another instance takes over; the same happens when its process dies.
//!
//! ```sh
//! cargo run --example singleton
//! cargo run --features redis --example singleton -- redis://127.0.0.1/
//! ```

use std::sync::Arc;
use std::time::Duration;

use fencelock::{ErrorKind, FencingToken, Locks};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The name of the lock.
const LOCK: &str = "invoices/sender";

/// The database that the leader writes to. It compares fencing tokens.
struct Database {
    last: Mutex<Option<FencingToken>>,
    writers: mpsc::UnboundedSender<(FencingToken, &'static str)>,
}

impl Database {
    /// `false` when a later leader has written already.
    async fn write(&self, token: FencingToken, instance: &'static str) -> bool {
        let mut last = self.last.lock().await;
        if *last > Some(token) {
            return false;
        }
        *last = Some(token);
        self.writers.send((token, instance)).is_ok()
    }
}

/// One instance of the task, in each process. It ends when the store is closed, or with an error that no
/// retry fixes.
async fn instance(locks: Locks, name: &'static str, database: Arc<Database>) -> Result<()> {
    // The TTL: how long the task stands still after the leader's process was killed.
    let lock = locks.lock(LOCK).ttl(Duration::from_secs(5)).label(name);
    loop {
        // Waits in the queue for as long as another instance leads.
        let guard = match lock.acquire().await {
            Ok(guard) => guard,
            Err(error) if error.kind() == ErrorKind::Closed => return Ok(()),
            Err(error) if error.is_retryable() => {
                println!("{name}: {error}");
                sleep(Duration::from_secs(1)).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        // The work is cancelled at an await when the lock is lost. What it remembered may then be out of
        // date, so it begins again from the start with the next lock.
        match guard.run(lead(name, &database, guard.fencing_token())).await {
            Ok(()) => println!("{name}: a later leader has written"),
            Err(error) => println!("{name}: {error}"),
        }
    }
}

/// The work of a leader, which has no end of its own: it returns when its write is rejected.
async fn lead(name: &'static str, database: &Database, token: FencingToken) {
    while database.write(token, name).await {
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("FENCELOCK_URL").ok());
    let locks = fencelock::connect(url.as_deref().unwrap_or("mem://")).await?;
    let (writers, mut written) = mpsc::unbounded_channel();
    let database = Arc::new(Database { last: Mutex::default(), writers });
    let mut instances = JoinSet::new();
    for name in ["A", "B", "C"] {
        instances.spawn(instance(locks.clone(), name, database.clone()));
    }

    // An operator takes the lock from three leaders. Each learns it at its next renewal at the latest,
    // and the next instance leads at once. The token rejects what the old leader still writes.
    let mut reigns: Vec<(FencingToken, &str)> = Vec::new();
    while reigns.len() < 3 {
        let next = timeout(Duration::from_secs(30), written.recv());
        let (token, leader) = next.await?.ok_or("no instance is left")?;
        if let Some((last, _)) = reigns.last() {
            if token == *last {
                continue;
            }
            assert!(token > *last, "no write is accepted after a later leader's");
        }
        println!("{leader} leads, with token {token}");
        reigns.push((token, leader));
        if let Some(holder) = locks.inspect(LOCK).await?.holders.pop() {
            locks.evict(LOCK, &holder.id).await?;
        }
    }

    // The end of the service: the leader stops, and the others give up their places.
    locks.close().await?;
    while let Some(ended) = instances.join_next().await {
        ended??;
    }
    Ok(())
}
