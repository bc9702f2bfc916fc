//! What the connections of a store have in common.

use std::sync::Arc;

use fencelock_core::Result;
use fencelock_core::backend::current_runtime;
use fencelock_net::{Login, Secured, Timeouts, Tls};
use tokio::runtime::Handle;

use super::access::{Access, AddressMap};

/// Login, database, TLS and timeouts: the same for every server of a store.
#[derive(Clone, Debug)]
pub(crate) struct ConnectOptions {
    pub(crate) login: Login,
    pub(crate) database: u16,
    pub(crate) tls: Option<Secured>,
    pub(crate) timeouts: Timeouts,
    pub(crate) addresses: AddressMap,
    /// The servers are sentinels, which have a login of their own.
    pub(crate) is_sentinel: bool,
    /// Runs the connections, whichever runtime sends requests.
    pub(crate) runtime: Handle,
}

impl ConnectOptions {
    /// Options for the current runtime. All errors are final.
    pub(crate) fn new(access: Access) -> Result<Arc<ConnectOptions>> {
        let runtime = current_runtime()?;
        let Access { login, database, tls, timeouts, addresses } = access;
        timeouts.check()?;
        login.warn();
        let tls = tls.map(Tls::load).transpose()?;
        let is_sentinel = false;
        Ok(Arc::new(ConnectOptions {
            login,
            database,
            tls,
            timeouts,
            addresses,
            is_sentinel,
            runtime,
        }))
    }
}
