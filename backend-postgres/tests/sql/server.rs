//! The testkit's servers, as these tests use them.

use fencelock_testkit::servers::{PostgresOptions, TestPostgres};
use tokio_postgres::{Client, Config, NoTls};

/// Without what keeps data over a failure of the machine, and what cleans up in the background.
pub(crate) fn fast() -> PostgresOptions {
    let options = PostgresOptions::new().setting("max_prepared_transactions", "10");
    options.setting("full_page_writes", "off").setting("autovacuum", "off")
}

/// How the role of clients connects, which owns the database, and may create the schema.
pub(crate) fn config(server: &TestPostgres) -> Config {
    server.url().parse().unwrap()
}

pub(crate) async fn connected(config: &Config) -> Client {
    let (client, connection) = config.connect(NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A new role's connection, with no right but those of PUBLIC.
pub(crate) async fn connected_as(server: &TestPostgres, role: &str) -> Client {
    server.create_role(role, role).await.unwrap();
    reconnected_as(server, role).await
}

/// Another connection of such a role.
pub(crate) async fn reconnected_as(server: &TestPostgres, role: &str) -> Client {
    let mut config = config(server);
    connected(config.user(role).password(role)).await
}
