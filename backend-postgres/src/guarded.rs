//! Checks in the user's own transaction, by the client library of this store. Any other client runs the
//! same statements.

use fencelock_core::{Check, Error, FencingToken, Result};
use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::error::explain;
use crate::schema::quoted;

/// Runs `check`, as the **first** statement of a transaction on the lock's own database and primary: until
/// that transaction ends, nobody else is granted the lock. What is only read and acted upon later belongs
/// into such a transaction too. A short one is best: others wait for its end.
///
/// ```no_run
/// # async fn f(guard: fencelock_core::Guard, mut client: tokio_postgres::Client)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let transaction = client.transaction().await?;
/// fencelock_postgres::run_check(&transaction, &guard.check()?).await?;
/// transaction.execute("UPDATE stock SET remaining = remaining - 1 WHERE item = 'lamp'", &[]).await?;
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`ErrorKind::Lost`](fencelock_core::ErrorKind::Lost): the lock is no longer the guard's, and the
/// transaction has failed. Others: the server's.
pub async fn run_check(client: &impl GenericClient, check: &Check) -> Result<()> {
    let arguments: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 3] =
        [(&check.key(), Type::BYTEA), (&check.token(), Type::INT8), (&check.idle_ms(), Type::INT4)];
    let checked = client.query_typed(check.sql(), &arguments).await;
    checked.map(drop).map_err(|error| explain(&error))
}

/// The statement that a transaction runs first which is to be safe with a lock of **another** store, such
/// as Redis or ZooKeeper: `resource` as `bytea` and the fencing token as `bigint`. It fails, with SQLSTATE
/// `FL001`, when a larger token of the resource was seen before, and then keeps later transactions with a
/// smaller one out. The table is in the schema `schema` of the user's own database;
/// [`schema::script`](crate::schema::script) makes it.
#[must_use]
pub fn fence_statement(schema: &str) -> String {
    format!("SELECT {}.fence($1, $2)", quoted(schema))
}

/// Runs [`fence_statement`].
///
/// # Errors
/// [`ErrorKind::Lost`](fencelock_core::ErrorKind::Lost): a later holder has been here. Others: the server's.
pub async fn run_fence(
    client: &impl GenericClient,
    schema: &str,
    resource: &str,
    token: FencingToken,
) -> Result<(), Error> {
    let arguments: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
        [(&resource.as_bytes(), Type::BYTEA), (&i64::from(token), Type::INT8)];
    let fenced = client.query_typed(&fence_statement(schema), &arguments).await;
    fenced.map(drop).map_err(|error| explain(&error))
}
