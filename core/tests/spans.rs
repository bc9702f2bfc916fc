//! Spans that carry the fencing token, and the warnings: about a loss, and about what is likely a mistake.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencelock_core::memory::Memory;
use fencelock_core::{Lock, Locks, Owner, Settings, all};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing_subscriber::fmt::format::FmtSpan;

/// `tracing` caches for all threads together which subscriber wants a span: one test at a time.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[derive(Clone, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl Captured {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("no writer panics").clone()).expect("UTF-8")
    }
}

/// Captures what this thread logs, and a line whenever a span closes, until the second is dropped.
async fn capture() -> (Captured, impl Sized) {
    let alone = ALONE.lock().await;
    let captured = Captured::default();
    let writer = captured.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let default = tracing::subscriber::set_default(subscriber);
    (captured, (default, alone))
}

impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no writer panics").write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn spans_carry_the_token_and_a_loss_is_a_warning() {
    let (captured, _kept) = capture().await;
    let [locks] = clients();
    let guard = locks.lock("a").acquire().await.unwrap();
    guard.run(async { tracing::info!("working") }).await.unwrap();
    guard.release().await.unwrap();
    let short = locks.lock("b").fixed_lease(Duration::from_millis(100)).acquire().await.unwrap();
    short.lost().await;

    let text = captured.text();
    for expected in [
        r#"acquire{lock=a store="memory" mode=exclusive token=1}: fencelock: close"#,
        r#"hold{lock=a store="memory" mode=exclusive token=1}: spans: working"#,
        r#"release{lock=a store="memory" token=1}: fencelock: close"#,
        r#"lock lost lock=b token=2 reason="expired""#,
    ] {
        assert!(text.contains(expected), "{expected} not in:\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_a_turn_names_its_own_token_and_is_logged_at_once() {
    let (captured, _kept) = capture().await;
    let [locks] = clients();
    let lock = locks.lock("a").local_handoffs(8);
    let first = lock.acquire().await.unwrap();
    let second = tokio::spawn(async move { lock.acquire().await.unwrap() });
    sleep(Duration::from_millis(1)).await;
    first.release().await.unwrap();
    // Its end would not report it.
    std::mem::forget(second.await.unwrap());
    let holder = &locks.inspect("a").await.unwrap().holders[0];
    locks.evict("a", &holder.id).await.unwrap();
    sleep(60 * SECOND).await;

    let text = captured.text();
    let losses: Vec<_> = text.lines().filter(|line| line.contains("lock lost")).collect();
    let expected = r#"hold{lock=a store="memory" mode=exclusive token=2}: fencelock: lock lost lock=a token=2"#;
    assert!(losses.len() == 1 && losses[0].contains(expected), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_callers_span_is_not_changed_and_holds_are_not_inside_the_acquisition() {
    use tracing::Instrument;

    let (captured, _kept) = capture().await;
    let [locks] = clients();
    // With fields of the same names as those of the spans inside it.
    let request =
        tracing::info_span!("request", token = tracing::field::Empty, lock = tracing::field::Empty);
    let acquiring = async { locks.lock("a").acquire().await.unwrap() };
    let guard = acquiring.instrument(request).await;
    let before = captured.text();
    assert!(before.contains("request:acquire{lock=a"), "closed with the grant:\n{before}");
    guard.run(async { tracing::info!("working") }).await.unwrap();
    guard.release().await.unwrap();

    let text = captured.text();
    assert!(text.contains("request:hold{lock=a"), "the hold is the caller's:\n{text}");
    assert!(!text.contains("request{"), "the caller's span got a field:\n{text}");
    let nested = |line: &str| line.contains("acquire{") && line.contains("hold{");
    assert!(!text.lines().any(nested), "a hold within an acquisition:\n{text}");
}

const SECOND: Duration = Duration::from_secs(1);

impl Captured {
    /// The warnings that a client holds itself what it waits for.
    fn own_holds(&self) -> Vec<String> {
        let text = self.text();
        text.lines().filter(|line| line.contains("itself")).map(str::to_owned).collect()
    }
}

fn clients<const N: usize>() -> [Locks; N] {
    let memory = Memory::new();
    [(); N].map(|()| memory.locks(Settings::default()).expect("a runtime"))
}

fn acquire(lock: Lock) -> JoinHandle<()> {
    tokio::spawn(async move {
        let _guard = lock.acquire().await.expect("acquired");
        std::future::pending::<()>().await;
    })
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_oneself_without_a_limit_is_a_warning() {
    for handoffs in [1, 8] {
        let (captured, _kept) = capture().await;
        let [locks] = clients();
        let lock = locks.lock("a").local_handoffs(handoffs);
        let guard = lock.acquire().await.unwrap();
        let again = acquire(lock.clone());
        sleep(SECOND * 99 / 10).await;
        assert_eq!(captured.own_holds(), [""; 0]);
        // With the next check for missed wake-ups.
        sleep(3 * SECOND).await;
        let told = captured.own_holds();
        assert_eq!(told.len(), 1, "{told:?}");
        for expected in [" WARN ", "this client holds it itself", "owned_by one Owner", "lock=a"] {
            assert!(told[0].contains(expected), "{expected} not in {told:?}");
        }
        let third = acquire(lock);
        sleep(60 * SECOND).await;
        assert_eq!(captured.own_holds().len(), 1, "once for the hold");
        // The task that has it now keeps the third one waiting: another hold.
        guard.release().await.unwrap();
        sleep(60 * SECOND).await;
        assert_eq!(captured.own_holds().len(), 2, "once for each hold");
        again.abort();
        third.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn several_locks_of_which_one_is_held_here_are_a_warning() {
    let (captured, _kept) = capture().await;
    let [locks] = clients();
    let _b = locks.lock("b").acquire().await.unwrap();
    let both = all([locks.lock("a"), locks.lock("b")]);
    assert!(tokio::time::timeout(13 * SECOND, both.acquire()).await.is_err());
    let told = captured.own_holds();
    assert!(told.len() == 1 && told[0].contains("lock=b"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn contention_is_no_warning() {
    for handoffs in [1, 8] {
        let (captured, _kept) = capture().await;
        let [locks, other] = clients();
        // Tasks that take turns, each for less than the ten seconds.
        let lock = locks.lock("a").local_handoffs(handoffs);
        let tasks = (0..5).map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.with(async |_| sleep(9 * SECOND).await).await.unwrap() })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
        // Another client has it, and then this one, but not for as long.
        let held = other.lock("b").acquire().await.unwrap();
        let waiting = [(); 2].map(|()| acquire(locks.lock("b").local_handoffs(handoffs)));
        sleep(11 * SECOND).await;
        held.release().await.unwrap();
        sleep(9 * SECOND).await;
        assert_eq!(captured.own_holds(), [""; 0]);
        sleep(13 * SECOND).await;
        assert_eq!(captured.own_holds().len(), 1, "it has it now");
        waiting.iter().for_each(JoinHandle::abort);
        // A limit ends the wait with an error, which says it.
        let _c = locks.lock("c").acquire().await.unwrap();
        let limited = locks.lock("c").local_handoffs(handoffs).wait_at_most(30 * SECOND);
        assert!(limited.acquire().await.unwrap_err().to_string().contains("itself"));
        assert_eq!(captured.own_holds().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_ones_own_permits_is_a_warning_if_no_others_are_in_the_way() {
    let (captured, _kept) = capture().await;
    let [locks, other] = clients();
    let _mine = locks.semaphore("a", 2).acquire().await.unwrap();
    let theirs = other.semaphore("a", 2).acquire().await.unwrap();
    let waiting = [(); 2].map(|()| acquire(locks.semaphore("a", 2)));
    sleep(30 * SECOND).await;
    assert_eq!(captured.own_holds(), [""; 0]);
    theirs.release().await.unwrap();
    sleep(30 * SECOND).await;
    let told = captured.own_holds();
    assert!(told.len() == 1 && told[0].contains("holds 2 permits itself"), "{told:?}");
    waiting.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn an_owner_that_acquires_out_of_order_is_a_warning() {
    let (captured, _kept) = capture().await;
    let [locks, other] = clients();
    let owner = Owner::new();
    let owned = |names: &[&str]| all(names.iter().map(|name| locks.lock(name).owned_by(&owner)));
    let told = || captured.text().matches("comes before one that it holds").count();
    let held = owned(&["c", "d"]).acquire().await.unwrap();
    owned(&["c", "e", "d", "f"]).acquire().await.unwrap().release().await.unwrap();
    // It waits for nothing.
    drop(owned(&["a"]).try_acquire().await.unwrap());
    // Not of this owner; not of this client.
    drop(all([locks.lock("a")]).acquire().await.unwrap());
    drop(all([other.lock("a").owned_by(&owner)]).acquire().await.unwrap());
    assert_eq!(told(), 0, "{}", captured.text());
    drop(owned(&["d", "b", "a"]).acquire().await.unwrap());
    assert_eq!(told(), 1, "once for a call: {}", captured.text());
    assert!(captured.text().contains("lock=a held="), "{}", captured.text());
    held.release().await.unwrap();
    drop(owned(&["a"]).acquire().await.unwrap());
    assert_eq!(told(), 1, "it holds none any more: {}", captured.text());
}
