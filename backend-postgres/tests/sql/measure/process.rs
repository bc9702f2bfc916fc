//! A process with one connection for all of its waiters, as the driver is, without the driver's batches.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::Notify;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls, Row, Statement};
use uuid::Uuid;

/// When one looks again that is not the first of its lock: as its process does.
const NOT_FIRST: Duration = Duration::from_secs(1);

type Waiters = Arc<Mutex<HashMap<String, Arc<Notify>>>>;

pub(super) struct Process {
    pub(super) sql: Client,
    channel: String,
    /// The lock that its waiters were last for.
    key: Mutex<Vec<u8>>,
    waiters: Waiters,
    attempt: Statement,
    release: Statement,
    look: Statement,
}

impl Process {
    pub(super) async fn start(config: &Config, number: usize) -> Arc<Process> {
        let (sql, mut connection) = config.connect(NoTls).await.unwrap();
        let waiters = Waiters::default();
        let routes = waiters.clone();
        tokio::spawn(async move {
            let messages = futures_util::stream::poll_fn(move |cx| connection.poll_message(cx));
            let mut messages = std::pin::pin!(messages);
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(note) = message
                    && let Some(waiter) = routes.lock().unwrap().get(note.payload())
                {
                    waiter.notify_one();
                }
            }
        });
        let channel = format!("fl_{number:016x}");
        sql.batch_execute(&format!("LISTEN {channel}; SET search_path = fencelock")).await.unwrap();
        let attempt = "SELECT attempt_1(
          $1, $2, 'x', 1, 1, 30000000, $3, '', true, 1, true)";
        let prepare = async |text: &str| sql.prepare(text).await.unwrap();
        let (attempt, release, look) = (
            prepare(attempt).await,
            prepare("SELECT release_1($1, $2)").await,
            prepare("SELECT owner FROM look_1($1, ARRAY[$2::bytea], '{}') WHERE again = 0").await,
        );
        let key = Mutex::default();
        let process = Arc::new(Process { sql, channel, key, waiters, attempt, release, look });
        let looks = Arc::downgrade(&process);
        tokio::spawn(async move {
            while let Some(process) = looks.upgrade() {
                process.look().await;
                drop(process);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        process
    }

    /// For all of its waiters, and wakes those whose notification was lost.
    async fn look(&self) {
        let key = self.key.lock().unwrap().clone();
        // The test may have ended, and the server with it.
        let Ok(rows) = self.sql.query(&self.look, &[&self.channel, &key]).await else { return };
        for row in rows {
            let owner: Uuid = row.get(0);
            if let Some(waiter) = self.waiters.lock().unwrap().get(&owner.to_string()) {
                waiter.notify_one();
            }
        }
    }

    /// Queues until the lock is granted.
    pub(super) async fn acquire(&self, key: &[u8], owner: Uuid) {
        key.clone_into(&mut self.key.lock().unwrap());
        let woken = Arc::new(Notify::new());
        self.waiters.lock().unwrap().insert(owner.to_string(), woken.clone());
        loop {
            let params: [&(dyn ToSql + Sync); 3] = [&key, &owner, &self.channel];
            let row = self.call(&self.attempt, &params).await;
            let reply: i64 = row.get(0);
            if reply > 0 {
                break;
            }
            let again = Duration::from_millis(reply.unsigned_abs());
            if again == NOT_FIRST {
                woken.notified().await;
            } else if tokio::time::timeout(again, woken.notified()).await.is_err() {
                self.look().await;
            }
        }
        self.waiters.lock().unwrap().remove(&owner.to_string());
    }

    pub(super) async fn release(&self, key: &[u8], owner: Uuid) {
        let row = self.call(&self.release, &[&key, &owner]).await;
        assert_eq!(row.get::<_, i32>(0), 1);
    }

    /// Repeated, as the store does, if another step had the lock's row for 200 ms: on a busy machine.
    async fn call(&self, function: &Statement, params: &[&(dyn ToSql + Sync)]) -> Row {
        loop {
            match self.sql.query_one(function, params).await {
                Err(late) if late.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {}
                answer => return answer.unwrap(),
            }
        }
    }
}

/// In the order of the values, the one that `share` of them do not exceed.
pub(super) fn quantile(sorted: &[Duration], share: f64) -> Duration {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index"
    )]
    let at = ((sorted.len() - 1) as f64 * share) as usize;
    sorted[at]
}
