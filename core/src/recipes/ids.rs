//! Unique, rising numbers without a cell: fencing tokens, with room for many numbers between two.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::client::connection::Connection;
use crate::lock::Lock;
use crate::store::claim::LockKind;
use crate::sync::Mutex;
use crate::types::error::{Error, ErrorKind, Operation, Result, invalid};
use crate::types::mode::Mode;
use crate::types::options;

/// The most ids of one grant.
const PER_TOKEN: u32 = 1_024;

/// Of how many names a client keeps the rest of a block; beyond, it forgets those that no task uses at the moment.
const MOST_BLOCKS: usize = 1_024;

/// What is left if a client dies between a grant and its release delays the others for no longer.
const TTL: Duration = Duration::from_secs(2);

/// Unique numbers, for programs: a million a second, and on every store. Where people read them,
/// a [`counter`](crate::Locks::counter) is dense.
///
/// An id is the fencing token of a short grant of the lock `ids:NAME` times 1,024, and a number below
/// that: a client fetches a block of them with one acquisition. So no program may hold that lock: a program whose
/// names of locks come from its users begins them with something of its own. Ids are unique as far as fencing tokens
/// rise ([`Profile::tokens`](crate::Profile::tokens)), in Redis also after a loss of its data. They rise within a
/// client, not between clients, and fit an `i64`. The rest of a block is lost with its client, or when the client uses
/// more than 1,024 names.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> fencelock_core::Result<()> {
/// # let locks = fencelock_core::memory::Memory::new().locks(Default::default())?;
/// let ids = locks.ids("orders");
/// let (one, two) = (ids.next().await?, ids.next().await?);
/// assert!(one < two);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Ids {
    connection: Connection,
    name: String,
    lock: Lock,
    block: Result<u32>,
}

/// The blocks of one client, by the key of their lock.
type Blocks = Mutex<HashMap<Arc<str>, Arc<Block>>>;

/// Ids that were fetched and not given out.
#[derive(Default)]
struct Block {
    left: tokio::sync::Mutex<std::ops::Range<u64>>,
}

impl Ids {
    pub(crate) fn new(connection: &Connection, name: &str) -> Ids {
        // Its own prefix of names, so that a program's lock of this name is another.
        let lock = if name.is_empty() { String::new() } else { format!("ids:{name}") };
        // It is held for moments only, so a long wait is a store that grants nothing.
        let limit = connection.settings().unreachable_after;
        let lock = Lock::new(connection, LockKind::Lock, &lock, Ok(Mode::Exclusive));
        let lock = lock.ttl(TTL).wait_at_most(limit);
        Ids { connection: connection.clone(), name: name.to_owned(), lock, block: Ok(PER_TOKEN) }
    }

    /// Fetches up to `n` ids at once, 1 to 1,024, the default.
    #[must_use]
    pub fn block(self, n: u32) -> Ids {
        let block = self.block.and(options::count(n, PER_TOKEN, "the number of ids in a block"));
        Ids { block, ..self }
    }

    /// The next id.
    ///
    /// # Errors
    /// Those of [`Lock::acquire`](crate::Lock::acquire); [`ErrorKind::InvalidArgument`] with a
    /// [`token_epoch`](crate::Settings::token_epoch) other than 0, which leaves no room;
    /// [`ErrorKind::Refused`] when the store's tokens have become too large.
    ///
    /// # Cancel safety
    /// Cancel safe: an id that was not returned is not lost, except for the rest of a block.
    pub async fn next(&self) -> Result<u64> {
        let explained = |error| self.connection.explain(error, Operation::Acquire);
        let size = *self.block.as_ref().map_err(|error| explained(error.clone()))?;
        let (client, request) = self.lock.resolved_now().await?;
        let blocks = client.registry::<Blocks>();
        let block = {
            let (mut blocks, key) = (blocks.lock(), request.name.shared_key());
            if blocks.len() >= MOST_BLOCKS && !blocks.contains_key(key) {
                // One of them: with one name more than this, few fetch a block anew.
                let mut idle = blocks.extract_if(|_, block| Arc::strong_count(block) == 1);
                drop(idle.next());
            }
            blocks.entry(key.clone()).or_default().clone()
        };
        let mut left = block.left.lock().await;
        if left.is_empty() {
            *left = self.fetch(size).await?;
        }
        // Never empty.
        left.next().ok_or_else(|| explained(Error::new(ErrorKind::Refused, "the block is empty")))
    }

    async fn fetch(&self, size: u32) -> Result<std::ops::Range<u64>> {
        let guard = self.lock.acquire().await.map_err(|error| match error.kind() {
            ErrorKind::WaitTimedOut => error.adding(&format!(
                "; the numbers of ids({:?}) come from this lock, which no program may hold otherwise",
                self.name
            )),
            _ => error,
        })?;
        let token = guard.fencing_token().get();
        // Released in the background: the token is this client's, whatever becomes of the lock.
        drop(guard);
        first_id(token).map(|first| first..first + u64::from(size)).map_err(|error| {
            let error = self.connection.explain(error, Operation::Acquire);
            match &self.lock.request {
                Ok(request) => error.on(request.name.as_str()),
                Err(_) => error,
            }
        })
    }
}

fn first_id(token: u64) -> Result<u64> {
    if token >> 56 != 0 {
        return Err(invalid("a token_epoch leaves no room for ids; expected 0"));
    }
    match token.checked_mul(u64::from(PER_TOKEN)).filter(|first| i64::try_from(*first).is_ok()) {
        Some(first) => Ok(first),
        None => Err(Error::new(
            ErrorKind::Refused,
            format!("the store's fencing token {token} is too large for ids, which fit an i64"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn names_that_were_used_once_are_forgotten() {
        let locks = crate::memory::Memory::new().locks(Default::default()).unwrap();
        for n in 0..=MOST_BLOCKS + 1 {
            locks.ids(format!("{n}")).next().await.unwrap();
        }
        let ids = locks.ids("last");
        let (client, _) = ids.lock.resolved_now().await.unwrap();
        assert_eq!(client.registry::<Blocks>().lock().len(), MOST_BLOCKS, "one for each new one");
    }

    #[test]
    fn ids_fit_an_i64_or_are_refused() {
        assert_eq!(first_id(7).unwrap(), 7 * 1_024);
        let last = first_id((1 << 53) - 1).unwrap() + 1_023;
        assert_eq!(i64::try_from(last).unwrap(), i64::MAX);
        assert_eq!(first_id(1 << 53).unwrap_err().kind(), ErrorKind::Refused);
        assert_eq!(first_id(1 << 56 | 7).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}
