//! What the network stores of [fencelock](https://docs.rs/fencelock) share.
//!
//! Internal to its stores.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod bounded;
mod supervised;
mod tcp;
mod timeouts;
mod tls;

pub use bounded::{Bounded, Frames};
pub use supervised::{Connector, Health, Sent, Supervised};
pub use tcp::{tcp, tcp_to};
pub use timeouts::Timeouts;
pub use tls::{Secured, Tls};
