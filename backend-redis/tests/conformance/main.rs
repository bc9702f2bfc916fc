//! The public conformance suite on the Redis stores: one server, Sentinel, a cluster, and quorums
//! with none or some of their nodes dead, all real and started here.

mod deployments;
mod harness;
mod keys;

use std::sync::Arc;

use fencelock_conformance::{Backdoor, Harness};
use fencelock_testkit::servers::{TestCluster, TestSentinel};

use deployments::Nodes;
use harness::SharedHarness;

fn main() {
    let quorum = |name, nodes, dead| -> Arc<dyn Harness> {
        Arc::new(SharedHarness::new(name, &[], move || Nodes::start(nodes, dead)))
    };
    let forgets = [Backdoor::LoseData];
    let harnesses: [Arc<dyn Harness>; 7] = [
        Arc::new(SharedHarness::new("redis", &forgets, || Nodes::start(1, 0))),
        Arc::new(SharedHarness::new("sentinel", &[], TestSentinel::start)),
        Arc::new(SharedHarness::new("cluster", &[], TestCluster::start)),
        quorum("redlock3", 3, 0),
        quorum("redlock3-1dead", 3, 1),
        quorum("redlock5", 5, 0),
        quorum("redlock5-2dead", 5, 2),
    ];
    fencelock_conformance::main_of(&harnesses);
}
