//! A model of the rules of Redlock, checked over all orders of messages. What the simulation and the tests of
//! the core run on the real code has no model here.

#![allow(clippy::unwrap_used)]

mod redlock;
