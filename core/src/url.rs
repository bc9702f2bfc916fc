//! Which store, from one URL: a scheme table, and parameters that are all known or an error.
//!
//! Swallowed or misspelt settings cost people their locks, so nothing is ignored here: an unknown
//! scheme names the ones there are, an unknown parameter the nearest spelling.

mod connect;
mod hosts;
mod mistake;
mod params;
mod store_url;

pub use connect::{Connecting, Scheme, connect, connect_lazy, connect_within};
pub use hosts::hosts_in;
pub use params::Params;
pub use store_url::StoreUrl;
