//! A counter.

use crate::cells::{Handle, Step, View, not_ours};
use crate::types::error::{Operation, Result, invalid};

/// A number that clients add to, exactly, also when replies are lost: for numbers that people read,
/// such as those of orders. Where only programs read them, [`ids`](crate::Locks::ids) are faster and
/// outlive a loss of the store's data.
///
/// - Additions of the tasks of one client are combined: many cost the store as much as one.
/// - The value is as durable as the store's cells ([`Profile::cells`](crate::Profile::cells)). After a loss
///   it starts again at zero: after a restore, call [`at_least`](Counter::at_least) with the largest
///   number in your database.
/// - Numbers can be missing: one that was added for an order which then failed is not given out again.
///   Only a transaction of the database itself has no gaps.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// let orders = locks.counter("orders");
/// orders.at_least(1_000).await?; // the largest number in the database, after a restore
/// assert_eq!(orders.add(1).await?, 1_001); // the answer is this caller's own number
/// assert_eq!(orders.get().await?, 1_001);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Counter {
    handle: Handle,
}

impl Counter {
    pub(crate) fn new(handle: Handle) -> Counter {
        Counter { handle }
    }

    /// Adds `n`, which may be negative, and returns the sum. No other call gets the same answer, as long
    /// as all add numbers above zero.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) when the sum does not fit an `i64`; the
    /// value stays. Otherwise the store's: [`ErrorKind::Unreachable`](crate::ErrorKind::Unreachable) says
    /// when it is unknown whether `n` was added.
    ///
    /// # Cancel safety
    /// If the future is dropped, `n` may or may not be added.
    pub async fn add(&self, n: i64) -> Result<i64> {
        let add = move |there: Option<View<'_>>| {
            let value = value(there)?;
            let sum = value
                .checked_add(n)
                .ok_or_else(|| invalid(format!("{value} + {n} does not fit an i64")))?;
            Ok((write(sum), sum))
        };
        self.handle.change(Operation::Write, add).await
    }

    /// The value; zero if nothing was added.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn get(&self) -> Result<i64> {
        self.handle.read(Operation::Read, value).await
    }

    /// Raises the value to `n` if it is smaller, and returns it.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Cancel safety
    /// If the future is dropped, it may or may not be raised.
    pub async fn at_least(&self, n: i64) -> Result<i64> {
        let raise = move |there: Option<View<'_>>| {
            let value = value(there)?;
            Ok(if n > value { (write(n), n) } else { (Step::Keep, value) })
        };
        self.handle.change(Operation::Write, raise).await
    }

    /// Removes it: the next addition starts at zero.
    ///
    /// # Errors
    /// The store's.
    ///
    /// # Cancel safety
    /// If the future is dropped, it may or may not be removed.
    pub async fn remove(&self) -> Result<()> {
        self.handle.remove().await
    }
}

fn value(there: Option<View<'_>>) -> Result<i64> {
    let Some(view) = there else { return Ok(0) };
    view.body.try_into().map(i64::from_be_bytes).map_err(|_| not_ours())
}

fn write(value: i64) -> Step {
    Step::Write { body: value.to_be_bytes().to_vec(), fence: 0 }
}
