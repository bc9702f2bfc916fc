//! Models of the rules, checked over all orders of messages.

#![allow(clippy::unwrap_used)]

mod family;
mod redlock;
