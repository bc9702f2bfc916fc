//! One session with one server, replaced by a new one for as long as the store lives.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use fencelock_core::{Error, Result};
use fencelock_net::{Connector, Supervised};

use super::options::{ConnectOptions, Known, PATIENT_PROBE, USUAL_PROBE};
use super::session::{PushHandler, Session};

/// A supervised session. Dropping it ends the connection.
#[derive(Debug)]
pub(crate) struct SupervisedSession(Supervised<Arc<Session>>);

impl SupervisedSession {
    /// Begins to connect.
    pub(crate) fn start(
        options: Arc<ConnectOptions>,
        handler: Arc<dyn PushHandler>,
    ) -> SupervisedSession {
        let (patience, runtime) = (options.timeouts.answer, options.runtime.clone());
        let known = Known { probe: USUAL_PROBE, direct: None };
        let sessions = Sessions { options, handler, known };
        SupervisedSession(Supervised::start(sessions, patience, &runtime))
    }

    /// Waits for the first session, or the first failure.
    pub(crate) async fn first(&self) -> Result<Arc<Session>> {
        self.0.first(|_| true).await
    }

    /// `Ok` if there is a session, else the reason.
    pub(crate) fn state(&self) -> Result<()> {
        self.0.current().map(drop)
    }

    /// Whether notifications arrive.
    pub(crate) fn is_direct(&self) -> bool {
        self.0.current().is_ok_and(|session| session.is_direct())
    }

    /// The current session; waits for it while it is being replaced.
    pub(crate) async fn active(&self) -> Result<Arc<Session>> {
        self.0.active().await
    }

    /// Ends the connection; all further requests fail.
    pub(crate) fn close(&self) {
        self.0.close();
    }
}

/// The sessions of a store, one after the other.
struct Sessions {
    options: Arc<ConnectOptions>,
    handler: Arc<dyn PushHandler>,
    known: Known,
}

impl Connector for Sessions {
    type Connection = Arc<Session>;

    async fn open(&mut self) -> Result<Arc<Session>> {
        self.options.open(&self.handler, &self.known).await.map(Arc::new)
    }

    fn opened(&mut self, session: &Arc<Session>, again: bool) {
        if again {
            self.handler.on_gap();
        }
        self.known.direct = session.is_direct().then(|| session.host.clone());
        tracing::debug!(host = %session.host, again, "connected to postgres");
    }

    fn failed(&mut self, error: &Error) {
        tracing::debug!(%error, "cannot connect to postgres");
    }

    async fn broken(&mut self, session: &Arc<Session>) {
        session.state.health.broken().await;
        session.end();
        if session.state.is_late.load(Ordering::Relaxed) {
            self.known.probe = PATIENT_PROBE;
        }
        if session.state.is_mixed.load(Ordering::Relaxed) {
            self.known.direct = None;
            tracing::warn!(
                host = %session.host,
                "a pooler is between, and gave the transactions of a client to several sessions; reconnecting"
            );
        }
    }
}
