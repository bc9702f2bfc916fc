//! How the suite reaches a store: as any client, and by the backdoors that only the store's own
//! tests have.
//!
//! Backdoors act on one behaviour's part of the store, under its fresh random prefix. The one that
//! affects a whole server, [`Backdoor::LoseData`], can only be offered by a harness that started
//! the server itself; the harness for a user's URL has no code for it.

use async_trait::async_trait;
use fencelock_core::{Error, ErrorKind, Locks, Result, Settings, TokenEpoch, Ttl};
use serde::{Deserialize, Serialize};
use std::time::Duration;

use crate::network_fault::NetworkFault;
use crate::url_params::with_params;

pub(crate) mod memory;
pub(crate) mod scratch;
pub(crate) mod url;

/// One kind of store under test.
///
/// ```no_run
/// use async_trait::async_trait;
/// use fencelock_conformance::{Backdoor, Harness, Params, Store};
/// use fencelock_core::{Locks, Result, memory::Memory};
///
/// struct MyHarness;
/// struct MyStore(Memory); // the server, or what it takes to reach it
///
/// #[async_trait]
/// impl Harness for MyHarness {
///     fn name(&self) -> &str {
///         "mine"
///     }
///     async fn open(&self, _prefix: &str) -> Result<Box<dyn Store>> {
///         Ok(Box::new(MyStore(Memory::new())))
///     }
/// }
///
/// #[async_trait]
/// impl Store for MyStore {
///     async fn connect(&self, params: &Params) -> Result<Locks> {
///         self.0.locks(params.settings()?) // a new connection each time
///     }
///     fn backdoors(&self) -> &[Backdoor] {
///         &[Backdoor::Inspect]
///     }
///     async fn leftovers(&self) -> Result<Vec<String>> {
///         Ok((0..self.0.len()).map(|_| "a lock in use".to_owned()).collect())
///     }
///     async fn is_locked(&self, _name: &str) -> Result<bool> {
///         Ok(!self.0.is_empty())
///     }
/// }
///
/// fn main() {
///     fencelock_conformance::main(MyHarness);
/// }
/// ```
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// A short name, the prefix of the behaviours' names.
    fn name(&self) -> &str;

    /// The part of each behaviour's prefix before the random part.
    fn stem(&self) -> &str {
        "conformance-"
    }

    /// A part of the store for one behaviour, which only touches what begins with `prefix`.
    ///
    /// # Errors
    /// When the store cannot be reached: every behaviour fails then.
    async fn open(&self, prefix: &str) -> Result<Box<dyn Store>>;

    /// Connects from another process to what [`Store::peer_address`] named.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] unless [`Backdoor::Processes`] is offered.
    async fn connect_peer(&self, _address: &str, _params: &Params) -> Result<Locks> {
        Err(not_written(Backdoor::Processes))
    }
}

/// The part of a store that one behaviour may use, and its backdoors.
///
/// Only what [`backdoors`](Store::backdoors) lists is called.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Connects a new, independent client, as another service would.
    ///
    /// # Errors
    /// As the store answers.
    async fn connect(&self, params: &Params) -> Result<Locks>;

    /// The available backdoors.
    fn backdoors(&self) -> &[Backdoor] {
        &[]
    }

    /// Why a backdoor is not available, for the report.
    fn why_not(&self, backdoor: Backdoor) -> String {
        format!("this harness {}", backdoor.absent())
    }

    /// Texts that must not appear in any error: passwords.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }

    /// [`Backdoor::Inspect`]: everything under the prefix that a holder or waiter left, such as
    /// keys, nodes and subscriptions, read without this library; except what may stay, a fencing
    /// counter.
    ///
    /// # Errors
    /// When the store cannot be asked.
    async fn leftovers(&self) -> Result<Vec<String>> {
        Err(not_written(Backdoor::Inspect))
    }

    /// [`Backdoor::Inspect`]: whether `name` is held, read without this library.
    ///
    /// # Errors
    /// When the store cannot be asked.
    async fn is_locked(&self, _name: &str) -> Result<bool> {
        Err(not_written(Backdoor::Inspect))
    }

    /// How many connections clients have to the store now, if the harness can count them.
    fn connections(&self) -> Option<u64> {
        None
    }

    /// [`Backdoor::Expire`]: makes the store forget the holders of `name` without notifying them,
    /// like the end of a lease or session.
    ///
    /// # Errors
    /// When the store cannot be asked.
    async fn expire(&self, _name: &str) -> Result<()> {
        Err(not_written(Backdoor::Expire))
    }

    /// Applies a fault to the connections of all clients until [`heal`](Store::heal). Its
    /// [`backdoor`](NetworkFault::backdoor) is offered.
    ///
    /// # Errors
    /// When it cannot be done.
    async fn inject_fault(&self, fault: NetworkFault) -> Result<()> {
        Err(not_written(fault.backdoor()))
    }

    /// Undoes [`inject_fault`](Store::inject_fault), including a reply to be dropped that has not
    /// come yet.
    ///
    /// # Errors
    /// When it cannot be done.
    async fn heal(&self) -> Result<()> {
        Err(not_written(Backdoor::CutOff))
    }

    /// [`Backdoor::LoseData`]: the whole server loses its data. Only for a server that the
    /// harness itself started.
    ///
    /// # Errors
    /// When it cannot be done.
    async fn lose_data(&self) -> Result<()> {
        Err(not_written(Backdoor::LoseData))
    }

    /// [`Backdoor::Processes`]: what [`Harness::connect_peer`] takes in another process.
    fn peer_address(&self) -> String {
        String::new()
    }
}

fn not_written(backdoor: Backdoor) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!("the harness offers {backdoor:?} but has no code for it"),
    )
}

/// A way to inspect or break a store without the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Backdoor {
    /// See what is in the store without this library.
    Inspect,
    /// Make the store forget a grant.
    Expire,
    /// [`NetworkFault::CutOff`].
    CutOff,
    /// [`NetworkFault::SlowReplies`].
    SlowReplies,
    /// [`NetworkFault::ReplyDropped`].
    LoseReply,
    /// All other network faults.
    NetworkFaults,
    /// Make the server lose its data.
    LoseData,
    /// Connect from other processes.
    Processes,
}

impl NetworkFault {
    /// The backdoor that a harness offers for it.
    #[must_use]
    pub fn backdoor(self) -> Backdoor {
        match self {
            NetworkFault::CutOff => Backdoor::CutOff,
            NetworkFault::SlowReplies(_) => Backdoor::SlowReplies,
            NetworkFault::ReplyDropped => Backdoor::LoseReply,
            _ => Backdoor::NetworkFaults,
        }
    }
}

impl Backdoor {
    fn absent(self) -> &'static str {
        match self {
            Backdoor::Inspect => "cannot inspect the store without the library",
            Backdoor::Expire => "cannot make the store forget a grant",
            Backdoor::CutOff => "cannot cut clients off from the store",
            Backdoor::SlowReplies => "cannot delay the store's replies",
            Backdoor::LoseReply => "cannot lose a reply of the store",
            Backdoor::NetworkFaults => "cannot break the store's connections",
            Backdoor::LoseData => "did not start the server, so the suite must not delete its data",
            Backdoor::Processes => "cannot connect from other processes",
        }
    }
}

/// How a client connects: what every store's URL takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// The prefix of every lock name.
    pub prefix: String,
    /// The TTL of locks that do not ask for their own.
    pub ttl: Duration,
    /// How long the store may stay silent.
    pub unreachable_after: Duration,
    /// The tokens' top bits.
    pub token_epoch: u8,
}

impl Params {
    /// The usual ones, under `prefix`.
    #[must_use]
    pub fn under(prefix: &str) -> Params {
        Params {
            prefix: prefix.to_owned(),
            ttl: Duration::from_secs(30),
            unreachable_after: Duration::from_secs(30),
            token_epoch: 0,
        }
    }

    /// The settings for a store that is connected without a URL.
    ///
    /// # Errors
    /// When one of them is out of its range.
    pub fn settings(&self) -> Result<Settings> {
        Settings::default()
            .prefix(&self.prefix)
            .ttl(Ttl::new(self.ttl)?)
            .token_epoch(TokenEpoch::new(self.token_epoch)?)
            .unreachable_after(self.unreachable_after)
    }

    /// `url` with these parameters in place of its own; all others stay as they are.
    #[must_use]
    pub fn on_url(&self, url: &str) -> String {
        let ms = |time: Duration| format!("{}ms", time.as_millis());
        let ours = [
            ("prefix", &*self.prefix),
            ("ttl", &ms(self.ttl)),
            ("unreachable_after", &ms(self.unreachable_after)),
            ("token_epoch", &self.token_epoch.to_string()),
        ];
        with_params(url, &ours)
    }

    /// `url` with this prefix in place of its own, and nothing else changed.
    #[must_use]
    pub fn prefix_on_url(prefix: &str, url: &str) -> String {
        with_params(url, &[("prefix", prefix)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencelock_core::url::StoreUrl;

    #[test]
    fn a_url_keeps_the_users_parameters() {
        let params = Params { token_epoch: 3, ..Params::under("a b&c=ü:") };
        let url = params.on_url("redis://u:p%40@h/1?ttl=1s&db=2&prefix=mine");
        assert!(url.starts_with("redis://u:p%40@h/1?db=2&prefix="), "{url}");
        let url = StoreUrl::parse(&url).unwrap();
        let parsed = url.params(&["db"]).unwrap();
        assert_eq!(parsed.text("prefix"), Some("a b&c=ü:"));
        assert_eq!(parsed.duration("ttl").unwrap(), Some(Duration::from_secs(30)));
        assert_eq!(parsed.number::<u8>("token_epoch").unwrap(), Some(3));
        assert!(parsed.settings().is_ok());
        assert!(StoreUrl::parse(&params.on_url("mem://")).is_ok());
    }
}
