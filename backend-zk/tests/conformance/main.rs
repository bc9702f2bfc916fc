//! The public conformance suite on the ZooKeeper store: a server alone and an ensemble of three,
//! both real and started here.

mod look;
mod servers;

use std::sync::Arc;

use fencelock_conformance::Harness;

fn main() {
    let harnesses: [Arc<dyn Harness>; 2] = [
        Arc::new(servers::Servers::new("zookeeper", 1)),
        Arc::new(servers::Servers::new("ensemble", 3)),
    ];
    fencelock_conformance::main_of(&harnesses);
}
