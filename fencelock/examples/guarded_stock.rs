//! A stock of lamps in PostgreSQL, and eight buyers under one lock, whose leases end while some of them are
//! paused. Each sale checks its lock first, in its own transaction, so no lamp is sold twice; with `--without`
//! it does not, and lamps are. The lock is in the same database, or in another store: then each sale shows its
//! fencing token to the database.
//!
//! ```sh
//! cargo run -p fencelock --features postgres --example guarded_stock -- postgres://USER:PASSWORD@127.0.0.1/DATABASE
//! # The stock in PostgreSQL, the lock in Redis:
//! cargo run -p fencelock --features postgres,redis --example guarded_stock -- postgres://… redis://127.0.0.1/
//! # Without the check: ends with an error.
//! cargo run -p fencelock --features postgres --example guarded_stock -- postgres://… --without
//! ```
//!
//! The stock stays right also when the server's clock jumps, or when a standby takes over that has not got the
//! last sales, which a program that has only a URL cannot bring about: fencelock/tests/all/examples.rs does, while
//! this runs. Name both servers in the URL for that: `postgres://USER:PASSWORD@HOST1,HOST2/DATABASE`.

use std::error::Error as _;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use fencelock::{ErrorKind, Guard, Locks, postgres};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::{Client, NoTls, Transaction};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const LAMPS: i32 = 20;
const BUYERS: usize = 8;
/// So short that a paused buyer loses its lock; a service has thirty seconds.
const LEASE: Duration = Duration::from_millis(300);
/// How long a buyer tries again after errors, such as those of a failover.
const PATIENCE: Duration = Duration::from_secs(40);

/// How a sale is protected.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Protection {
    /// By a lock in this database.
    Check,
    /// By a lock of another store.
    Fence,
    /// By the lock alone, which a paused buyer loses without knowing.
    None,
}

/// What happens to a buyer for twice the time of its lease.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pause {
    None,
    /// It is stopped after it was granted the lock, and before its transaction.
    BeforeSale,
    /// It is stopped in its transaction: a garbage collection, a virtual machine that is moved.
    InSale,
    /// Its transaction waits for the database, such as for a slow disk.
    SlowSale,
}

impl Pause {
    /// One of each buyer's first sales has a pause.
    fn of(buyer: usize, sale: usize) -> Pause {
        match (sale == 1 + buyer / 3, buyer % 3) {
            (false, _) => Pause::None,
            (true, 0) => Pause::BeforeSale,
            (true, 1) => Pause::InSale,
            (true, _) => Pause::SlowSale,
        }
    }
}

impl fmt::Display for Pause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pause::None => "was overtaken",
            Pause::BeforeSale => "was paused before its sale",
            Pause::InSale => "was paused in its sale",
            Pause::SlowSale => "had a slow sale",
        })
    }
}

/// One buyer, which buys until nothing is left; how many it has bought.
async fn buyer(number: usize, locks: Locks, url: String, protection: Protection) -> Result<i32> {
    let (mut bought, end) = (0, Instant::now() + PATIENCE);
    let mut database = connect(&url).await?;
    for sale in 1.. {
        let guard = loop {
            match locks.lock("stock/lamp").fixed_lease(LEASE).acquire().await {
                // On a busy machine so short a lease may be over before the answer is read.
                Err(error) if error.kind() == ErrorKind::Lost && Instant::now() < end => {}
                granted => break granted?,
            }
        };
        let pause = Pause::of(number, sale);
        match sell(&mut database, &guard, protection, pause).await {
            Ok(true) => {
                bought += 1;
                if pause != Pause::None {
                    println!("buyer {number} {pause}: sold");
                }
            }
            Ok(false) => break,
            // The database has undone the transaction.
            Err(error) if may_pass(&*error) && Instant::now() < end => {
                println!("buyer {number} {pause}: nothing sold: {}", text_of(&*error));
                while database.is_closed() || database.simple_query("").await.is_err() {
                    database = connect(&url).await?;
                }
            }
            Err(error) => return Err(error),
        }
        // It may be over.
        let _ = guard.release().await;
    }
    Ok(bought)
}

/// Sells one lamp, if there is one.
async fn sell(
    database: &mut Client,
    guard: &Guard,
    protection: Protection,
    pause: Pause,
) -> Result<bool> {
    // Whoever is paused does not see that time passes: this buyer has looked, and holds the lock.
    let check = (protection == Protection::Check).then(|| guard.check()).transpose()?;
    if pause == Pause::BeforeSale {
        sleep(2 * LEASE).await;
    }
    let sale = database.transaction().await?;
    if let Some(check) = &check {
        postgres::run_check(&sale, check).await?;
    }
    if protection == Protection::Fence {
        let schema = postgres::schema::DEFAULT;
        postgres::run_fence(&sale, schema, "stock/lamp", guard.fencing_token()).await?;
    }
    let sold = take_one(&sale, pause).await?;
    sale.commit().await?;
    Ok(sold)
}

/// What a program does under a lock: it reads, decides, and writes what it has decided.
async fn take_one(sale: &Transaction<'_>, pause: Pause) -> Result<bool> {
    let sql = "SELECT remaining FROM fencelock_example_stock WHERE item = 'lamp'";
    let remaining: i32 = sale.query_one(sql, &[]).await?.get(0);
    if remaining == 0 {
        return Ok(false);
    }
    // Others may sell it meanwhile, if nothing keeps them out until the commit.
    match pause {
        Pause::InSale => sleep(2 * LEASE).await,
        Pause::SlowSale => {
            let seconds = (2 * LEASE).as_secs_f64();
            sale.execute("SELECT pg_sleep($1)", &[&seconds]).await?;
        }
        _ => sleep(Duration::from_millis(5)).await,
    }
    let sql = "UPDATE fencelock_example_stock SET remaining = $1 WHERE item = 'lamp'";
    sale.execute(sql, &[&(remaining - 1)]).await?;
    sale.execute("INSERT INTO fencelock_example_sales DEFAULT VALUES", &[]).await?;
    Ok(true)
}

/// The server's own words, where there are some.
fn text_of(error: &(dyn std::error::Error + 'static)) -> String {
    let server = error.downcast_ref::<tokio_postgres::Error>().and_then(|it| it.as_db_error());
    match server {
        Some(error) => format!("{}, SQLSTATE {}", error.message(), error.code().code()),
        None => error.to_string(),
    }
}

/// Whether a repetition can succeed: not after a wrong setting or a missing right.
fn may_pass(error: &(dyn std::error::Error + 'static)) -> bool {
    use ErrorKind::{InvalidArgument, Refused, Unsupported};
    error.downcast_ref::<fencelock::Error>().is_none_or(|error| {
        error.is_retryable() || !matches!(error.kind(), InvalidArgument | Refused | Unsupported)
    })
}

/// The server in the URL of the locks, whose other parameters are not for the client library.
fn server_of(url: &str) -> Result<tokio_postgres::Config> {
    let (server, parameters) = url.split_once('?').unwrap_or((url, ""));
    let with = |start| parameters.split('&').find(|parameter| parameter.starts_with(start));
    let socket = [with("host="), with("port=")].into_iter().flatten().collect::<Vec<_>>().join("&");
    let mut config: tokio_postgres::Config = format!("{server}?{socket}").parse()?;
    let is_local = |host: &Host| match host {
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<IpAddr>().is_ok_and(|it| it.is_loopback())
        }
        Host::Unix(_) => true,
    };
    let is_plain = match with("sslmode=") {
        Some(mode) => mode == "sslmode=disable",
        None => with("tls_").is_none() && config.get_hosts().iter().all(is_local),
    };
    if !is_plain {
        return Err(
            "the URL asks for TLS, as does a host that is not local, and the example's own \
             connection has none: run it on a local server, or add sslmode=disable"
                .into(),
        );
    }
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    Ok(config)
}

/// A connection to the server that accepts writes; tries again while there is none.
async fn connect(url: &str) -> Result<Client> {
    let config = server_of(url)?;
    let end = Instant::now() + PATIENCE;
    loop {
        match config.connect(NoTls).await {
            Ok((client, connection)) => {
                tokio::spawn(async move {
                    // The client only finds that the connection is closed.
                    if let Err(error) = connection.await {
                        println!("the server ended a session: {}", text_of(&error));
                    }
                });
                return Ok(client);
            }
            Err(error) if !is_down(&error) || Instant::now() > end => {
                return Err(text_of(&error).into());
            }
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Whether the server starts, stops or is away.
fn is_down(error: &tokio_postgres::Error) -> bool {
    match (error.code(), error.source()) {
        (Some(code), _) => code.code().starts_with("57P"),
        (None, Some(cause)) => cause.is::<std::io::Error>(),
        (None, None) => error.is_closed(),
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let without = std::env::args().any(|arg| arg == "--without");
    let mut args = std::env::args().skip(1).filter(|arg| arg != "--without");
    let url = args.next().or_else(|| std::env::var(fencelock::URL_VARIABLE).ok());
    let url = url.filter(|url| url.starts_with("postgres"));
    let url = url.ok_or("expected the URL postgres://USER:PASSWORD@HOST/DATABASE")?;
    let lock_url = args.next();
    let protection = match (without, &lock_url) {
        (true, _) => Protection::None,
        (false, Some(_)) => Protection::Fence,
        (false, None) => Protection::Check,
    };
    let locks = fencelock::connect(lock_url.as_deref().unwrap_or(&url)).await?;
    let database = connect(&url).await?;
    if protection == Protection::Fence {
        // A service has it in its own migrations: `fencelock postgres schema`.
        let schema = postgres::schema::script(postgres::schema::DEFAULT);
        database.batch_execute(&format!("BEGIN; {schema}; COMMIT")).await?;
    }
    database
        .batch_execute(&format!(
            "BEGIN;
             DROP TABLE IF EXISTS fencelock_example_stock, fencelock_example_sales;
             CREATE TABLE fencelock_example_stock (item text PRIMARY KEY, remaining int NOT NULL);
             CREATE TABLE fencelock_example_sales (id bigserial PRIMARY KEY);
             INSERT INTO fencelock_example_stock VALUES ('lamp', {LAMPS});
             COMMIT"
        ))
        .await
        .map_err(|error| text_of(&error))?;
    let how = match protection {
        Protection::Check => "checks its lock first, in its own transaction",
        Protection::Fence => "shows the token of its lock first, in its own transaction",
        Protection::None => "relies on its lock alone",
    };
    println!("{LAMPS} lamps, {BUYERS} buyers, a lease of {LEASE:?}; each sale {how}");

    let buyers = (0..BUYERS).map(|number| buyer(number, locks.clone(), url.clone(), protection));
    let bought = buyers.collect::<JoinSet<_>>().join_all().await;
    let bought = bought.into_iter().sum::<Result<i32>>()?;
    // The connection of the beginning may be to a server that is no longer there.
    let database = connect(&url).await?;
    let sql = "SELECT (SELECT count(*) FROM fencelock_example_sales), remaining FROM fencelock_example_stock";
    let row = database.query_one(sql, &[]).await?;
    let (sales, remaining): (i64, i32) = (row.get(0), row.get(1));
    database.batch_execute("DROP TABLE fencelock_example_stock, fencelock_example_sales").await?;
    if i64::from(bought) != sales {
        println!("{bought} were confirmed: a failover has lost some, or the answer of a commit");
    }
    if (sales, remaining) != (LAMPS.into(), 0) {
        let message = format!("{sales} sales of {LAMPS} lamps: paused buyers sold some again");
        return Err(message.into());
    }
    println!("{LAMPS} lamps, {sales} sales: none was sold twice");
    Ok(locks.close().await?)
}
