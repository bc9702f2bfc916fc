//! The public conformance suite on the Redis store: one server, Sentinel and a cluster, all real
//! and started here.

mod cluster;
mod keys;
mod sentinel;
mod single;

use std::sync::Arc;

use fencelock_conformance::Harness;

fn main() {
    let harnesses: [Arc<dyn Harness>; 3] = [
        Arc::new(single::SingleHarness),
        Arc::new(sentinel::SentinelHarness::default()),
        Arc::new(cluster::ClusterHarness::default()),
    ];
    fencelock_conformance::main_of(&harnesses);
}
