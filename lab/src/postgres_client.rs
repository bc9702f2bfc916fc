//! A plain client of a Postgres database: what a service has besides its locks.

use std::time::Duration;

use fencelock::{Error, ErrorKind, Result};
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::{Client, Config, NoTls};
use tokio_util::task::AbortOnDropHandle;

const CONNECTS_WITHIN: Duration = Duration::from_secs(3);

/// Its drop closes the connection at once, also in the middle of a transaction.
pub(crate) struct PostgresClient {
    pub(crate) client: Client,
    _connection: AbortOnDropHandle<()>,
}

/// Connects to the database of that store, the one of its hosts that can be written, without TLS.
pub(crate) async fn connect(url: &str) -> Result<PostgresClient> {
    // What follows is for the store.
    let database = url.split('?').next().unwrap_or_default();
    let failed = |error: tokio_postgres::Error| {
        let message = "cannot connect to the database of the store as a client without TLS";
        Error::new(ErrorKind::Unreachable, message).caused_by(error)
    };
    let mut config: Config = database.parse().map_err(failed)?;
    config.connect_timeout(CONNECTS_WITHIN).target_session_attrs(TargetSessionAttrs::ReadWrite);
    let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
    let connection = tokio::spawn(async move {
        // Each request has the error too.
        let _ = connection.await;
    });
    Ok(PostgresClient { client, _connection: AbortOnDropHandle::new(connection) })
}
