//! What [`#[fencelock_testkit::test]`](macro@crate::test) calls: one test on one store, from its
//! server to the report of its result.

use std::any::Any;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{ExitCode, Termination};
use std::time::Duration;

use fencelock_core::{Locks, Result};
use tokio::runtime::{Builder, Runtime};

pub use crate::test_store::Case;
use crate::test_store::{MISSING, TestStore, Unavailable};

/// The functions that can be tests.
#[diagnostic::on_unimplemented(
    message = "this function cannot be a test of a store",
    label = "expected (locks: Locks), (store: TestStore) or (locks: Locks, store: TestStore)",
    note = "`Locks` is fencelock::Locks, and must be of the version that fencelock-testkit uses",
    note = "the function returns what a test returns: () or a Result"
)]
#[allow(async_fn_in_trait)] // Called here only, on the test's own thread.
pub trait TestFn<Args> {
    /// What the test returns.
    type Returns: Termination;

    /// Runs the test.
    async fn call(self, store: TestStore) -> Result<Self::Returns>;
}

impl<F, Fut> TestFn<(Locks,)> for F
where
    F: FnOnce(Locks) -> Fut,
    Fut: Future<Output: Termination>,
{
    type Returns = Fut::Output;

    async fn call(self, store: TestStore) -> Result<Fut::Output> {
        Ok(self(store.connect().await?).await)
    }
}

impl<F, Fut> TestFn<(TestStore,)> for F
where
    F: FnOnce(TestStore) -> Fut,
    Fut: Future<Output: Termination>,
{
    type Returns = Fut::Output;

    async fn call(self, store: TestStore) -> Result<Fut::Output> {
        Ok(self(store).await)
    }
}

impl<F, Fut> TestFn<(Locks, TestStore)> for F
where
    F: FnOnce(Locks, TestStore) -> Fut,
    Fut: Future<Output: Termination>,
{
    type Returns = Fut::Output;

    async fn call(self, store: TestStore) -> Result<Fut::Output> {
        Ok(self(store.connect().await?, store).await)
    }
}

/// Runs the test.
///
/// # Panics
/// When the test fails, or its store cannot be started.
pub fn run<Args>(case: Case, test: impl TestFn<Args>) {
    let runtime = runtime(case).expect("a runtime for the test");
    let store = match TestStore::open(case, &runtime) {
        Ok(store) => store,
        Err(unavailable) if unavailable.is_missing() && ignores_missing() => {
            return say_ignored(case, &unavailable);
        }
        Err(unavailable) => panic!("{}: {unavailable}", case.name),
    };
    let testing = AssertUnwindSafe(|| runtime.block_on(Box::pin(test.call(store.clone()))));
    let outcome = catch_unwind(testing);
    // Also after a panic: what is left would stay in a store that was given by a URL.
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(store.end())));
    {
        let _entered = runtime.enter();
        drop(store);
    }
    // A task that does not end must not keep the other tests waiting.
    runtime.shutdown_timeout(Duration::from_secs(5));
    report(case, outcome);
    report(case, ended);
}

fn runtime(case: Case) -> std::io::Result<Runtime> {
    let mut builder = match case.multi_thread {
        true => Builder::new_multi_thread(),
        false => Builder::new_current_thread(),
    };
    builder.enable_all();
    if case.start_paused {
        builder.start_paused(true);
    }
    builder.build()
}

fn report<T: Termination>(
    case: Case,
    outcome: std::result::Result<Result<T>, Box<dyn Any + Send>>,
) {
    match outcome {
        Err(panic) => resume_unwind(panic),
        Ok(Err(error)) => panic!("{}: {error:#}", case.name),
        // It prints the error.
        Ok(Ok(returned)) => {
            let code = returned.report();
            assert!(code == ExitCode::SUCCESS, "{}: the test returned {code:?}", case.name);
        }
    }
}

fn ignores_missing() -> bool {
    match std::env::var(MISSING).as_deref() {
        Ok("ignore") => true,
        Ok("fail") | Err(_) => false,
        Ok(other) => panic!("{MISSING}={other}: expected ignore or fail"),
    }
}

/// Past the capture of the test's output, which shows nothing of a test that passes.
fn say_ignored(case: Case, unavailable: &Unavailable) {
    let line = format!("ignored: {}: {}\n", case.name, unavailable.what());
    // Without standard error there is no one to tell.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
