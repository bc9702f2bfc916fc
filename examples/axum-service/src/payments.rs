//! The protected resource: the provider that charges cards.
//!
//! It remembers the fencing token of each order's last charge, and rejects a smaller one. In a service
//! of your own that is a condition of the SQL statement, as in `examples/sql-fencing`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fencelock::FencingToken;

/// Clones are connections to the same provider.
#[derive(Clone, Debug)]
pub(crate) struct Payments {
    /// The token of each order that has been charged.
    charged: Arc<Mutex<HashMap<String, FencingToken>>>,
    /// How long the provider takes.
    latency: Duration,
}

/// The provider's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charge {
    Made,
    /// Another request has charged the order before.
    MadeBefore,
    /// A later holder of the order's lock was here: the caller was paused for too long.
    Stale,
}

impl Payments {
    /// A provider that takes this long for a charge.
    pub(crate) fn taking(latency: Duration) -> Payments {
        Payments { charged: Arc::default(), latency }
    }

    /// Charges `order` unless it is charged.
    pub(crate) async fn charge(&self, order: &str, token: FencingToken) -> Charge {
        tokio::time::sleep(self.latency).await;
        let mut charged = self.charged.lock().unwrap_or_else(PoisonError::into_inner);
        match charged.get(order) {
            Some(last) if token < *last => Charge::Stale,
            Some(_) => Charge::MadeBefore,
            None => {
                charged.insert(order.to_owned(), token);
                Charge::Made
            }
        }
    }

    /// The number of charges.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.charged.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}
