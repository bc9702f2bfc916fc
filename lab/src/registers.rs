//! The registers in the lock's own database: what a service does whose locks and data are in one Postgres.

use async_trait::async_trait;
use fencelock::postgres::run_check;
use fencelock::{Error, ErrorKind, Result};
use fencelock_conformance::{Addition, DatabaseRegisters};
use fencelock_testkit::torture::transactions::{READ, WRITE};
use tokio::time::sleep;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, IsolationLevel};

use crate::postgres_client::{PostgresClient, connect};

/// Ends a transaction without a check whose client is killed or cut off. One that is only frozen, for less
/// than this, goes on.
const IDLE_LIMIT: &str = "SET LOCAL idle_in_transaction_session_timeout = '5s'";

/// For the database that the store of this URL is in.
pub(crate) fn open(url: &str) -> Box<dyn DatabaseRegisters> {
    Box::new(Registers { url: url.to_owned(), client: None })
}

struct Registers {
    url: String,
    client: Option<PostgresClient>,
}

#[async_trait]
impl DatabaseRegisters for Registers {
    async fn add_one(&mut self, addition: Addition<'_>) -> Result<()> {
        let client = match &mut self.client {
            Some(client) => client,
            none => none.insert(connect(&self.url).await?),
        };
        add_one(&mut client.client, addition).await
    }
}

async fn add_one(client: &mut Client, addition: Addition<'_>) -> Result<()> {
    let Addition { id, register, check, think } = addition;
    // Without the check a stricter level would show some of what it prevents.
    let level = match (check, id.rem_euclid(10)) {
        (Some(_), 0) => IsolationLevel::RepeatableRead,
        (Some(_), 1) => IsolationLevel::Serializable,
        _ => IsolationLevel::ReadCommitted,
    };
    let transaction = client.build_transaction().isolation_level(level).start();
    let transaction = transaction.await.map_err(failed)?;
    match check {
        Some(check) => run_check(&transaction, check).await?,
        None => transaction.batch_execute(IDLE_LIMIT).await.map_err(failed)?,
    }
    let checked = check.is_some();
    // Unnamed statements, as a pooler wants them.
    let mut arguments: Vec<(&(dyn ToSql + Sync), Type)> =
        vec![(&register, Type::TEXT), (&checked, Type::BOOL)];
    let read = transaction.query_typed(READ, &arguments).await.map_err(failed)?;
    let value: i64 = match read.first() {
        Some(row) => row.try_get(0).map_err(failed)?,
        None => return Err(Error::new(ErrorKind::Refused, "there is no such register")),
    };
    sleep(think).await;
    let one_more = value + 1;
    arguments.extend([(&one_more as &(dyn ToSql + Sync), Type::INT8), (&id, Type::INT8)]);
    transaction.query_typed(WRITE, &arguments).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)
}

fn failed(error: tokio_postgres::Error) -> Error {
    Error::new(ErrorKind::Unreachable, "a transaction failed").caused_by(error)
}
