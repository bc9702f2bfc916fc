//! What the ZooKeeper store does when servers, connections and sessions fail: each promise against
//! real servers that are cut off, frozen, killed and healed again.
//!
//! The conformance suite tests what every store must do; here are the faults that only ZooKeeper
//! has.

mod cancel;
mod connecting;
mod crowd;
mod ensemble;
mod many;
mod older;
mod queue;
mod quorum;
mod replies;
mod requests;
mod rights;
mod server;
mod session;
mod support;
mod tls;
