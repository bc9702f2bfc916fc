//! The cells of a connected store, each in the state file of the lock of its name.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fencelock_core::{CellStore, Content, Keep, LockName, Notifier, Result, Stamp};

use crate::claim::store::Store;
use crate::error::no_answer;
use crate::lock::disk_step::DiskStep;
use crate::lock::queue_cache::StepError;
use crate::storage::cell::Cell;
use crate::storage::lock_files::LockDir;

/// When a cell that cannot be watched is read again.
const READ_AGAIN: Duration = Duration::from_secs(1);

impl CellStore for Store {
    async fn read(
        &self,
        cell: &LockName,
        notifier: Option<&Arc<Notifier>>,
    ) -> Result<Option<Content>> {
        let Some(notifier) = notifier else {
            let read = |dir: &LockDir| dir.open_cell()?.map_or(Ok(None), |cell| read(&cell));
            return self.on_disk(self.dir(cell), read).await;
        };
        let dir = self.dir(cell);
        // Before the watch is set: its notification must find it.
        self.wake_pipe.cells.insert(&dir.hash, notifier);
        let number = self.wake_pipe.number;
        let (content, is_watched) =
            self.on_disk(dir, move |dir| read_and_watch(dir, number)).await?;
        if !is_watched {
            notifier.notify_when(tokio::time::sleep(READ_AGAIN));
        }
        Ok(content)
    }

    async fn swap(
        &self,
        cell: &LockName,
        from: Option<Stamp>,
        to: Option<&Content>,
        keep: Keep,
    ) -> Result<bool> {
        let (to, wake_pipe) = (to.cloned(), self.wake_pipe.clone());
        let swap = move |dir: &LockDir| {
            let opened = match (dir.open_cell()?, from, &to) {
                (None, None, Some(_)) => open_or_create(dir)?,
                (opened, ..) => opened,
            };
            // Without a directory, there is nothing to remove.
            let Some(cell) = opened else { return Ok(from.is_none()) };
            let guard = cell.latch()?.ok_or(StepError::Contended)?;
            let is_made = guard.swap(from, to.as_ref(), keep)?;
            drop(guard);
            if is_made {
                // Also of a swap that is repeated: the process that made it may have died before it
                // notified anyone. If it cannot be read who watches, they look by themselves.
                for number in cell.take_watches().unwrap_or_default() {
                    wake_pipe.wake(number, dir.hash);
                }
            }
            Ok(is_made)
        };
        self.on_disk(self.dir(cell), swap).await
    }

    async fn reserve(&self, cell: &LockName) -> Result<()> {
        let reserve = |dir: &LockDir| {
            let Some(cell) = open_or_create(dir)? else { return Ok(()) };
            Ok(cell.latch()?.ok_or(StepError::Contended)?.reserve()?)
        };
        self.on_disk(self.dir(cell), reserve).await
    }

    /// Lists the locks that may have a cell. Writes nothing.
    async fn list(&self, prefix: &str) -> Result<Option<Vec<String>>> {
        let (context, prefix) = (self.context.clone(), prefix.to_owned());
        let list = move || Ok(Some(context.cells(&prefix)?));
        self.step(&self.context.directory.path, list).await
    }
}

impl Store {
    fn dir(&self, cell: &LockName) -> LockDir {
        LockDir::new(self.context.clone(), cell.shared_key().clone())
    }

    /// The answer to a step on the cell in `dir`, within bounds.
    async fn on_disk<T: Send + 'static>(
        &self,
        dir: LockDir,
        step: impl Fn(&LockDir) -> Result<T, StepError> + Send + 'static,
    ) -> Result<T> {
        let path = dir.path.clone();
        self.step(&path, move || step(&dir)).await
    }

    /// The answer to a step in the directory at `path`, within bounds.
    async fn step<T: Send + 'static>(
        &self,
        path: &Path,
        step: impl Fn() -> Result<T, StepError> + Send + 'static,
    ) -> Result<T> {
        self.context.same_process()?;
        let begun = Instant::now();
        let mut running = DiskStep::submit(&self.threads, step)?;
        match self.in_time(&mut running.answer).await {
            Some(answer) => answer.unwrap_or_else(|_| Err(no_answer())),
            None => Err(running.unanswered(path, begun.elapsed())),
        }
    }
}

fn read(cell: &Cell<'_>) -> Result<Option<Content>, StepError> {
    match cell.read()? {
        Ok(content) => Ok(content),
        // It is damaged, unless it is being replaced.
        Err(_) => Ok(cell.latch()?.ok_or(StepError::Contended)?.read()?),
    }
}

/// The content, and whether the store with wake pipe `number` will be notified of the next change.
fn read_and_watch(dir: &LockDir, number: u16) -> Result<(Option<Content>, bool), StepError> {
    let opened = match dir.open_cell()? {
        Some(cell) => Some(cell),
        // On a full disk, for example, nothing can be created, and there is no cell.
        None => match dir.create() {
            Err(error) if error.is_retryable() => None,
            created => created.and_then(|()| dir.open_cell())?,
        },
    };
    let Some(cell) = opened else { return Ok((None, false)) };
    let watched = cell.watch(number);
    if let Err(error) = &watched {
        tracing::debug!(target: "fencelock", %error, "cannot watch a cell; it is read each second");
    }
    Ok((read(&cell)?, watched.is_ok()))
}

fn open_or_create(dir: &LockDir) -> Result<Option<Cell<'_>>> {
    match dir.open_cell()? {
        Some(cell) => Ok(Some(cell)),
        None => dir.create().and_then(|()| dir.open_cell()),
    }
}
