//! The service of docs/testing-your-service.md, with its tests.

use std::time::Duration;

use fencelock::{ErrorKind, Locks, Result};
use fencelock_testkit::TestStore;
use tokio::sync::watch;

/// Sends invoices, from one replica of the service at a time.
struct Invoices {
    locks: Locks,
    /// Stands for the database: the numbers of the invoices that were sent.
    sent: watch::Sender<Vec<u32>>,
}

impl Invoices {
    /// Waits for its turn and sends what is left up to `last`. If the lock is lost, it stops before
    /// the next invoice and returns the error: another replica may be sending by then.
    async fn send_up_to(&self, last: u32, pause: Duration) -> Result<()> {
        let guard = self.locks.lock("invoices").acquire().await?;
        let sending = async {
            loop {
                let next = self.sent.borrow().last().map_or(1, |last| last + 1);
                if next > last {
                    return;
                }
                self.sent.send_modify(|sent| sent.push(next));
                tokio::time::sleep(pause).await;
            }
        };
        guard.run(sending).await?;
        guard.release().await
    }
}

fn two_replicas(one: Locks, other: Locks) -> (Invoices, Invoices, watch::Receiver<Vec<u32>>) {
    let (sent, seen) = watch::channel(Vec::new());
    (Invoices { locks: one, sent: sent.clone() }, Invoices { locks: other, sent }, seen)
}

const PAUSE: Duration = Duration::from_millis(5);
/// An invoice that no replica comes to within a test.
const NEVER: u32 = u32::MAX;

#[fencelock_testkit::test(mem, file, postgres, redis, zk)]
async fn each_invoice_is_sent_once(locks: Locks, store: TestStore) -> Result<()> {
    let (one, other, seen) = two_replicas(locks, store.connect().await?);
    let (first, second) = tokio::join!(one.send_up_to(20, PAUSE), other.send_up_to(20, PAUSE));
    first.and(second)?;
    assert_eq!(*seen.borrow(), (1..=20).collect::<Vec<_>>());
    Ok(())
}

#[fencelock_testkit::test(mem, file, postgres, redis, zk, ttl = "2s")]
async fn a_replica_stops_when_an_operator_breaks_its_lock(
    locks: Locks,
    store: TestStore,
) -> Result<()> {
    let (one, other, mut seen) = two_replicas(locks, store.connect().await?);
    let lose = async {
        seen.wait_for(|sent| !sent.is_empty()).await.expect("the replicas live");
        store.lose("invoices").await
    };
    let (stopped, lost) = tokio::join!(one.send_up_to(NEVER, PAUSE), lose);
    lost?;
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Lost);
    // It sends nothing more, and the other replica continues.
    let sent = seen.borrow().len() as u32;
    other.send_up_to(sent + 1, PAUSE).await?;
    assert_eq!(*seen.borrow(), (1..=sent + 1).collect::<Vec<_>>());
    Ok(())
}

#[fencelock_testkit::test(postgres, redis, zk, ttl = "2s")]
async fn a_replica_stops_when_its_network_fails(locks: Locks, store: TestStore) -> Result<()> {
    let (one, other, mut seen) = two_replicas(locks, store.connect().await?);
    let cut = async {
        seen.wait_for(|sent| !sent.is_empty()).await.expect("the replicas live");
        store.cut_off().await
    };
    let (stopped, cut) = tokio::join!(one.send_up_to(NEVER, PAUSE), cut);
    cut?;
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Lost);
    store.heal().await?;
    let sent = seen.borrow().len() as u32;
    other.send_up_to(sent + 1, PAUSE).await
}

#[fencelock_testkit::test(postgres, redis, zk, own_server)]
async fn a_restart_of_the_server_interrupts_no_replica(
    locks: Locks,
    store: TestStore,
) -> Result<()> {
    let (one, _, mut seen) = two_replicas(locks.clone(), locks);
    let restart = async {
        seen.wait_for(|sent| !sent.is_empty()).await.expect("the replicas live");
        store.restart().await?;
        let sent = seen.borrow().len();
        seen.wait_for(|now| now.len() > sent).await.expect("the replicas live");
        Ok(())
    };
    tokio::select! {
        sent = one.send_up_to(NEVER, PAUSE) => sent,
        restarted = restart => restarted,
    }
}

#[fencelock_testkit::test(mem, start_paused = true)]
async fn a_replica_sends_for_an_hour(locks: Locks) -> Result<()> {
    let (one, _, seen) = two_replicas(locks.clone(), locks);
    one.send_up_to(60, Duration::from_secs(60)).await?; // of paused time: it takes none
    assert_eq!(seen.borrow().len(), 60);
    Ok(())
}
