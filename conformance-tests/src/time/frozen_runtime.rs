//! A runtime that is frozen except while it is explicitly run: a client on it behaves like a frozen
//! process, without a process.
//!
//! Nothing on a frozen runtime happens between two calls of [`FrozenRuntime::run`]: no renewal, no
//! answer to a wake-up, no clean-up. A store that frees by time must free its locks meanwhile, and
//! the client must find them lost when it continues.

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, oneshot};

type Job = Box<dyn FnOnce(&Runtime) + Send>;

/// A single-threaded tokio runtime on a thread of its own, frozen but for
/// [`run`](FrozenRuntime::run). Dropping it ends the runtime with everything on it, as the end of
/// `main` would.
#[derive(Debug)]
pub struct FrozenRuntime {
    jobs: Option<mpsc::Sender<Job>>,
    /// Ends work that would never end by itself.
    stop: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl FrozenRuntime {
    /// A new runtime.
    ///
    /// # Panics
    /// When the operating system has no thread or descriptors left for it.
    #[must_use]
    pub fn new() -> FrozenRuntime {
        let (jobs, todo) = mpsc::channel::<Job>();
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
            for job in todo {
                job(&runtime);
            }
        });
        FrozenRuntime { jobs: Some(jobs), stop: Arc::default(), thread: Some(thread) }
    }

    /// Runs the runtime until `work` is complete, then freezes it again.
    ///
    /// # Panics
    /// When `work` does.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let (done, result) = oneshot::channel();
        let stop = self.stop.clone();
        let job: Job = Box::new(move |runtime| {
            let worked = runtime.block_on(async move {
                tokio::select! {
                    worked = crate::panics::caught(work) => Some(worked),
                    () = stop.notified() => None,
                }
            });
            if let Some(worked) = worked {
                let _ = done.send(worked);
            }
        });
        let jobs = self.jobs.as_ref().expect("a frozen runtime has its thread until it is dropped");
        jobs.send(job).expect("the thread of a frozen runtime outlives its work");
        match result.await.expect("the thread of a frozen runtime outlives its work") {
            Ok(value) => value,
            Err(message) => panic!("on a frozen runtime: {message}"),
        }
    }
}

impl Default for FrozenRuntime {
    fn default() -> FrozenRuntime {
        FrozenRuntime::new()
    }
}

impl Drop for FrozenRuntime {
    fn drop(&mut self) {
        drop(self.jobs.take());
        self.stop.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
