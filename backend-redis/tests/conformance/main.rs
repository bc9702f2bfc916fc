//! The public conformance suite on the Redis stores: one server, Sentinel, a cluster, and quorums
//! with none or some of their nodes dead, all real and started here.

mod alone;
mod cluster;
mod followed;
mod keys;
mod sentinel;

use std::sync::Arc;

use fencelock_conformance::Harness;
use fencelock_testkit::servers::{TestCluster, TestSentinel};

use alone::AloneHarness;
use followed::FollowedHarness;

fn main() {
    let alone = |name, nodes, dead| Arc::new(AloneHarness::new(name, nodes, dead));
    let harnesses: [Arc<dyn Harness>; 7] = [
        alone("redis", 1, 0),
        Arc::new(FollowedHarness::<TestSentinel>::default()),
        Arc::new(FollowedHarness::<TestCluster>::default()),
        alone("redlock3", 3, 0),
        alone("redlock3-1dead", 3, 1),
        alone("redlock5", 5, 0),
        alone("redlock5-2dead", 5, 2),
    ];
    fencelock_conformance::main_of(&harnesses);
}
