//! What the connections of a store have in common.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use fencelock_core::Result;
use fencelock_core::backend::invalid;
use fencelock_net::{Login, Secured, Timeouts};
use tokio::runtime::Handle;

use super::history::Histories;
use crate::statements::Statements;

/// How long the notification takes at most that shows that no pooler is between. Each connection by a pooler
/// costs this time.
pub(super) const USUAL_PROBE: Duration = Duration::from_millis(500);

/// After one that arrived too late: of a busy server.
pub(super) const PATIENT_PROBE: Duration = Duration::from_secs(5);

/// What the sessions before have taught.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) probe: Duration,
    /// Where the last one was direct.
    pub(super) direct: Option<Host>,
}

/// The settings of all connections of a store.
pub(crate) struct ConnectOptions {
    /// The first that can be written is used.
    pub(crate) hosts: Vec<Host>,
    pub(crate) database: String,
    pub(crate) login: Login,
    pub(crate) schema: String,
    /// A role that may own it; empty for none but those that are always trusted.
    pub(crate) owner: String,
    /// Whether to create the schema if it is missing.
    pub(crate) creates: bool,
    pub(crate) statements: Statements,
    /// The channel of this process's notifications.
    pub(crate) channel: String,
    /// How the server knows this process's sessions. Every role sees it, so it does not tell the channel, on
    /// which owner tokens arrive.
    pub(crate) session_name: String,
    /// The channel of the schema's changed cells.
    pub(crate) cells_channel: String,
    pub(crate) tls: Option<Secured>,
    pub(crate) timeouts: Timeouts,
    pub(crate) runtime: Handle,
    pub(crate) history: Histories,
}

/// Without the channel, on which owner tokens arrive.
impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectOptions")
            .field("hosts", &self.hosts)
            .field("database", &self.database)
            .field("login", &self.login)
            .field("schema", &self.schema)
            .field("session_name", &self.session_name)
            .field("timeouts", &self.timeouts)
            .finish_non_exhaustive()
    }
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Host {
    Tcp(String, u16),
    /// The directory of the server's Unix socket, and the port that is in the socket's name.
    Socket(PathBuf, u16),
}

impl Host {
    /// Whether what is sent stays on this machine.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Host::Socket(..) => true,
            Host::Tcp(name, _) => {
                let address = name.parse::<std::net::IpAddr>();
                name == "localhost" || address.is_ok_and(|address| address.is_loopback())
            }
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Tcp(name, port) if name.contains(':') => write!(f, "[{name}]:{port}"),
            Host::Tcp(name, port) => write!(f, "{name}:{port}"),
            Host::Socket(directory, port) => {
                write!(f, "{}", directory.join(format!(".s.PGSQL.{port}")).display())
            }
        }
    }
}

/// Refuses a text that no message of the protocol can carry.
pub(crate) fn without_nul(what: &str, text: &str) -> Result<()> {
    match text.contains('\0') {
        true => Err(invalid(format!("the {what} contains NUL, which PostgreSQL does not accept"))),
        false => Ok(()),
    }
}
