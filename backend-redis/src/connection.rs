//! Connections: how a server is found and reached, and one connection to it that is replaced for as
//! long as the store lives.

pub(crate) mod access;
mod dial;
mod endpoint;
mod frames;
mod host;
mod login;
mod options;
mod probe;
mod supervised;
mod tls;

#[cfg(feature = "redlock")]
pub(crate) use dial::{ConnectionTask, Dialled};
pub(crate) use endpoint::Target;
pub(crate) use host::HostPort;
pub use login::Credentials;
pub(crate) use login::Login;
pub(crate) use options::ConnectOptions;
pub(crate) use supervised::{PushHandler, Subscription, SupervisedConnection};
pub use tls::Tls;
