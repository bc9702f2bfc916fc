//! One run: a seed becomes processes, clients and faults; then the faults end, every task must
//! end, and nothing may be left.

use std::cell::Cell;
use std::sync::{Arc, Once};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep, timeout};

use crate::mutant::Mutant;
use crate::scene::{Kind, Process, Scene};
use crate::world::clients::{Client, Habits};
use crate::world::conditions::Conditions;
use crate::world::dice::Dice;
use crate::world::faulty::Faults;
use crate::world::gate::Gate;
use crate::world::history::{History, Tally};
use crate::world::link::Link;

/// What a run showed when nothing was wrong.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) fingerprint: u64,
    pub(crate) tally: Tally,
}

/// What was wrong, and the events before it.
#[derive(Debug)]
pub(crate) struct Wrong {
    pub(crate) what: String,
    pub(crate) events: String,
}

/// Runs `seed` on a runtime of its own, whose time nothing but the run moves.
pub(crate) fn run(kind: Kind, seed: u64, mutant: Option<Mutant>) -> Result<Shown, Wrong> {
    notice_panics();
    let panics_before = PANICS.get();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime needs no resources");
    let history = runtime.block_on(play(kind, seed, mutant));
    drop(runtime);
    if PANICS.get() != panics_before {
        history.fail("something panicked".to_owned());
    }
    match history.failure() {
        None => Ok(Shown { fingerprint: history.fingerprint(), tally: history.tally() }),
        Some(what) => {
            let events = history.tail(if verbose() { usize::MAX } else { 40 });
            Err(Wrong { what, events })
        }
    }
}

fn verbose() -> bool {
    std::env::var_os("SIM_SEED").is_some()
}

thread_local! {
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

/// A panic in a background task is otherwise swallowed by its join handle, which is dropped.
fn notice_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            usual(info);
        }));
    });
}

/// What the seed decided.
struct Plan {
    conditions: Conditions,
    habits: Habits,
    processes: u32,
    tasks: u64,
}

impl Plan {
    fn draw(kind: Kind, seed: u64, dice: &mut Dice) -> Plan {
        let calm = dice.percent(if kind == Kind::Memory { 70 } else { 30 });
        let conditions = if calm { Conditions::calm(dice) } else { Conditions::faulty(dice) };
        let ttl = match (calm, kind) {
            (true, Kind::Memory) => dice.pick(&[300, 1_000, 10_000]),
            // Long, so that only the clean-up can have freed what is free at the end.
            (true, _) => 30_000,
            (false, _) => dice.pick(&[300, 1_000, 3_000]),
        };
        let habits = Habits {
            locks: usize::try_from(dice.pick(&[1, 1, 2, 3])).unwrap_or(1),
            limit: dice.pick(&[2, 3, 5]),
            rounds: dice.between(1..=5),
            ttl: Duration::from_millis(ttl),
            impatience: dice.pick(&[0, 20, 60]),
            endurance: if calm && kind != Kind::Memory { 0 } else { dice.pick(&[0, 10, 30]) },
            stamina_ms: dice.pick(&[60, 60, 3_000]),
            exclusive: dice.pick(&[100, 60, 20]),
            // By dice of their own: the older seeds find what they have found.
            handoffs: Dice::of(&[seed, kind as u64, 3]).pick(&[1, 1, 2, 16]),
            at_once: kind == Kind::Memory,
        };
        let processes = u32::try_from(dice.between(1..=3)).unwrap_or(1);
        Plan { conditions, habits, processes, tasks: dice.between(1..=3) }
    }
}

struct Running {
    number: u32,
    process: Process,
    tasks: Vec<JoinHandle<()>>,
}

async fn play(kind: Kind, seed: u64, mutant: Option<Mutant>) -> Arc<History> {
    let mut dice = Dice::of(&[seed, kind as u64]);
    let plan = Plan::draw(kind, seed, &mut dice);
    let scene = Arc::new(Scene::new(kind, seed, &plan.conditions, plan.habits.ttl, mutant));
    let history = scene.history.clone();
    let mut running = Vec::new();
    for number in 1..=plan.processes {
        let process = scene.connect(number);
        let tasks = (0..plan.tasks).map(|task| {
            let client = Client {
                process: number,
                locks: process.locks.clone(),
                history: history.clone(),
                gate: process.gate.clone(),
                dice: Dice::of(&[seed, kind as u64, u64::from(number), task]),
                habits: plan.habits.clone(),
            };
            tokio::spawn(process.gate.run(client.run()))
        });
        let tasks = tasks.collect();
        running.push(Running { number, process, tasks });
    }
    let faults_end = Instant::now() + dice.millis(500..=8_000);
    let mut tasks_of_faults: Vec<JoinHandle<()>> = Vec::new();
    for running in &running {
        let dice = Dice::of(&[seed, 7, u64::from(running.number)]);
        let faults = ProcessFaults {
            number: running.number,
            gate: running.process.gate.clone(),
            link: running.process.link.clone(),
            faults: running.process.faults.clone(),
            scene: scene.clone(),
            conditions: plan.conditions.clone(),
            dice,
            faults_end,
            locks: plan.habits.locks,
        };
        tasks_of_faults.push(tokio::spawn(faults.run()));
    }
    let closed = close_some(&mut dice, &plan, &running).await;
    for faults in tasks_of_faults {
        let _ = faults.await;
    }
    finish(&plan, &scene, running, closed).await;
    history
}

/// Sometimes a process closes its store in the midst of everything.
async fn close_some(dice: &mut Dice, plan: &Plan, running: &[Running]) -> bool {
    if !dice.percent(15) || plan.conditions.crashes > 0 || plan.conditions.pauses > 0 {
        return false;
    }
    sleep(dice.millis(0..=500)).await;
    // Under faults its releases may not be confirmed; it ends all the same.
    let _ = running[0].process.locks.close().await;
    true
}

async fn finish(plan: &Plan, scene: &Scene, running: Vec<Running>, closed: bool) {
    let history = &scene.history;
    let mut handles = Vec::new();
    for Running { number, process, tasks } in running {
        let crashed = process.link.as_ref().is_some_and(|link| link.has_crashed());
        for task in tasks {
            if crashed {
                continue;
            }
            // A claim that waits without a limit waits for others, which hold for a
            // while, or for the leases of the crashed: in all sometimes for longer than a minute.
            if timeout(Duration::from_secs(600), task).await.is_err() {
                history.fail(format!("a client of process {number} never ends"));
            }
        }
        if number == 1 && closed {
            continue;
        }
        handles.push(process);
    }
    settle(plan, scene).await;
    drop(handles);
}

/// Waits for what may take time, and checks that nothing is left.
async fn settle(plan: &Plan, scene: &Scene) {
    let history = &scene.history;
    let wait = match plan.conditions.calm {
        // The longest forgotten hold; the TTL itself is much longer.
        true => Duration::from_secs(2),
        false => plan.habits.ttl * 3 + Duration::from_secs(15),
    };
    sleep(wait).await;
    history.note(0, "settled", 0, 0);
    let left = scene.leftovers();
    if !left.is_empty() {
        history.fail(format!("left in the store: {left:#?}"));
    }
    for (lock, token) in history.believed() {
        history.fail(format!("{token} of lock {lock} is still believed in"));
    }
}

/// What happens to one process until the faults end.
struct ProcessFaults {
    number: u32,
    gate: Arc<Gate>,
    link: Option<Arc<Link>>,
    faults: Option<Arc<Faults>>,
    scene: Arc<Scene>,
    conditions: Conditions,
    dice: Dice,
    faults_end: Instant,
    locks: usize,
}

impl ProcessFaults {
    async fn run(mut self) {
        let crash = (self.number == 1 && self.dice.percent(self.conditions.crashes))
            .then(|| Instant::now() + self.dice.millis(0..=3_000));
        while Instant::now() < self.faults_end && !self.conditions.is_uneventful() {
            sleep(self.dice.millis(10..=1_200)).await;
            if let Some(link) = &self.link
                && crash.is_some_and(|at| at <= Instant::now())
            {
                self.scene.goes_silent(self.number, &mut self.dice);
                self.scene.history.note(self.number, "crashes", 0, 0);
                return link.crash();
            }
            self.one().await;
        }
        if let Some(link) = &self.link {
            link.heal();
        }
        if let Some(faults) = &self.faults {
            faults.works();
        }
        self.scene.history.note(self.number, "healed", 0, 0);
    }

    async fn one(&mut self) {
        let (history, number) = (self.scene.history.clone(), self.number);
        let long = self.dice.pick(&[100, 1_000, 4_000]);
        let length = self.dice.millis(1..=long);
        let fault = self.dice.below(5);
        if fault == 0 && self.dice.percent(self.conditions.pauses) {
            self.scene.goes_silent(number, &mut self.dice);
            history.note(number, "stopped", 0, 0);
            self.gate.shut();
            match self.link.is_none() && self.dice.percent(70) {
                // The store stands still with its process: no timer fires until it continues.
                true => advance(length).await,
                false => sleep(length).await,
            }
            history.note(number, "continued", 0, 0);
            self.gate.open(&history, number, &mut self.dice);
        }
        let Some(link) = &self.link else { return };
        if fault == 1 && self.dice.percent(self.conditions.cuts) {
            self.scene.goes_silent(number, &mut self.dice);
            history.note(number, "cut", 0, 0);
            link.cut(true);
            sleep(length).await;
            link.cut(false);
            history.note(number, "uncut", 0, 0);
        } else if fault == 2 && self.dice.percent(self.conditions.stale) {
            self.scene.goes_silent(number, &mut self.dice);
            history.note(number, "cut off", 0, 0);
            self.scene.cut_off(number, true);
            sleep(length).await;
            self.scene.cut_off(number, false);
            history.note(number, "back", 0, 0);
        } else if fault == 3 && self.dice.percent(self.conditions.evictions) {
            self.scene.evict(&mut self.dice, self.locks);
        } else if fault == 4 && self.dice.percent(self.conditions.wipes) {
            self.scene.wipe();
        }
    }
}
