//! The client processes: started, sent to work, frozen, killed and replaced.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fencelock_conformance::history::{self, Event, What, Worker};
use fencelock_conformance::workload::{
    COUNTERS, ELECTION, Errors, NEVER_TWICE, ONCE, Shift, lock_name,
};
use fencelock_conformance::{Answer, Params, Peer, PeerError, ServerClock, Want};
use fencelock_core::Profile;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::clock_steps;
use super::options::Options;
use crate::deployments::{Deployment, Fault, Library};

/// How long a store that serves again may need until every lock can be acquired again, in addition
/// to the TTL of a dead holder: for reconnects, an election, a busy machine.
const RECOVERY: Duration = Duration::from_secs(10);

/// How far the clocks are ahead that processes label ticks by, in seconds: one after the other.
const TICKS_AHEAD: [i64; 3] = [-40, 0, 3 * 3_600];

/// The time within which everything must work again after a fault.
pub(super) fn recovery(options: &Options) -> Duration {
    options.workload.ttl + RECOVERY
}

/// Polls until nothing is left or the time is up, and returns what is left then.
pub(super) async fn gone(
    left: impl AsyncFn() -> io::Result<Vec<String>>,
    within: Duration,
) -> io::Result<Vec<String>> {
    let end = Instant::now() + within;
    loop {
        let left = left().await?;
        if left.is_empty() || Instant::now() > end {
            return Ok(left);
        }
        sleep(Duration::from_millis(50)).await;
    }
}

pub(super) struct ClientPool {
    url: String,
    params: Params,
    connect: fencelock_conformance::Connect,
    options: Options,
    uses_cells: bool,
    members: Vec<Member>,
    /// One for each of them, where the machine has a C compiler for the shim.
    clocks: Vec<ServerClock>,
    random: StdRng,
    register: std::path::PathBuf,
    /// Whether the store is in a database with registers.
    in_database: bool,
}

struct Member {
    peer: Arc<Peer>,
    /// How many processes this member has had before.
    life: u32,
    at_work: Option<JoinHandle<Result<Answer, PeerError>>>,
}

impl Drop for Member {
    fn drop(&mut self) {
        // A task that is still asking would keep the process, and that the store busy.
        let _ = self.peer.send_kill();
    }
}

/// A process that was killed: the beginning of its histories' file names, and a time before that.
#[derive(Clone, Debug)]
pub(super) struct Death {
    pub(super) who: String,
    pub(super) at: u64,
}

/// The result of a round's work.
#[derive(Debug, Default)]
pub(super) struct Done {
    pub(super) errors: Errors,
    /// Descriptions of what should not have happened.
    pub(super) wrong: Vec<String>,
    /// The last readings of the counters.
    pub(super) sums: Vec<Event>,
}

impl ClientPool {
    pub(super) async fn start(
        deployment: &dyn Deployment,
        library: Library,
        options: &Options,
        register: &Path,
        in_database: bool,
    ) -> io::Result<(ClientPool, Profile)> {
        let params = Params {
            ttl: options.workload.ttl,
            unreachable_after: Duration::from_secs(5),
            ..Params::under(&deployment.prefix())
        };
        let mut clients = ClientPool {
            url: deployment.url(),
            params,
            connect: library.connect,
            options: options.clone(),
            uses_cells: false,
            members: Vec::new(),
            clocks: Vec::new(),
            random: StdRng::seed_from_u64(options.seed ^ 1),
            register: register.to_owned(),
            in_database,
        };
        // Connect here first, so that a problem with the store is one clear error.
        let profile = clients.profile().await?;
        clients.uses_cells = options.workload.uses_cells() && profile.cells.is_some();
        let processes = if deployment.shares_between_processes() { options.processes } else { 1 };
        for index in 0..processes as usize {
            if ServerClock::is_possible() {
                clients.clocks.push(Peer::clock()?);
            }
            let peer = clients.spawn_client(index).await?;
            clients.members.push(Member { peer, life: 0, at_work: None });
        }
        Ok((clients, profile))
    }

    /// What the store promises.
    async fn profile(&self) -> io::Result<Profile> {
        let locks = (self.connect)(&self.params.on_url(&self.url)).await;
        let locks = locks.map_err(io::Error::other)?;
        let profile = locks.profile().clone();
        locks.close().await.map_err(io::Error::other)?;
        Ok(profile)
    }

    /// A process that is connected. While the store is broken, it tries again.
    async fn spawn_client(&self, index: usize) -> io::Result<Arc<Peer>> {
        let (url, params) = (&self.url, &self.params);
        let end = Instant::now() + self.options.faults_for + recovery(&self.options);
        loop {
            let started = match self.clocks.get(index) {
                Some(clock) => {
                    Peer::start_as(Command::new(clock.program()), "torture", url, params).await
                }
                None => Peer::start("torture", url, params).await,
            };
            match started {
                Ok(peer) => return Ok(Arc::new(peer)),
                Err(error) if Instant::now() > end => return Err(io::Error::other(error)),
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        }
    }

    pub(super) fn begin(&mut self, directory: &Path) {
        for index in 0..self.members.len() {
            self.send_to_work(index, directory);
        }
    }

    fn send_to_work(&mut self, index: usize, directory: &Path) {
        let member = &mut self.members[index];
        let shift = Shift {
            workload: self.options.workload.clone(),
            seed: self.random.random(),
            ticks_ahead: TICKS_AHEAD[index % TICKS_AHEAD.len()],
            register: self.register.clone(),
            database: self.in_database.then(|| self.url.clone()),
            history: directory.join(format!("{index}.{}", member.life)),
        };
        let peer = member.peer.clone();
        member.at_work = Some(tokio::spawn(async move { peer.ask(Want::Torture(shift)).await }));
    }

    /// Injects `fault` into the processes for the duration `during`. Returns the killed ones.
    pub(super) async fn inflict(
        &mut self,
        fault: Fault,
        during: Duration,
        directory: &Path,
    ) -> io::Result<Vec<Death>> {
        let mut deaths = Vec::new();
        if fault == Fault::ClientClockStepped {
            // How far they were ahead does not matter: no lease goes by a client's clock.
            clock_steps::inflict(&self.clocks, during, &mut self.random).await?;
            return Ok(deaths);
        }
        let end = Instant::now() + during;
        let mut longer = false;
        while Instant::now() < end {
            longer = !longer;
            let index = self.random.random_range(0..self.members.len());
            match fault {
                Fault::ClientsKilled => deaths.push(self.kill(index, directory).await?),
                _ => self.freeze(index, longer).await?,
            }
            sleep(Duration::from_millis(self.random.random_range(50..500))).await;
        }
        Ok(deaths)
    }

    /// For longer than a TTL, and for shorter, by turns.
    async fn freeze(&mut self, index: usize, longer: bool) -> io::Result<()> {
        let share = if longer { 15 } else { 3 };
        let peer = self.members[index].peer.clone();
        peer.freeze().await.map_err(io::Error::other)?;
        sleep(self.options.workload.ttl * share / 10).await;
        peer.thaw().map_err(io::Error::other)
    }

    async fn kill(&mut self, index: usize, directory: &Path) -> io::Result<Death> {
        let member = &mut self.members[index];
        let death = Death { who: format!("{index}.{}-", member.life), at: history::now() };
        member.peer.send_kill().map_err(io::Error::other)?;
        if let Some(at_work) = member.at_work.take() {
            // Its answer is that the process is gone.
            let _ = at_work.await;
        }
        let peer = self.spawn_client(index).await?;
        let member = &mut self.members[index];
        (member.peer, member.life) = (peer, member.life + 1);
        self.send_to_work(index, directory);
        Ok(death)
    }

    /// Lets all clients finish, within `bound`, and checks that the locks are free then.
    pub(super) async fn finish(&mut self, bound: Duration) -> io::Result<Done> {
        let mut done = Done::default();
        for member in &self.members {
            member.peer.ask(Want::Calm).await.map_err(io::Error::other)?;
        }
        let end = Instant::now() + bound;
        for (index, member) in self.members.iter_mut().enumerate() {
            let Some(mut at_work) = member.at_work.take() else { continue };
            match timeout(end.saturating_duration_since(Instant::now()), &mut at_work).await {
                Ok(Ok(Ok(Answer::Errors(errors)))) => add(&mut done.errors, errors),
                Ok(Ok(Ok(other))) => done.wrong.push(format!("process {index}: {other:?}")),
                Ok(Ok(Err(error))) => done.wrong.push(format!("process {index}: {error}")),
                Ok(Err(error)) => done.wrong.push(format!("process {index}: {error}")),
                Err(_) => {
                    done.wrong.push(format!("process {index} was not done within {bound:?}"));
                }
            }
        }
        if self.uses_cells {
            self.settle_sums(&mut done).await;
        }
        done.wrong.extend(self.not_free(bound).await?);
        Ok(done)
    }

    /// Reads the counters in a way that ends what requests may still be on their way.
    async fn settle_sums(&self, done: &mut Done) {
        let Some(first) = self.members.first() else { return };
        let mut history = Worker::new();
        for counter in COUNTERS {
            let claim = history.begin(counter, What::AddInvoked { n: 0 });
            match first.peer.ask(Want::Sum { counter: counter.to_owned() }).await {
                Ok(Answer::Sum(sum)) => history.record(&claim, What::Added { sum }),
                Ok(other) => done.wrong.push(format!("{counter}: {other:?}")),
                Err(error) => done.wrong.push(format!("{counter}: {error}")),
            }
        }
        done.sums = history.into_events();
    }

    /// The locks that are used.
    fn lock_names(&self) -> Vec<String> {
        let workload = &self.options.workload;
        let locks = if workload.uses_locks() { workload.locks } else { 0 };
        let of_cells = if self.uses_cells { &[ONCE, NEVER_TWICE, ELECTION][..] } else { &[] };
        (0..locks).map(lock_name).chain(of_cells.iter().map(|it| (*it).to_owned())).collect()
    }

    /// Locks that still have holders or waiters although all clients have finished.
    async fn not_free(&self, within: Duration) -> io::Result<Vec<String>> {
        let Some(first) = self.members.first() else { return Ok(Vec::new()) };
        let occupied = async || {
            let mut occupied = Vec::new();
            for name in self.lock_names() {
                match first.peer.ask(Want::Participants { name: name.clone() }).await {
                    Ok(Answer::Count(0)) => {}
                    Ok(Answer::Count(n)) => {
                        occupied.push(format!("{name}: {n} holders or waiters"));
                    }
                    Ok(other) => occupied.push(format!("{name}: {other:?}")),
                    Err(error) => occupied.push(format!("{name}: {error}")),
                }
            }
            Ok(occupied)
        };
        gone(occupied, within).await
    }

    /// Closes all clients.
    pub(super) async fn leave(self) {
        for member in &self.members {
            let left = member.peer.ask(Want::Leave);
            // A client that does not end is killed by the drop.
            let _ = timeout(recovery(&self.options), left).await;
        }
    }
}

fn add(sum: &mut Errors, more: BTreeMap<String, u64>) {
    for (kind, count) in more {
        *sum.entry(kind).or_default() += count;
    }
}
