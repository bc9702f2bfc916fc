//! The public conformance suite on the Redis stores: one server, Sentinel, a cluster, and quorums
//! with none and some of their nodes dead, all real and started here.

mod cluster;
mod followed;
mod keys;
mod redlock;
mod sentinel;
mod single;

use std::sync::Arc;

use fencelock_conformance::Harness;
use fencelock_testkit::servers::{TestCluster, TestSentinel};

use followed::FollowedHarness;

fn main() {
    let quorum = |name, nodes, dead| Arc::new(redlock::RedlockHarness { name, nodes, dead });
    let harnesses: [Arc<dyn Harness>; 8] = [
        Arc::new(single::SingleHarness),
        Arc::new(FollowedHarness::<TestSentinel>::default()),
        Arc::new(FollowedHarness::<TestCluster>::default()),
        quorum("redlock3", 3, 0),
        quorum("redlock3-1dead", 3, 1),
        quorum("redlock5", 5, 0),
        quorum("redlock5-1dead", 5, 1),
        quorum("redlock5-2dead", 5, 2),
    ];
    fencelock_conformance::main_of(&harnesses);
}
