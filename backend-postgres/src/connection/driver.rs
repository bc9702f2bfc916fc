//! The task of a connection: reads what the server sends, passes notifications on, and tells its end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use fencelock_core::backend::program;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio_postgres::error::DbError;
use tokio_postgres::{AsyncMessage, Connection, Notification};

use super::session::{PushHandler, SessionState};
use crate::error::words_of;

/// Where the notifications of a connection go.
pub(super) struct Pushes {
    pub(super) handler: Arc<dyn PushHandler>,
    pub(super) probe: Option<AwaitedProbe>,
}

/// The notification that shows that others will arrive.
pub(super) struct AwaitedProbe {
    pub(super) channel: String,
    pub(super) arrived: oneshot::Sender<()>,
    pub(super) is_patient: bool,
}

impl Pushes {
    fn receive(&mut self, notification: &Notification, state: &SessionState) {
        match self.probe.take_if(|probe| probe.channel == notification.channel()) {
            Some(probe) => {
                let is_late = probe.arrived.send(()).is_err();
                // Either no pooler is between after all, or one that passes notifications on with later answers.
                if is_late && !probe.is_patient {
                    state.is_late.store(true, Ordering::Relaxed);
                    state.health.fail();
                }
            }
            None => self.handler.on_notification(notification.channel(), notification.payload()),
        }
    }
}

/// The task of a connection.
pub(super) struct Driver<S> {
    pub(super) connection: Connection<S, tokio_postgres::tls::NoTlsStream>,
    pub(super) pushes: Option<Pushes>,
    pub(super) state: Arc<SessionState>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Future for Driver<S> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        loop {
            match ready!(this.connection.poll_message(cx)) {
                Some(Ok(AsyncMessage::Notification(notification))) => {
                    if let Some(pushes) = &mut this.pushes {
                        pushes.receive(&notification, &this.state);
                    }
                }
                Some(Ok(AsyncMessage::Notice(notice))) if is_unreplicated(&notice) => {
                    this.state.is_unreplicated.store(true, Ordering::Relaxed);
                    this.state.health.fail();
                }
                Some(Ok(_)) => {}
                ended => {
                    if let Some(Err(error)) = ended {
                        let error = words_of(&error);
                        program::call(|| tracing::debug!(error, "a connection ended"));
                        // The client crate says of the requests under way only that it is closed.
                        let _ = this.state.end.set(error);
                    }
                    return Poll::Ready(());
                }
            }
        }
    }
}

/// Whether the server says that a commit has not waited for the synchronous standby, since its wait was cancelled. To
/// the client the commit succeeds, after this warning, whose words depend on the server's language
/// (<https://www.postgresql.org/docs/current/warm-standby.html#SYNCHRONOUS-REPLICATION-HA>).
fn is_unreplicated(notice: &DbError) -> bool {
    notice.routine() == Some("SyncRepWaitForLSN")
}

/// Also after a panic: tokio-postgres logs too.
impl<S> Drop for Driver<S> {
    fn drop(&mut self) {
        self.state.health.fail();
    }
}
