//! A service of three instances, of which the leader serves. Clients find it by its `election`: its words are
//! its address. Asked to hand over, it resigns, and the next instance leads at once. A leader that was paused
//! until another took its place does no harm: what it says and writes is refused.
//!
//! ```sh
//! cargo run --example leader
//! cargo run --features redis --example leader -- redis://127.0.0.1/
//! ```

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fencelock::{ErrorKind, FencingToken, Locks, Observer, Term};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ELECTION: &str = "shop/leader";

/// The database that the leader writes to.
#[derive(Default)]
struct Orders(Mutex<Vec<(FencingToken, String)>>);

impl Orders {
    /// `false` when a leader of a later term has written already.
    async fn add(&self, term: FencingToken, order: String) -> bool {
        let mut rows = self.0.lock().await;
        let is_fresh = rows.last().is_none_or(|(last, _)| *last <= term);
        if is_fresh {
            rows.push((term, order));
        }
        is_fresh
    }
}

/// One instance, in each process: serves whenever it leads.
async fn instance(locks: Locks, orders: Arc<Orders>) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let election = locks.election(ELECTION).with_words(listener.local_addr()?.to_string());
    let (listener, orders) = (&listener, &*orders);
    loop {
        // Waits in line, serves, and resigns. When the term is lost, `serve` is dropped, and it waits again.
        let served = election.lead(|term| async move { Ok(serve(listener, &term, orders).await) });
        served.await??;
    }
}

/// Serves until it is asked to hand over.
async fn serve(listener: &TcpListener, term: &Term, orders: &Orders) -> io::Result<()> {
    loop {
        let (client, _) = listener.accept().await?;
        // One that sends nothing must not keep the others waiting.
        match timeout(Duration::from_secs(2), answer(client, term, orders)).await {
            Ok(Ok(request)) if request == "hand over" => return Ok(()),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => println!("a client of {:?}: {error}", listener.local_addr()),
            Err(_) => println!("a client of {:?} was silent", listener.local_addr()),
        }
    }
}

/// Answers one client, and returns its request.
async fn answer(mut client: TcpStream, term: &Term, orders: &Orders) -> io::Result<String> {
    let mut request = String::new();
    client.read_to_string(&mut request).await?;
    if request != "hand over" {
        let answer: &[u8] = match orders.add(term.fencing_token(), request.clone()).await {
            true => b"ordered",
            false => b"another instance leads",
        };
        client.write_all(answer).await?;
    }
    Ok(request)
}

/// Sends a request to an instance, and returns its answer.
async fn ask(address: SocketAddr, request: &str) -> io::Result<String> {
    let mut instance = TcpStream::connect(address).await?;
    instance.write_all(request.as_bytes()).await?;
    instance.shutdown().await?;
    let mut answer = String::new();
    instance.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Follows the election until there is another leader, whose address it returns.
async fn next_leader(observer: &mut Observer) -> Result<(FencingToken, SocketAddr)> {
    loop {
        let Some(leader) = observer.next().await? else { continue };
        // For a moment, until a new leader has said its own, its words are the label of its client.
        if let Ok(address) = String::from_utf8_lossy(leader.words()).parse() {
            return Ok((leader.term(), address));
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("FENCELOCK_URL").ok());
    let locks = fencelock::connect(url.as_deref().unwrap_or("mem://")).await?;
    let orders = Arc::new(Orders::default());

    // A leader that is paused: it does not learn that an operator takes the lock from it.
    let paused = locks.election(ELECTION).campaign().await?;
    let mut observer = locks.election(ELECTION).observe().await?;
    let instances = (0..3).map(|_| instance(locks.clone(), orders.clone()));
    let instances = instances.collect::<JoinSet<_>>();
    let holder = locks.inspect(ELECTION).await?.holders.pop().ok_or("there is no leader")?;
    locks.evict(ELECTION, &holder.id).await?;

    let mut leaders = Vec::new();
    let mut asked = Instant::now();
    for order in 1..=4 {
        // At once, not when a lease ends, which takes 30 s.
        let bound = Duration::from_secs(5);
        let (term, address) = timeout(bound, next_leader(&mut observer)).await??;
        println!("{address} leads in term {term}, after {:?}", asked.elapsed());
        let answer = timeout(bound, ask(address, &format!("order {order}"))).await??;
        assert_eq!(answer, "ordered", "the leader that is observed serves");
        leaders.push((term, address));
        asked = Instant::now();
        timeout(bound, ask(address, "hand over")).await??;
    }
    assert!(leaders.is_sorted_by(|one, next| one.0 < next.0), "terms rise");
    let terms: Vec<_> = orders.0.lock().await.iter().map(|(term, _)| *term).collect();
    assert!(terms.into_iter().eq(leaders.into_iter().map(|(term, _)| term)), "each was observed");

    let late = paused.proclaim("127.0.0.1:80").await.expect_err("an old leader says nothing");
    println!("the leader that was paused: {late}");
    assert!(matches!(late.kind(), ErrorKind::Stale | ErrorKind::Lost), "its term is over");
    let is_written = orders.add(paused.fencing_token(), "late".to_owned()).await;
    assert!(!is_written, "an old leader writes nothing");
    drop(instances);
    Ok(locks.close().await?)
}
