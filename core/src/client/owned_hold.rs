//! A hold together with the duty to release it: what a guard owns.

use std::sync::Arc;

use crate::claim::hold::{Ending, Hold};
use crate::client::ClientInner;
use crate::types::error::{Error, ErrorKind, Result};

/// Dropping it ends the hold and releases the lock in the background.
pub(crate) struct OwnedHold {
    pub(crate) client: Arc<ClientInner>,
    pub(crate) hold: Arc<Hold>,
}

impl OwnedHold {
    /// Ends the hold, releases the lock and waits until the store has confirmed it.
    pub(crate) async fn release(&self) -> Result<()> {
        // The hold ends first: `is_held` must be false before the store can grant the lock again.
        let now = self.client.now();
        let held = self.hold.is_held(now) && self.hold.end(Ending::Released, now);
        self.client.worker.remove(self.hold.claim().id);
        if !held {
            return Err(not_held(&self.hold));
        }
        match self.hold.cleanup.release().await? {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::NotHeld,
                "the store no longer lists this client as the holder",
            )),
        }
    }
}

impl Drop for OwnedHold {
    fn drop(&mut self) {
        if self.hold.valid_until().is_some() {
            self.client.worker.remove(self.hold.claim().id);
            let now = self.client.now();
            // Too late, it is lost, as the release of a guard answers.
            if self.hold.is_held(now) {
                self.hold.end(Ending::Released, now);
            }
        }
        self.hold.cleanup.leave();
    }
}

/// Why `hold`, which has ended, cannot be released.
pub(crate) fn not_held(hold: &Hold) -> Error {
    let why = match hold.ending() {
        Some(Ending::Lost(reason)) => reason.to_string(),
        _ => "it was released".to_owned(),
    };
    Error::new(ErrorKind::NotHeld, why)
}
