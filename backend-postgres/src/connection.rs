//! Connections: how a server is reached, what one session with it can do, and one session that is
//! replaced for as long as the store lives.

mod creation;
mod dial;
mod driver;
mod history;
mod messages;
pub(crate) mod options;
mod session;
mod supervised;

pub(crate) use history::Histories;
pub(crate) use options::{ConnectOptions, Host, without_nul};
pub(crate) use session::{PushHandler, Session};
pub(crate) use supervised::SupervisedSession;
