//! One round: all clients work, a fault is injected and healed, and the clients finish.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencelock_conformance::history;
use fencelock_core::Liveness;
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::time::sleep;

use super::client_pool::{ClientPool, Death, Done};
use super::clock_steps;
use super::fault_schedule::RoundFaults;
use super::options::Options;
use crate::deployments::{Deployment, Fault};

/// How long the clients work before the fault.
const BEFORE: Duration = Duration::from_millis(500);

/// The record of a round, before it is checked.
pub(super) struct Played {
    pub(super) faults: RoundFaults,
    pub(super) histories: PathBuf,
    pub(super) deaths: Vec<Death>,
    /// When the fault was healed.
    pub(super) healed_at: u64,
    pub(super) done: Done,
    /// Whether another server became the master, asked for or not.
    pub(super) failed_over: bool,
    /// By when every lock must be granted again after that.
    pub(super) recovery: Duration,
}

pub(super) async fn play(
    deployment: &dyn Deployment,
    clients: &mut ClientPool,
    faults: RoundFaults,
    directory: &Path,
    options: &Options,
    liveness: Liveness,
) -> io::Result<Played> {
    let masters = deployment.masters().await?;
    clients.begin(directory);
    sleep(BEFORE).await;
    let during = options.faults_for;
    let to_servers = async {
        let Some(fault) = faults.to_servers else { return Ok(Duration::ZERO) };
        let inflicted = match fault {
            Fault::ServerClockStepped => {
                let mut random = StdRng::seed_from_u64(faults.seed);
                clock_steps::inflict(deployment.clocks(), during, &mut random).await
            }
            fault => deployment.inflict(fault, during).await.map(|()| Duration::ZERO),
        };
        inflicted.map_err(|error| io::Error::other(format!("{fault} could not be done: {error}")))
    };
    let to_clients = async {
        match faults.to_clients {
            Some(fault) => clients.inflict(fault, during, directory).await,
            None => Ok(Vec::new()),
        }
    };
    let (inflicted, deaths) = tokio::join!(to_servers, to_clients);
    let ahead = inflicted?;
    let (deaths, healed_at) = (deaths?, history::now());
    // A lease that a dead client got from a clock that was ahead ends so much later.
    let late = if liveness == Liveness::Lease { ahead } else { Duration::ZERO };
    let recovery = super::client_pool::recovery(options) + late;
    sleep(options.quiet_for).await;
    let done = clients.finish(recovery).await?;
    let failed_over = deployment.masters().await? != masters;
    let histories = directory.to_owned();
    Ok(Played { faults, histories, deaths, healed_at, done, failed_over, recovery })
}
