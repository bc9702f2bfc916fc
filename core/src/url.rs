//! Store URLs: a table of schemes, and parameters of which an unknown one is an error.
//!
//! Ignored or misspelt settings have cost users their locks, so nothing is ignored here: the error
//! about an unknown scheme lists the known ones, about an unknown parameter the nearest spelling.

mod connect;
mod hosts;
mod mistake;
mod params;
mod store_url;

pub use connect::{
    Connecting, Scheme, connect, connect_lazy, connect_lazy_with, connect_with, connect_within,
};
pub use hosts::hosts_in;
pub use mistake::nearest_scheme;
pub use params::Params;
pub use store_url::StoreUrl;
