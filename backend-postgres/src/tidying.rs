//! Removes the rows that no client will use again: about once an hour in each program, however long it
//! lives.

use std::sync::Arc;
use std::time::Duration;

use fencelock_core::{ErrorKind, Result};
use tokio::time::sleep;

use crate::batch::BatchingSession;
use crate::requests::column;
use crate::statements::Function;

const EVERY: Duration = Duration::from_secs(60 * 60);

/// A call that removes as many has left some.
const MOST: i32 = 1_000;

/// Tidies until the store is closed.
pub(crate) async fn tidy(server: Arc<BatchingSession>) {
    // The first time at a random moment of the hour: many short programs tidy as often as one long one.
    let mut pause = EVERY.mul_f64(rand::random());
    loop {
        sleep(pause).await;
        pause = EVERY;
        match once(&server).await {
            Ok(removed) => tracing::debug!(removed, "removed rows that no client uses"),
            Err(error) if error.kind() == ErrorKind::Closed => return,
            // The role may lack the right, or the server be away.
            Err(error) => tracing::debug!(%error, "cannot remove rows that no client uses"),
        }
    }
}

/// Removes what can be removed now; how many rows.
async fn once(server: &BatchingSession) -> Result<u64> {
    let mut all = 0;
    loop {
        let session = server.session.active().await?;
        let rows = session.call(&server.options, Function::Tidy, &[]).await?;
        let removed: i32 = column(&rows, 0, "tidy_1")?;
        all += u64::try_from(removed).unwrap_or(0);
        if removed < MOST {
            return Ok(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use fencelock_core::url::StoreUrl;
    use fencelock_testkit::servers::TestPostgres;

    use super::*;
    use crate::config::PostgresStore;
    use crate::notifications::Notifications;

    #[tokio::test]
    async fn what_is_idle_for_a_day_goes_however_much_it_is() {
        let server = TestPostgres::start().await.unwrap();
        let (store, _) = PostgresStore::from_url(&StoreUrl::parse(&server.url()).unwrap()).unwrap();
        let notifications = Notifications::default();
        let session =
            BatchingSession::start(store.connect_options().unwrap(), Arc::new(notifications));
        session.session.first().await.unwrap();
        let add = "INSERT INTO fencelock.locks (key, token) \
                   SELECT convert_to(n::text, 'UTF8'), extract(epoch FROM now() - age) * 1e6 \
                   FROM generate_series(1, 2500) n, (VALUES ('25 hours'::interval), ('0')) old (age) \
                   WHERE age = '0' AND n = 1 OR age <> '0' AND n > 1";
        server.sql(add).await.unwrap();
        assert_eq!(once(&session).await.unwrap(), 2_499);
        assert_eq!(server.sql("SELECT count(*) FROM fencelock.locks").await.unwrap().trim(), "1");
        assert_eq!(once(&session).await.unwrap(), 0);
        session.session.close();
        assert_eq!(once(&session).await.unwrap_err().kind(), ErrorKind::Closed);
    }
}
