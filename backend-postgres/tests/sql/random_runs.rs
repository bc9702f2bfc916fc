//! Random claims of a few processes on a few locks: the rules of `rules.rs` must hold at every
//! call, and those who believe that they hold must never be too many.
//!
//! Processes behave correctly, but their calls are repeated, late, or lost in either direction,
//! they freeze and die, and their users' transactions outlast their leases. Time passes in jumps
//! only, and sometimes the server's clock is set, forward or back: then two may believe that they hold, and
//! every other rule stays.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::Verdict;
use super::bench::{Bench, CLIENTS, Call, Reply, ensure};
use super::claim::{Claim, LONG, SECOND};
use super::rules::{Effects, Guarded};
use super::session::Note;
use super::state::State;

mod steps;

const ACTORS: usize = 18;
const CALLS: usize = 220;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Belief {
    Idle,
    Waits,
    /// With a token, until a time.
    Holds(i64, i64),
}

struct Actor {
    claim: Claim,
    belief: Belief,
    /// Whether its attempts queue.
    queues: bool,
}

impl Actor {
    /// A call whose reply is lost may have made the lease shorter.
    fn may_end(&mut self, end: i64) {
        if let Belief::Holds(_, until) = &mut self.belief {
            *until = end.min(*until);
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Runs,
    Frozen,
    Dead,
}

struct RandomRun<'a> {
    bench: &'a mut Bench,
    rng: StdRng,
    keys: Vec<Vec<u8>>,
    actors: Vec<Actor>,
    lives: Vec<(String, Life)>,
    state: State,
    highest: BTreeMap<Vec<u8>, i64>,
    guarded: Option<Guarded>,
    /// The largest token of each lock that a transaction has checked, of those that reserve several.
    turns: BTreeMap<Vec<u8>, i64>,
    undelivered: Vec<Note>,
    owners: u128,
    loses_calls: bool,
    /// Whether the server's clock was set.
    is_clock_set: bool,
    /// The last calls, to be shown after a failure.
    trace: Vec<String>,
}

/// Runs one seed; an error describes the failure, and the calls before it.
pub(crate) fn run(bench: &mut Bench, seed: u64) -> Verdict {
    bench.reset();
    let mut rng = StdRng::seed_from_u64(seed);
    let keys = (0..rng.random_range(1..=3u8)).map(|n| vec![0, n, 255]).collect();
    let state = bench.state()?;
    let mut run = RandomRun {
        bench,
        rng,
        keys,
        actors: Vec::new(),
        lives: (0..CLIENTS).map(|n| (format!("fl_{n:016x}"), Life::Runs)).collect(),
        state,
        highest: BTreeMap::new(),
        guarded: None,
        turns: BTreeMap::new(),
        undelivered: Vec::new(),
        owners: 0,
        loses_calls: true,
        is_clock_set: false,
        trace: Vec::new(),
    };
    run.all().map_err(|why| {
        let from = run.trace.len().saturating_sub(25);
        format!("seed {seed}: {why}; the last calls:\n  {}", run.trace[from..].join("\n  "))
    })
}

impl RandomRun<'_> {
    fn all(&mut self) -> Verdict {
        for _ in 0..ACTORS {
            let claim = self.new_claim(None);
            let queues = self.below(5) > 0;
            self.actors.push(Actor { claim, belief: Belief::Idle, queues });
        }
        for _ in 0..CALLS {
            self.any_step()?;
        }
        self.drain()
    }

    fn below(&mut self, end: usize) -> usize {
        self.rng.random_range(0..end)
    }

    fn new_claim(&mut self, process: Option<&str>) -> Claim {
        self.owners += 1;
        let number = self.owners;
        let claim = match self.below(5) {
            0..2 => Claim::exclusive(number),
            2 => Claim::shared(number),
            _ => {
                let limit = *[3, 3, 5].choose(&mut self.rng).unwrap();
                Claim::permits(number, self.rng.random_range(1..=limit), limit)
            }
        };
        let ttl = *[LONG, LONG, LONG, 3 * SECOND / 2, SECOND / 25].choose(&mut self.rng).unwrap();
        let tokens = *[1, 1, 64].choose(&mut self.rng).unwrap();
        let key = self.keys.choose(&mut self.rng).unwrap().clone();
        let any = self.lives.choose(&mut self.rng).unwrap().0.clone();
        Claim {
            process: process.map_or(any, Into::into),
            ..claim.ttl(ttl).tokens(tokens).key(&key)
        }
    }

    fn any_step(&mut self) -> Verdict {
        match self.below(100) {
            0..36 => self.any_attempt(),
            36..52 => self.any_release(),
            52..58 => self.any_renewal(),
            58..62 => self.any_downgrade(),
            62..65 => self.any_eviction(),
            65..72 => self.any_batch(),
            72..80 => self.any_look(),
            80..87 => self.deliver(),
            87..92 => self.any_transaction(),
            _ => self.any_trouble(),
        }
    }

    fn runs(&self, process: &str) -> bool {
        self.lives.iter().any(|(name, life)| name == process && *life == Life::Runs)
    }

    /// A claim whose process runs.
    fn any_actor(&mut self, fits: impl Fn(Belief) -> bool) -> Option<usize> {
        let fit =
            |n: &usize| self.runs(&self.actors[*n].claim.process) && fits(self.actors[*n].belief);
        let fit: Vec<_> = (0..self.actors.len()).filter(fit).collect();
        fit.choose(&mut self.rng).copied()
    }

    /// A call, which may be lost, or its reply, or be repeated. None without a reply.
    fn call(&mut self, call: &Call) -> Result<Option<Reply>, String> {
        match self.below(16) {
            0 if self.loses_calls => Ok(None),
            1 if self.loses_calls => self.judged(call).map(|_| None),
            2..5 => {
                let first = self.judged(call)?;
                let again = self.judged(call)?;
                // A release finds it once.
                if let Call::Attempt { .. } = call {
                    let same = first.number == again.number;
                    ensure(same, || format!("{first:?}, and {again:?} when repeated"))?;
                }
                Ok(Some(again))
            }
            _ => self.judged(call).map(Some),
        }
    }

    fn judged(&mut self, call: &Call) -> Result<Reply, String> {
        self.trace.push(format!("{call:?}"));
        let (reply, notes, after) = self.bench.call(call)?;
        self.trace.push(format!("  {reply:?}, {} notified", notes.len()));
        let effects = Effects {
            call,
            reply: &reply,
            notes: &notes,
            before: &self.state,
            after: &after,
            guarded: self.guarded.as_ref(),
            highest: &self.highest,
        };
        effects.judge()?;
        for (key, lock) in &after.locks {
            self.highest.insert(key.clone(), lock.token);
        }
        self.undelivered.extend(notes);
        self.state = after;
        Ok(reply)
    }

    /// Every claim gets the lock in the end, and nothing stays.
    fn drain(&mut self) -> Verdict {
        const ROUNDS: usize = 120;
        if self.guarded.take().is_some() {
            self.bench.other.run("COMMIT")?;
        }
        for (_, life) in &mut self.lives {
            if *life == Life::Frozen {
                *life = Life::Runs;
            }
        }
        self.trace.push("drains".into());
        self.loses_calls = false;
        for _ in 0..ROUNDS {
            for (process, life) in self.lives.clone() {
                if life == Life::Runs {
                    self.look(&process)?;
                }
            }
            for n in 0..self.actors.len() {
                let actor = &self.actors[n];
                // One that is idle may hold without knowing it: its last reply was lost.
                if actor.belief != Belief::Waits && self.runs(&actor.claim.process) {
                    self.release(n)?;
                }
            }
            self.pass(5 * SECOND / 2)?;
            if self.any_actor(|belief| belief == Belief::Waits).is_none() {
                return self.nothing_stays();
            }
        }
        Err("a waiter is never granted the lock".into())
    }

    fn nothing_stays(&mut self) -> Verdict {
        // The dead, which hold and wait.
        for us in [LONG, LONG, 4 * SECOND, 4 * SECOND] {
            self.pass(us)?;
            let (process, _) = self.lives[0].clone();
            self.judged(&Call::Look { process, keys: self.keys.clone(), sample: Vec::new() })?;
        }
        let now = self.bench.now();
        let left = self.state.locks.iter().find(|(_, lock)| !lock.is_idle(now));
        ensure(left.is_none(), || format!("left: {left:?}"))?;
        self.pass(2 * 86_400 * SECOND)?;
        self.bench.main.query("SELECT tidy_1('', '')", &[])?;
        let left = self.bench.state()?;
        ensure(left.locks.is_empty() && left.deadlines.is_empty(), || format!("left: {left:?}"))
    }
}
