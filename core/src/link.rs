//! What a lock hangs on: a store that is connected, or one that is being connected in the
//! background while its locks are handed out already.
//!
//! Before the connection there is no clock, no profile and no keeper, so nothing of a claim's life
//! begins: its acquisition waits here first, within the same bounds. From then on both are alike.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::connect::{Bound, Target, may_pass};
use crate::connected::{Connected, closed};
use crate::error::{Error, ErrorKind, Result};
use crate::options::Settings;

#[derive(Clone)]
pub(crate) enum Link {
    Connected(Arc<Connected>),
    Later(Arc<Later>),
}

impl Link {
    /// Begins to connect to `target` and goes on in the background.
    ///
    /// What is wrong with the URL shows before the first attempt has to wait, so that much of it
    /// is done here.
    pub(crate) fn later(target: Target) -> Result<Link> {
        let runtime = Handle::try_current().map_err(|cause| {
            let message = "a store is connected inside a tokio runtime; there is none here";
            target.explain(Error::new(ErrorKind::InvalidArgument, message).caused_by(cause))
        })?;
        let (shown, settings) = (target.shown.clone(), target.settings.clone());
        let (told, mut trouble) = watch::channel(None);
        let progress = Arc::new(Progress::default());
        let mut connecting: Pin<Box<dyn Future<Output = ()> + Send>> =
            Box::pin(progress.clone().connect(target, told));
        let first = connecting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Some(error) = trouble.borrow_and_update().as_ref()
            && error.kind() == ErrorKind::InvalidArgument
        {
            return Err(error.clone());
        }
        let task = match first {
            Poll::Ready(()) => None,
            Poll::Pending => Some(runtime.spawn(connecting).abort_handle()),
        };
        Ok(Link::Later(Arc::new(Later { shown, settings, progress, trouble, task })))
    }

    pub(crate) fn settings(&self) -> &Settings {
        match self {
            Link::Connected(core) => &core.settings,
            Link::Later(later) => &later.settings,
        }
    }

    /// The store's name in errors.
    pub(crate) fn redacted_url(&self) -> &Arc<str> {
        match self {
            Link::Connected(core) => &core.shown,
            Link::Later(later) => later.get().map_or(&later.shown, |core| &core.shown),
        }
    }

    /// The store, if it is connected.
    pub(crate) fn get(&self) -> Option<&Arc<Connected>> {
        match self {
            Link::Connected(core) => Some(core),
            Link::Later(later) => later.get(),
        }
    }

    /// The store, once it is connected. An error that another attempt does not mend ends the wait
    /// at once.
    pub(crate) async fn wait(&self, bound: Bound) -> Result<&Arc<Connected>> {
        match self {
            Link::Connected(core) => Ok(core),
            Link::Later(later) => later.wait(bound).await,
        }
    }

    /// Ends the attempts to connect. The store, if one of them has succeeded.
    pub(crate) async fn close(&self) -> Option<&Arc<Connected>> {
        if let Link::Later(later) = self {
            later.progress.closing.cancel();
            let mut trouble = later.trouble.clone();
            while trouble.changed().await.is_ok() {}
        }
        self.get()
    }
}

/// A store that is connected in the background. The attempts end with the last who has it.
pub(crate) struct Later {
    shown: Arc<str>,
    settings: Settings,
    progress: Arc<Progress>,
    /// The last attempt's error. Its sender is gone when no attempt will follow.
    trouble: watch::Receiver<Option<Error>>,
    task: Option<AbortHandle>,
}

impl Later {
    fn get(&self) -> Option<&Arc<Connected>> {
        self.progress.connected.get()
    }

    async fn wait(&self, bound: Bound) -> Result<&Arc<Connected>> {
        let mut trouble = self.trouble.clone();
        let mut last = trouble.borrow_and_update().clone();
        self.progress.wanted.notify_one();
        let waiting = async {
            while trouble.changed().await.is_ok() {
                last = trouble.borrow_and_update().clone();
                if let Some(error) = last.as_ref().filter(|error| !may_pass(error)) {
                    return Err(error.clone());
                }
            }
            self.get().ok_or_else(closed)
        };
        let connected = bound.of(waiting).await;
        connected.unwrap_or_else(|| Err(bound.passed(last)))
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        self.task.iter().for_each(AbortHandle::abort);
    }
}

#[derive(Default)]
struct Progress {
    connected: OnceLock<Arc<Connected>>,
    /// Somebody waits for the connection.
    wanted: Notify,
    closing: CancellationToken,
}

impl Progress {
    async fn connect(self: Arc<Progress>, target: Target, told: watch::Sender<Option<Error>>) {
        tokio::select! {
            biased;
            () = self.closing.cancelled() => {}
            connected = self.attempts(&target, &told) => {
                // Nobody else sets it.
                let _ = self.connected.set(connected);
            }
        }
    }

    async fn attempts(
        &self,
        target: &Target,
        told: &watch::Sender<Option<Error>>,
    ) -> Arc<Connected> {
        let mut attempts = target.attempts();
        let mut silent = true;
        loop {
            match attempts.next().await {
                Ok(connected) => return connected,
                Err(error) if may_pass(&error) => {
                    if std::mem::take(&mut silent) {
                        let store = &target.shown;
                        tracing::warn!(target: "fencelock", %store, %error, "not connected yet");
                    }
                    told.send_replace(Some(error));
                }
                Err(error) => {
                    told.send_replace(Some(target.explain(error)));
                    // Only a person can change that. Each who asks again finds out anew, but a
                    // login that is refused is not repeated for nobody.
                    self.wanted.notified().await;
                }
            }
        }
    }
}
