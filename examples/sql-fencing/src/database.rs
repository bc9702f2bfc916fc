//! The shop's database. A fencing token is an `i64` in SQL: `INTEGER` in SQLite, `BIGINT` in PostgreSQL.

use fencelock::FencingToken;
use rusqlite::{Connection, Result, params};

pub(crate) const SET_REMAINING: &str = include_str!("../sql/sqlite/set_remaining.sql");
pub(crate) const PASS_FENCE: &str = include_str!("../sql/sqlite/pass_fence.sql");

pub(crate) struct Database {
    connection: Connection,
}

impl Database {
    pub(crate) fn open() -> Result<Database> {
        let connection = Connection::open_in_memory()?;
        connection.execute_batch(include_str!("../sql/sqlite/schema.sql"))?;
        Ok(Database { connection })
    }

    pub(crate) fn remaining(&self, item: &str) -> Result<i64> {
        let select = "SELECT remaining FROM stock WHERE item = ?1";
        self.connection.query_row(select, [item], |row| row.get(0))
    }

    /// `false` when a later holder has written already.
    pub(crate) fn set_remaining(
        &self,
        item: &str,
        remaining: i64,
        token: FencingToken,
    ) -> Result<bool> {
        let parameters = params![item, remaining, i64::from(token)];
        let changed = self.connection.execute(SET_REMAINING, parameters)?;
        Ok(changed == 1)
    }

    /// Orders one of `item`. `false` when a later holder of `lock` has been here: nothing is changed.
    pub(crate) fn order(
        &mut self,
        item: &str,
        buyer: &str,
        lock: &str,
        token: FencingToken,
    ) -> Result<bool> {
        // Rolled back if it is dropped.
        let transaction = self.connection.transaction()?;
        let parameters = params![lock, i64::from(token)];
        if transaction.execute(PASS_FENCE, parameters)? == 0 {
            return Ok(false);
        }
        let take = "UPDATE stock SET remaining = remaining - 1 WHERE item = ?1";
        transaction.execute(take, [item])?;
        let order = "INSERT INTO orders (item, buyer) VALUES (?1, ?2)";
        transaction.execute(order, [item, buyer])?;
        transaction.commit()?;
        Ok(true)
    }

    pub(crate) fn buyers(&self) -> Result<Vec<String>> {
        let mut select = self.connection.prepare("SELECT buyer FROM orders ORDER BY id")?;
        select.query_map([], |row| row.get(0))?.collect()
    }
}
