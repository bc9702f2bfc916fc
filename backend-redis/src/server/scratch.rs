//! Removes what a tool's run left in a server: the keys of all locks and cells under its scratch names.

use fencelock_core::{Result, Scratch};
use redis::Pipeline;

use crate::connection::SupervisedConnection;
use crate::protocol::error::{explain, protocol_error};
use crate::protocol::identity::Keys;

/// Keys that a server scans in one call: less than a millisecond of its time.
const PAGE: usize = 1000;

/// The keys that a run may have made.
#[derive(Debug)]
pub(crate) struct Leftovers {
    /// The pattern for `SCAN`; its random part has no special character.
    pattern: String,
    /// Prefix of the lock's own key.
    lock: String,
    /// Prefix of a lock's other keys.
    others: String,
}

impl Leftovers {
    pub(crate) fn of(scratch: &Scratch) -> Leftovers {
        let lock = Keys::of(scratch.prefix()).lock().to_owned();
        let others = format!("{{{lock}");
        Leftovers { pattern: format!("*{}*", scratch.random()), lock, others }
    }

    /// Whether `key` is one of them: the pattern matches others, too.
    fn contain(&self, key: &[u8]) -> bool {
        key.starts_with(self.lock.as_bytes()) || key.starts_with(self.others.as_bytes())
    }

    /// Removes them from the server of `connection`, until there are none.
    pub(crate) async fn clear(&self, connection: &SupervisedConnection) -> Result<()> {
        // `SCAN` may miss a key that is created meanwhile.
        while self.clear_once(connection).await? > 0 {}
        Ok(())
    }

    /// Removes the keys of one complete scan; returns their number.
    async fn clear_once(&self, connection: &SupervisedConnection) -> Result<usize> {
        let (mut cursor, mut found) = (b"0".to_vec(), 0);
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(&self.pattern).arg("COUNT").arg(PAGE);
            let page = redis::from_redis_value(connection.ask(&scan).await?);
            let (next, keys): (_, Vec<Vec<u8>>) = page.map_err(|_| protocol_error("SCAN"))?;
            found += delete(connection, keys.iter().filter(|key| self.contain(key))).await?;
            cursor = next;
            if cursor == b"0" {
                return Ok(found);
            }
        }
    }
}

/// Deletes keys one by one, since those of a cluster are in different slots. With `DEL`: the keys
/// are small, and users who may take locks may use it, but not `UNLINK`.
async fn delete<'a>(
    connection: &SupervisedConnection,
    keys: impl Iterator<Item = &'a Vec<u8>>,
) -> Result<usize> {
    let mut deletes = Pipeline::new();
    for key in keys {
        deletes.cmd("DEL").arg(key);
    }
    if !deletes.is_empty() {
        for answer in connection.send_all(&deletes).await? {
            answer.extract_error().map_err(explain)?;
        }
    }
    Ok(deletes.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::identity::cell_key;

    #[test]
    fn only_keys_that_begin_with_the_scratch_prefix_are_taken() {
        let scratch = Scratch::fresh("a{b}*", "conformance");
        let leftovers = Leftovers::of(&scratch);
        let own = Keys::of(&format!("{}x{{y}}", scratch.prefix()));
        assert!(own.all().iter().all(|key| leftovers.contain(key.as_bytes())), "{own:?}");
        let cell = cell_key(&format!("{}x{{y}}", scratch.prefix()));
        assert!(leftovers.contain(cell.as_bytes()), "{cell}");
        let others = Scratch::fresh("a{b}*", "conformance");
        let others = Keys::of(others.prefix());
        for other in others.all().into_iter().map(str::to_owned).chain([
            format!("backup of {}x", own.lock()),
            format!("{{tag}}{}x", own.lock()),
            scratch.prefix().to_owned(),
            scratch.random().to_owned(),
        ]) {
            assert!(!leftovers.contain(other.as_bytes()), "{other}");
        }
    }
}
