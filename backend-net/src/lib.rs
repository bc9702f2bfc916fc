//! What the network stores of [fencelock](https://docs.rs/fencelock) share.
//!
//! Internal to its stores.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod bounded;
mod files;
mod login;
mod meaning;
mod supervised;
mod tcp;
mod timeouts;
mod tls;
mod words;

pub use bounded::{Bounded, Frames};
pub use files::{read_certificate_file, read_key_file};
pub use login::{Credentials, Login};
pub use meaning::{Meaning, Remedy, elsewhere, later, meaning, refused};
pub use supervised::{Connector, Health, Sent, Supervised};
pub use tcp::{tcp, tcp_to};
pub use timeouts::Timeouts;
pub use tls::{Secured, Tls};
pub use words::words_of_server;
