//! Clients of other libraries on the same key: they exclude us, and we exclude them.
//!
//! The real redis-py and the real node-redlock, installed into the target directory by the first
//! run. What they lack (a queue, fencing tokens, several modes) they do not gain from us.

#![allow(clippy::unwrap_used)]

mod contention;
mod counter;
mod exclusion;
mod names;
mod packages;
mod peer;
mod testbed;
