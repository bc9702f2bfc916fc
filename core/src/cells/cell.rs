//! Cells in a program's own hands.

use std::fmt;
use std::time::Duration;

use crate::cells::watching::Watching;
use crate::cells::{Handle, MAX_BODY, Step, View, require_token};
use crate::guard::Guard;
use crate::store::cell_store::Stamp;
use crate::types::error::{Error, ErrorKind, Operation, Result, invalid};
use crate::types::mode::Mode;

/// A small value with compare-and-set, next to the locks: for coordination, not a database.
///
/// It is as durable as [`Profile::cells`](crate::Profile::cells) says. It is kept until it is
/// [removed](Cell::remove), unless [`keep_for`](Cell::keep_for) says otherwise. A cell and a lock of
/// the same name have nothing to do with each other.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// let limit = locks.cell("uploads/limit");
/// assert!(limit.compare_and_set(None, *b"3").await?, "it was not there");
/// let seen = limit.read().await?.expect("it is there");
/// assert!(limit.compare_and_set(Some(seen.version()), *b"5").await?);
/// assert!(!limit.compare_and_set(Some(seen.version()), *b"9").await?, "it has changed since");
/// assert_eq!(limit.read().await?.expect("it is there").bytes(), b"5");
///
/// // A value that checks fencing tokens: no earlier holder can write it.
/// let guard = locks.lock("report").acquire().await?;
/// locks.cell("report/page").write(&guard, *b"7").await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Cell {
    handle: Handle,
}

impl Cell {
    pub(crate) fn new(handle: Handle) -> Cell {
        Cell { handle }
    }

    /// Keeps it for `time` after the last write, 1 s to 10 years, in place of for ever. All who write
    /// it should say the same. Where the store cannot end data by time, a client whose clock is further
    /// ahead than `time` ignores what others still use.
    #[must_use]
    pub fn keep_for(self, time: Duration) -> Cell {
        Cell { handle: self.handle.keep_for(time) }
    }

    /// What is there now; `None` when there is nothing.
    ///
    /// # Errors
    /// The store's; [`ErrorKind::Foreign`] for the cell of a latch, a counter or another of these;
    /// [`ErrorKind::Unsupported`] on a store without cells.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn read(&self) -> Result<Option<CellValue>> {
        self.handle.read(Operation::Read, |there| Ok(there.map(CellValue::of))).await
    }

    /// Writes `bytes`, at most 16,000, if the cell is still of the version `expected`; `None` stands
    /// for a cell that is not there. `false` when it is another one, and was not written.
    ///
    /// # Errors
    /// Those of [`read`](Cell::read); [`ErrorKind::InvalidArgument`] when there are too many bytes.
    /// [`ErrorKind::Unreachable`] says when it is unknown whether it was written.
    ///
    /// # Cancel safety
    /// If the future is dropped, it may or may not be written.
    pub async fn compare_and_set(
        &self,
        expected: Option<CellVersion>,
        bytes: impl Into<Vec<u8>>,
    ) -> Result<bool> {
        let body = self.checked(bytes.into())?;
        let by = move |there: Option<View<'_>>| {
            if there.and_then(|view| view.stamp) != expected.map(|version| version.0) {
                return Ok((Step::Keep, false));
            }
            let fence = there.map_or(0, |view| view.fence);
            Ok((Step::Write { body: body.clone(), fence }, true))
        };
        self.handle.change(Operation::Write, by).await
    }

    /// Writes `bytes`, at most 16,000, whatever is there, with the fencing token of an exclusive `guard`: for as
    /// long as the lock is held, and never after a later holder of the lock has written.
    ///
    /// # Errors
    /// [`ErrorKind::Stale`]: a larger token was written. [`ErrorKind::Lost`]: the guard no longer holds
    /// its lock. [`ErrorKind::InvalidArgument`] for the guard of a reader or of permits, whose tokens have no order.
    /// Otherwise those of [`compare_and_set`](Cell::compare_and_set).
    ///
    /// # Cancel safety
    /// If the future is dropped, it may or may not be written.
    pub async fn write(&self, guard: &Guard, bytes: impl Into<Vec<u8>>) -> Result<()> {
        let body = self.checked(bytes.into())?;
        let refused = match guard.mode() {
            Mode::Exclusive if guard.is_held() => None,
            Mode::Exclusive => {
                Some(Error::new(ErrorKind::Lost, "the guard no longer holds its lock"))
            }
            mode => Some(invalid(format!(
                "a guard in {mode} mode cannot write: others hold the lock with it, and their tokens have no order; \
                 expected one of lock() or of rw_lock().write()"
            ))),
        };
        if let Some(error) = refused {
            return Err(self.handle.explain(error, Operation::Write));
        }
        let token = guard.fencing_token();
        let by = move |there: Option<View<'_>>| {
            require_token(there, token)?;
            Ok((Step::Write { body: body.clone(), fence: token.get() }, ()))
        };
        self.handle.change(Operation::Write, by).await
    }

    /// Removes the cell. A later one of the same name is another.
    ///
    /// # Errors
    /// Those of [`read`](Cell::read).
    ///
    /// # Cancel safety
    /// If the future is dropped, it may or may not be removed.
    pub async fn remove(&self) -> Result<()> {
        self.handle.remove().await
    }

    /// A watch on the cell. All watches of a client on one cell cost the store one.
    ///
    /// # Errors
    /// Those of [`read`](Cell::read).
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
    /// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
    /// let limit = locks.cell("uploads/limit");
    /// let mut watch = limit.watch().await?;
    /// assert!(watch.next().await?.is_none());
    /// limit.compare_and_set(None, *b"3").await?;
    /// assert_eq!(watch.next().await?.expect("written").bytes(), b"3");
    /// # Ok(()) }
    /// ```
    pub async fn watch(&self) -> Result<CellWatch> {
        let watching = self.handle.watch(Operation::Read).await?;
        Ok(CellWatch { handle: self.handle.clone(), watching, last: None })
    }

    fn checked(&self, body: Vec<u8>) -> Result<Vec<u8>> {
        const MOST: usize = 16_000;
        const { assert!(MOST <= MAX_BODY) };
        match body.len() {
            0..=MOST => Ok(body),
            length => {
                let error =
                    invalid(format!("{length} bytes are too many: expected at most {MOST}"));
                Err(self.handle.explain(error, Operation::Write))
            }
        }
    }
}

/// The value of a cell at one moment.
#[derive(Clone, PartialEq, Eq)]
pub struct CellValue {
    bytes: Vec<u8>,
    version: CellVersion,
}

impl CellValue {
    fn of(view: View<'_>) -> CellValue {
        // What was read has a stamp.
        let stamp = view.stamp.unwrap_or(Stamp::from_bytes([0; Stamp::BYTES]));
        CellValue { bytes: view.body.to_vec(), version: CellVersion(stamp) }
    }

    /// What was written.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Identifies the write, for [`Cell::compare_and_set`].
    #[must_use]
    pub fn version(&self) -> CellVersion {
        self.version
    }
}

impl fmt::Debug for CellValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CellValue({} bytes, {:?})", self.bytes.len(), self.version)
    }
}

/// Identifies one write of a cell: never the same for two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CellVersion(Stamp);

/// A watch on a cell; see [`Cell::watch`].
pub struct CellWatch {
    handle: Handle,
    watching: Watching,
    /// What the caller knows; nothing before the first answer.
    last: Option<Option<CellVersion>>,
}

impl CellWatch {
    /// The value: at the first call as it is after the watch began, then after each change. Changes in
    /// quick succession are one, which ends at the newest value.
    ///
    /// # Errors
    /// The store's, when it refuses, or has been silent for `unreachable_after`. Another call waits for
    /// its next answer.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn next(&mut self) -> Result<Option<CellValue>> {
        loop {
            let seen = self.watching.next().await;
            let seen = seen.map_err(|error| self.handle.explain(error, Operation::Read))?;
            let value = seen.view().map(CellValue::of);
            let version = value.as_ref().map(CellValue::version);
            if self.last.replace(version) != Some(version) {
                return Ok(value);
            }
        }
    }
}

impl fmt::Debug for CellWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CellWatch").field("cell", &self.handle).finish_non_exhaustive()
    }
}
