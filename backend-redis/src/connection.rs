//! Connections: how a server is found and reached, and one connection to it that is replaced for as
//! long as the store lives.

pub(crate) mod access;
mod dial;
pub(crate) mod endpoint;
mod frames;
mod host;
mod options;
mod probe;
mod supervised;

pub(crate) use fencelock_net::Login;
pub use fencelock_net::{Credentials, Tls};

#[cfg(feature = "redlock")]
pub(crate) use dial::Dialled;
pub(crate) use endpoint::Target;
pub(crate) use host::HostPort;
pub(crate) use options::ConnectOptions;
pub(crate) use supervised::{PushHandler, Subscription, SupervisedConnection};
