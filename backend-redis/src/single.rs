//! The store on one server, a server that Sentinel watches, or a cluster.

pub(crate) mod acquisition;
pub(crate) mod backend;
pub(crate) mod cells;
pub(crate) mod config;
mod last_server;
pub(crate) mod notifications;
mod store;
