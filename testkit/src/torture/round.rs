//! One round: everybody at work, a fault that comes and goes, and the end of work.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::sleep;

use super::Options;
use super::client_pool::{ClientPool, Death, Done};
use super::fault_schedule::RoundFaults;
use crate::deployments::Deployment;
use fencelock_conformance::history;

/// How long everybody works before the fault.
const BEFORE: Duration = Duration::from_millis(500);

/// What was done and seen, not yet judged.
pub(super) struct Played {
    pub(super) faults: RoundFaults,
    pub(super) histories: PathBuf,
    pub(super) deaths: Vec<Death>,
    /// When the fault had gone.
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
) -> io::Result<Played> {
    let masters = deployment.masters().await?;
    clients.begin(directory);
    sleep(BEFORE).await;
    let during = options.faults_for;
    let to_servers = async {
        match faults.to_servers {
            Some(fault) => deployment
                .inflict(fault, during)
                .await
                .map_err(|error| io::Error::other(format!("{fault} could not be done: {error}"))),
            None => Ok(()),
        }
    };
    let to_clients = async {
        match faults.to_clients {
            Some(fault) => clients.inflict(fault, during, directory).await,
            None => Ok(Vec::new()),
        }
    };
    let (inflicted, deaths) = tokio::join!(to_servers, to_clients);
    inflicted?;
    let (deaths, healed_at) = (deaths?, history::now());
    sleep(options.quiet_for).await;
    let done = clients.finish().await?;
    let failed_over = deployment.masters().await? != masters;
    let histories = directory.to_owned();
    let recovery = super::client_pool::recovery(options);
    Ok(Played { faults, histories, deaths, healed_at, done, failed_over, recovery })
}
