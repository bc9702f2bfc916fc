//! Removes the rows that no client will use again: about once an hour in each program, however long it
//! lives.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::backend::program;
use fencelock_core::{ErrorKind, Result};
use tokio::time::{Instant, sleep};
use tokio_postgres::types::ToSql;

use crate::batch::BatchingSession;
use crate::requests::column;
use crate::statements::Function;

const EVERY: Duration = Duration::from_secs(60 * 60);

/// The part of the time in which the other requests do not wait behind a call: all but a tenth.
const PAUSES: u32 = 9;

const SHORTEST_PAUSE: Duration = Duration::from_millis(50);

/// Tidies until the store is closed.
pub(crate) async fn tidy(server: Arc<BatchingSession>) {
    // The first time at a random moment of the hour: many short programs tidy as often as one long one.
    let mut pause = EVERY.mul_f64(rand::random());
    loop {
        sleep(pause).await;
        pause = EVERY;
        let tidied = once(&server).await;
        if tidied.as_ref().is_err_and(|error| error.kind() == ErrorKind::Closed) {
            return;
        }
        program::call(|| match tidied {
            Ok(removed) => tracing::debug!(removed, "removed rows that no client uses"),
            Err(error) if error.is_retryable() => {
                tracing::debug!(%error, "cannot remove rows that no client uses");
            }
            // The role may lack the right.
            Err(error) => {
                tracing::warn!(%error, "cannot remove rows that no client uses: the tables grow");
            }
        });
    }
}

/// Removes what can be removed now; how many rows.
async fn once(server: &BatchingSession) -> Result<u64> {
    let (mut all, mut place) = (0, Place::default());
    loop {
        let started = Instant::now();
        all += step(server, &mut place).await?;
        if place.is_end() {
            return Ok(all);
        }
        sleep((started.elapsed() * PAUSES).max(SHORTEST_PAUSE)).await;
    }
}

/// Where the next call begins, in locks and cells, and in processes; `None` at their end.
#[derive(Debug)]
struct Place {
    key: Option<Vec<u8>>,
    process: Option<String>,
}

impl Default for Place {
    fn default() -> Place {
        Place { key: Some(Vec::new()), process: Some(String::new()) }
    }
}

impl Place {
    fn is_end(&self) -> bool {
        self.key.is_none() && self.process.is_none()
    }
}

/// One call, which reads a bounded number of rows; how many it removed.
async fn step(server: &BatchingSession, place: &mut Place) -> Result<u64> {
    const NAME: &str = "tidy_1";
    let session = server.session.active().await?;
    let arguments: [&(dyn ToSql + Sync); 2] = [&place.key, &place.process];
    let rows = session.call(&server.options, Function::Tidy, &arguments).await?;
    *place = Place { key: column(&rows, 0, NAME)?, process: column(&rows, 1, NAME)? };
    let removed: i32 = column(&rows, 2, NAME)?;
    Ok(u64::try_from(removed).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use fencelock_core::url::StoreUrl;
    use fencelock_testkit::servers::TestPostgres;

    use super::*;
    use crate::config::PostgresStore;
    use crate::notifications::Notifications;

    async fn session(server: &TestPostgres) -> Arc<BatchingSession> {
        let (store, _) = PostgresStore::from_url(&StoreUrl::parse(&server.url()).unwrap()).unwrap();
        let notifications = Notifications::default();
        let session =
            BatchingSession::start(store.connect_options().unwrap(), Arc::new(notifications));
        session.session.first().await.unwrap();
        session
    }

    async fn count(server: &TestPostgres) -> String {
        let sql = "SELECT (SELECT count(*) FROM fencelock.locks) || ' ' || (SELECT count(*) FROM fencelock.cells) \
                   || ' ' || (SELECT count(*) FROM fencelock.processes)";
        server.sql(sql).await.unwrap().trim().to_owned()
    }

    /// Every fourth row is in use, in tables of different sizes.
    const ADD: &str = "
        INSERT INTO fencelock.locks (key, token)
          SELECT convert_to('lock ' || n, 'UTF8'),
            extract(epoch FROM now() - '25 hours'::interval * (n % 4)) * 1e6
          FROM generate_series(0, 3999) n;
        INSERT INTO fencelock.cells (key, stamp, content, until)
          SELECT convert_to('cell ' || n, 'UTF8'), gen_random_uuid(), '', CASE WHEN n % 4 > 0 THEN 1 END
          FROM generate_series(0, 7999) n;
        INSERT INTO fencelock.processes (proc, deadline)
          SELECT 'process ' || n, CASE n % 4 WHEN 0 THEN 9e18 ELSE 1 END FROM generate_series(0, 1999) n";

    /// A call that read a million locks in use took longer than an answer may; the connection was replaced,
    /// and nothing was ever removed.
    #[tokio::test]
    async fn what_is_idle_for_a_day_goes_in_short_calls() {
        let server = TestPostgres::start().await.unwrap();
        let session = session(&server).await;
        server.sql(ADD).await.unwrap();
        let (mut place, mut calls, mut all) = (Place::default(), 0, 0);
        while !place.is_end() {
            let removed = step(&session, &mut place).await.unwrap();
            assert!(removed <= 3_000);
            (calls, all) = (calls + 1, all + removed);
        }
        // The cells come first by their keys.
        assert!((12..=13).contains(&calls) && all == 10_500, "{calls} calls, {all} rows");
        assert_eq!(count(&server).await, "1000 2000 500");
        assert_eq!(once(&session).await.unwrap(), 0);
        session.session.close();
        assert_eq!(once(&session).await.unwrap_err().kind(), ErrorKind::Closed);
    }
}
