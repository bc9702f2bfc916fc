//! Directed tests with the simulated servers: timelines that random runs reach too seldom, or whose
//! damage a TTL hides, each shown by a backend that gets it wrong.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{Label, Locks, LostReason, Mode, Settings, Ttl};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::lease::backend::LeaseBackend;
use crate::lease::script::Who;
use crate::lease::server::LeaseServer;
use crate::mutant::Mutant;
use crate::session::backend::SessionBackend;
use crate::session::server::SessionServer;
use crate::world::conditions::Conditions;
use crate::world::dice::Dice;
use crate::world::history::History;
use crate::world::link::Link;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn settings(process: u32) -> Settings {
    let settings = Settings::default().label(Label::new(&format!("process {process}")));
    let settings = settings.ttl(Ttl::new(MINUTE).expect("a sensible TTL"));
    settings.unreachable_after(10 * SECOND).expect("a sensible bound")
}

fn link(process: u32, in_order: bool) -> Arc<Link> {
    Arc::new(Link::new(process, 1, &Conditions::default(), in_order))
}

/// A server with leases whose processes check waiters only once a minute.
struct Leases(Arc<LeaseServer>);

impl Leases {
    fn new(mutant: Option<Mutant>) -> Leases {
        let history = Arc::new(History::new(false));
        Leases(Arc::new(LeaseServer::new(history, mutant, MINUTE, 0)))
    }

    fn connect(&self, process: u32) -> (Locks, Arc<Link>, Arc<LeaseBackend>) {
        let link = link(process, false);
        let backend = LeaseBackend::connect(&self.0, link.clone());
        let locks = Locks::new(backend.clone(), "sim://", settings(process));
        (locks.expect("inside a runtime"), link, backend)
    }
}

/// How long the next waiter waits after a late attempt has put a dead claim at the queue's head.
async fn delay_by_a_dead_claim(mutant: Option<Mutant>) -> Duration {
    let server = Leases::new(mutant);
    let (one, link, _) = server.connect(1);
    let (two, _, _) = server.connect(2);
    let held = two.lock("l0").acquire().await.expect("free");
    // Its request is late, so late that the caller has given up and the release has overtaken it.
    link.hold_back(SECOND);
    let acquire = timeout(SECOND / 10, one.lock("l0").acquire()).await;
    assert!(acquire.is_err());
    sleep(2 * SECOND).await;
    let lock = two.lock("l0");
    let next = tokio::spawn(async move { lock.acquire().await });
    sleep(SECOND).await;
    held.release().await.expect("held");
    let freed = Instant::now();
    let guard = timeout(10 * MINUTE, next).await.expect("not for ever").expect("no panic");
    drop(guard.expect("granted"));
    freed.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_dead_claim_of_a_live_process_does_not_hold_up_the_queue() {
    let delay = delay_by_a_dead_claim(None).await;
    assert!(delay <= Duration::from_millis(10), "{delay:?}");
    let delay = delay_by_a_dead_claim(Some(Mutant::StrayIgnored)).await;
    assert!(delay >= SECOND, "without the release of strays this shows nothing: {delay:?}");
}

/// Whether a holder still has its lock after the push of its own hand-off came a second time.
async fn survives_a_late_push(mutant: Option<Mutant>) -> bool {
    let server = Leases::new(mutant);
    let (one, _, backend) = server.connect(1);
    let (two, _, _) = server.connect(2);
    let held = two.lock("l0").acquire().await.expect("free");
    let lock = one.lock("l0");
    let next = tokio::spawn(async move { lock.acquire().await });
    sleep(SECOND).await;
    held.release().await.expect("held");
    let guard = next.await.expect("no panic").expect("granted");
    backend.pushed_again();
    sleep(SECOND).await;
    let others = two.lock("l0").try_acquire().await.expect("an answer");
    others.is_none() && guard.is_held()
}

#[tokio::test(start_paused = true)]
async fn a_late_push_does_not_free_what_is_held() {
    assert!(survives_a_late_push(None).await);
    let harmless = survives_a_late_push(Some(Mutant::HeldIsStray)).await;
    assert!(!harmless, "a backend that takes it for a stray shows no difference");
}

/// A server with sessions of 10 s.
struct Sessions(Arc<SessionServer>);

impl Sessions {
    fn new(mutant: Option<Mutant>) -> Sessions {
        let history = Arc::new(History::new(false));
        Sessions(Arc::new(SessionServer::new(history, mutant, 10 * SECOND)))
    }

    fn connect(&self, process: u32) -> (Locks, Arc<Link>) {
        let link = link(process, true);
        let backend = SessionBackend::connect(&self.0, link.clone());
        let locks = Locks::new(backend, "sim://", settings(process));
        (locks.expect("inside a runtime"), link)
    }
}

/// Whether a holder whose follower lost its leader knows of its loss when the leader gives the
/// lock to another client.
async fn stops_believing_in_time(mutant: Option<Mutant>) -> bool {
    let server = Sessions::new(mutant);
    let (one, _) = server.connect(1);
    let (two, _) = server.connect(2);
    let guard = one.lock("l0").acquire().await.expect("free");
    sleep(30 * SECOND).await;
    assert!(guard.is_held());
    // From now on every read is answered, and shows process 1 as the owner.
    server.0.cut_off(1, true);
    let successor = timeout(MINUTE, two.lock("l0").acquire()).await;
    let successor = successor.expect("the session expires").expect("granted");
    assert!(successor.is_held());
    let in_time = !guard.is_held();
    server.0.cut_off(1, false);
    in_time
}

#[tokio::test(start_paused = true)]
async fn a_read_is_no_heartbeat() {
    assert!(stops_believing_in_time(None).await);
    let harmless = stops_believing_in_time(Some(Mutant::ReadIsHeartbeat)).await;
    assert!(!harmless, "a backend that counts reads shows no difference");
}

#[tokio::test(start_paused = true)]
async fn a_node_deleted_by_a_person_is_a_loss_within_one_notification() {
    let server = Sessions::new(None);
    let (locks, _) = server.connect(1);
    let guard = locks.lock("l0").acquire().await.expect("free");
    sleep(SECOND / 20).await;
    let deleted = Instant::now();
    server.0.evict(0);
    let reason = timeout(MINUTE, guard.lost()).await.expect("notified");
    assert_eq!(reason, LostReason::TakenAway);
    assert!(deleted.elapsed() <= Duration::from_millis(5), "{:?} later", deleted.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_stopped_process_finds_its_lock_lost_before_it_can_use_it() {
    let server = Sessions::new(None);
    let (one, link) = server.connect(1);
    let (two, _) = server.connect(2);
    let guard = one.lock("l0").acquire().await.expect("free");
    link.gate.shut();
    let successor = two.lock("l0").acquire().await.expect("the session expires");
    assert!(!guard.is_held(), "true at the first check, before any timer has fired");
    link.gate.open(&server.0.history, 1, &mut Dice::of(&[]));
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(successor.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_clean_up_outlives_a_cut_that_the_session_survives() {
    let server = Sessions::new(None);
    let (one, link) = server.connect(1);
    let guard = one.lock("l0").acquire().await.expect("free");
    link.cut(true);
    drop(guard);
    sleep(9 * SECOND).await;
    assert_eq!(server.0.leftovers().len(), 1, "nothing can be sent yet");
    link.cut(false);
    sleep(2 * SECOND).await;
    assert!(server.0.leftovers().is_empty(), "{:?}", server.0.leftovers());
}

#[tokio::test(start_paused = true)]
async fn a_cut_for_longer_than_the_lease_leaves_nothing_behind() {
    let server = Leases::new(None);
    let (one, link, _) = server.connect(1);
    let guard = one.lock("l0").fixed_lease(3 * SECOND).acquire().await.expect("free");
    link.cut(true);
    assert_eq!(guard.lost().await, LostReason::Expired);
    drop(guard);
    sleep(20 * SECOND).await;
    link.cut(false);
    assert!(server.0.leftovers().is_empty(), "{:?}", server.0.leftovers());
}

/// As a real one: what it lists it can also watch, or a client would list and watch for ever.
#[tokio::test(start_paused = true)]
async fn a_follower_that_lags_behind_shows_every_read_the_same() {
    let Sessions(server) = Sessions::new(None);
    let (lagging, other) = (Who { process: 1, claim: 1 }, Who { process: 2, claim: 2 });
    let create = |who: Who| {
        let session = server.open(&link(who.process, true)).expect("the leader is there");
        let created = server.create(session, 0, who, Mode::Exclusive).expect("it is there");
        (session, created.expect("a new session").0)
    };
    let (session, ahead) = create(other);
    server.caught_up(other.process);
    // Until its reply is seen, the follower of this process shows what was before.
    let (_, own) = create(lagging);
    assert_eq!(server.delete(session, 0, ahead), Some(Ok(true)));
    let (fired, mut event) = oneshot::channel();
    assert!(server.list(lagging.process, 0).keys().eq([&ahead]));
    assert!(server.watch(lagging, 0, ahead, fired), "what it shows is there to be watched");
    sleep(SECOND).await;
    assert!(event.try_recv().is_err(), "notified of what it does not know yet");
    assert!(server.list(lagging.process, 0).contains_key(&ahead));
    server.caught_up(lagging.process);
    assert!(server.list(lagging.process, 0).keys().eq([&own]));
    timeout(SECOND, event).await.expect("notified when it has caught up").expect("not forgotten");
}
