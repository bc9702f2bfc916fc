//! Random claims of a few clients on a few locks: the rules of `rules.rs` must hold at every step.
//!
//! Clients behave correctly, but their messages are repeated, late or lost, they freeze and die, and
//! other programs write to the keys arbitrarily. Time passes as usual, and in jumps.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::Verdict;
use super::bench::{Bench, Keys, Op};
use super::claim::{Claim, Mode};
use super::client::{Push, Value};
use super::rules::{SILENCE, Step};
use super::state::{SLACK, State};

pub(super) const CLAIMS: usize = 20;
pub(super) const PROCESSES: [&str; 5] = ["c0", "c1", "c2", "c3", "c4"];
const STEPS: usize = 250;
/// Far longer than a run.
const LONG: i64 = 30_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Belief {
    Idle,
    Waits,
    Holds,
}

#[derive(Debug)]
pub(super) struct Actor {
    pub(super) claim: Claim,
    pub(super) lock: usize,
    pub(super) process: usize,
    pub(super) belief: Belief,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Runs,
    Frozen,
    Dead,
}

/// One run.
pub(super) struct RandomRun<'a> {
    pub(super) bench: &'a mut Bench,
    pub(super) rng: StdRng,
    pub(super) locks: Vec<Keys>,
    /// The largest token so far of each lock.
    highest: Vec<i64>,
    pub(super) actors: Vec<Actor>,
    pub(super) lives: [Life; PROCESSES.len()],
    undelivered: Vec<Push>,
    owners: u64,
    /// The last steps, to be shown after a failure.
    pub(super) trace: Vec<String>,
}

/// Runs one seed; an error describes the failure, and the steps before it.
///
/// Times are compared within [`SLACK`]. A failure in a run in which the server was unresponsive for
/// longer proves nothing, and the run is repeated.
pub(crate) fn run(bench: &mut Bench, seed: u64) -> Verdict {
    const AGAIN: usize = 5;
    let slack = Duration::from_millis(SLACK.unsigned_abs()) / 2;
    let mut verdict = Ok(());
    for _ in 0..AGAIN {
        bench.client.slowest = Duration::ZERO;
        verdict = run_once(bench, seed);
        if verdict.is_ok() || bench.client.slowest < slack {
            break;
        }
    }
    verdict
}

fn run_once(bench: &mut Bench, seed: u64) -> Verdict {
    let mut rng = StdRng::seed_from_u64(seed);
    let locks = (0..rng.random_range(1..=3)).map(|n| Keys::of(&format!("lock {n}"))).collect();
    let mut run = RandomRun {
        bench,
        rng,
        highest: Vec::new(),
        locks,
        actors: Vec::new(),
        lives: [Life::Runs; PROCESSES.len()],
        undelivered: Vec::new(),
        owners: 0,
        trace: Vec::new(),
    };
    run.highest.resize(run.locks.len(), 0);
    run.all().map_err(|why| {
        let from = run.trace.len().saturating_sub(25);
        format!("seed {seed}: {why}; the last steps:\n  {}", run.trace[from..].join("\n  "))
    })
}

impl RandomRun<'_> {
    fn all(&mut self) -> Verdict {
        self.bench.call(&["FLUSHALL"]);
        self.bench.client.take_pushes();
        for _ in 0..CLAIMS {
            let (lock, process) = (self.below(self.locks.len()), self.below(PROCESSES.len()));
            let claim = self.new_claim(process);
            self.actors.push(Actor { claim, lock, process, belief: Belief::Idle });
        }
        for _ in 0..STEPS {
            self.any_step()?;
        }
        self.drain()
    }

    pub(super) fn below(&mut self, end: usize) -> usize {
        self.rng.random_range(0..end)
    }

    fn new_claim(&mut self, process: usize) -> Claim {
        let mode = match self.below(5) {
            0..2 => Mode::Exclusive,
            2 => Mode::Shared,
            _ => {
                let limit = *[3, 3, 5].choose(&mut self.rng).unwrap();
                Mode::Permits { n: self.rng.random_range(1..=limit), limit }
            }
        };
        let ttl = *[LONG, LONG, LONG, 1500, 40].choose(&mut self.rng).unwrap();
        self.owners += 1;
        Claim::new(mode, ttl, PROCESSES[process], self.owners)
    }

    fn any_step(&mut self) -> Verdict {
        match self.below(100) {
            0..28 => self.any_of(Op::Queue, |_| true),
            28..36 => self.any_of(Op::Try, |belief| belief == Belief::Idle),
            36..54 => self.mostly_of(Op::Release, |belief| belief != Belief::Idle),
            54..57 => self.any_eviction(),
            57..63 => self.mostly_of(Op::Renew, |belief| belief == Belief::Holds),
            63..77 => self.any_check(),
            77..87 => self.deliver(),
            87..99 => self.any_trouble(),
            _ => self.locks_of_lists(),
        }
    }

    pub(super) fn runs(&self, process: usize) -> bool {
        self.lives[process] == Life::Runs
    }

    /// A claim whose client runs.
    pub(super) fn any_actor(&mut self, belief: impl Fn(Belief) -> bool) -> Option<usize> {
        let fit = |n: &usize| {
            let actor = &self.actors[*n];
            self.lives[actor.process] == Life::Runs && belief(actor.belief)
        };
        let fit: Vec<_> = (0..self.actors.len()).filter(fit).collect();
        fit.choose(&mut self.rng).copied()
    }

    fn any_of(&mut self, op: Op, belief: impl Fn(Belief) -> bool) -> Verdict {
        match self.any_actor(belief) {
            Some(actor) => self.act(actor, op),
            None => Ok(()),
        }
    }

    /// At times also of a claim that no client would do this with.
    fn mostly_of(&mut self, op: Op, belief: impl Fn(Belief) -> bool) -> Verdict {
        let often = self.below(10) > 0;
        self.any_of(op, |it| !often || belief(it))
    }

    /// Evicts a holder, or deletes the key of another program.
    fn any_eviction(&mut self) -> Verdict {
        let lock = self.below(self.locks.len());
        let state = self.bench.state(&self.locks[lock])?;
        let holders = state.holders.values().map(|holder| holder.claim.clone());
        let foreign = state.foreign.map(|text| Claim { text, ..self.actors[0].claim.clone() });
        let all: Vec<_> = holders.chain(foreign).collect();
        match all.choose(&mut self.rng).cloned() {
            Some(claim) => self.step(lock, Op::Evict, &claim, &[]).map(drop),
            None => Ok(()),
        }
    }

    fn any_check(&mut self) -> Verdict {
        let (lock, process) = (self.below(self.locks.len()), self.below(PROCESSES.len()));
        if self.runs(process) { self.check(lock, process) } else { Ok(()) }
    }

    /// A client's check of each second, and what it does with the reply.
    pub(super) fn check(&mut self, lock: usize, process: usize) -> Verdict {
        let own: Vec<usize> = (0..self.actors.len())
            .filter(|n| {
                let actor = &self.actors[*n];
                (actor.lock, actor.process, actor.belief) == (lock, process, Belief::Waits)
            })
            .collect();
        let samples: Vec<String> =
            own.iter().take(2).map(|n| self.actors[*n].claim.text.clone()).collect();
        let anyone = Claim::new(Mode::Exclusive, LONG, PROCESSES[process], 0);
        let answer = self.step(lock, Op::Check, &anyone, &samples)?;
        let found = answer.texts();
        let all = answer.list().get(1).and_then(Value::int) == Some(1);
        for n in own {
            if all || found.contains(&self.actors[n].claim.text.as_str()) {
                self.act(n, Op::Queue)?;
            }
        }
        Ok(())
    }

    fn deliver(&mut self) -> Verdict {
        if self.undelivered.is_empty() {
            return self.any_check();
        }
        let n = self.below(self.undelivered.len());
        let push = self.undelivered.swap_remove(n);
        let is_notified = |actor: &Actor| {
            self.lives[actor.process] == Life::Runs
                && actor.belief == Belief::Waits
                && push.message.starts_with(&format!("{} ", actor.claim.owner))
        };
        match self.actors.iter().position(is_notified) {
            Some(actor) if self.below(4) > 0 => self.act(actor, Op::Queue),
            _ => Ok(()),
        }
    }

    /// A step of an actor, and its belief afterwards.
    pub(super) fn act(&mut self, actor: usize, op: Op) -> Verdict {
        let (lock, claim) = (self.actors[actor].lock, self.actors[actor].claim.clone());
        let answer = self.step(lock, op, &claim, &[])?;
        let holds = answer.int().is_some_and(|token| token > 0);
        self.actors[actor].belief = match op {
            Op::Queue | Op::Try if holds => Belief::Holds,
            Op::Queue => Belief::Waits,
            Op::Renew if holds => return Ok(()),
            Op::Renew if self.actors[actor].belief != Belief::Holds => return Ok(()),
            _ => {
                let process = self.actors[actor].process;
                self.actors[actor].claim = self.new_claim(process);
                Belief::Idle
            }
        };
        Ok(())
    }

    /// One step, repeated like a client that gets no reply; returns the last reply.
    pub(super) fn step(
        &mut self,
        lock: usize,
        op: Op,
        me: &Claim,
        samples: &[String],
    ) -> Result<Value, String> {
        let repeats = if self.below(3) == 0 { self.rng.random_range(1..16) } else { self.below(2) };
        let keys = self.locks[lock].clone();
        let bench = &mut *self.bench;
        let send = |bench: &mut Bench| match op {
            Op::Check => bench.send_check(&keys, &me.process, samples),
            _ => bench.send_op(op, &keys, me),
        };
        bench.send("read", &keys, &[]);
        send(bench);
        bench.send("read", &keys, &[]);
        (0..repeats).for_each(|_| send(bench));
        if repeats > 0 {
            bench.send("read", &keys, &[]);
        }

        let before = State::of(&bench.client.receive());
        let reply = bench.client.receive();
        let after = State::of(&bench.client.receive());
        let pushes = bench.client.take_pushes();
        let again: Vec<_> = (0..repeats).map(|_| bench.client.receive()).collect();
        let last = if repeats > 0 { Some(State::of(&bench.client.receive())) } else { None };
        let late_pushes = bench.client.take_pushes();
        self.trace.push(format!("{op:?} {} {}: {reply:?} +{repeats}", me.text, keys.lock));

        let (before, after) = (before?, after?);
        self.undelivered.extend(pushes.iter().chain(&late_pushes).cloned());
        let highest = self.highest[lock].max(before.last_token.unwrap_or(0));
        let step = Step {
            op,
            me,
            samples,
            before: &before,
            after: &after,
            reply: &reply,
            pushes: &pushes,
            highest,
        };
        step.judge()?;
        let highest = highest.max(after.last_token.unwrap_or(0));
        self.highest[lock] = highest;
        if let (Some(repeated), Some(last)) = (again.last(), last.transpose()?) {
            let (reply, pushes) = (repeated, &late_pushes[..]);
            Step { before: &after, after: &last, reply, pushes, highest, ..step }
                .judge()
                .map_err(|why| format!("repeated: {why}"))?;
            if !before.ends_before(&last) && !after.ends_before(&last) {
                super::repeats::judge(op, (step.reply, &again), (&after, &last))?;
            }
            self.highest[lock] = highest.max(last.last_token.unwrap_or(0));
        }
        Ok(again.into_iter().next_back().filter(|_| op != Op::Release).unwrap_or(reply))
    }

    /// Every claim gets the lock in the end, and no key stays.
    fn drain(&mut self) -> Verdict {
        const ROUNDS: usize = 120;
        for n in 0..self.lives.len() {
            if self.lives[n] == Life::Frozen {
                self.lives[n] = Life::Runs;
            }
        }
        self.lives[0] = Life::Runs;
        self.end_foreign_holds();
        self.trace.push("drains".into());
        for _ in 0..ROUNDS {
            for lock in 0..self.locks.len() {
                for process in 0..PROCESSES.len() {
                    if self.runs(process) {
                        self.check(lock, process)?;
                    }
                }
            }
            while let Some(holder) = self.any_actor(|belief| belief == Belief::Holds) {
                self.act(holder, Op::Release)?;
            }
            self.bench.advance(&self.locks, 2500);
            if self.any_actor(|belief| belief == Belief::Waits).is_none() {
                return self.nothing_stays();
            }
        }
        let left = self.any_actor(|belief| belief == Belief::Waits);
        Err(format!("never granted: {:?}", left.map(|n| &self.actors[n])))
    }

    fn nothing_stays(&mut self) -> Verdict {
        // The dead, which hold and wait.
        for ms in [LONG, SILENCE + 1000] {
            self.bench.advance(&self.locks, ms);
            for lock in 0..self.locks.len() {
                self.check(lock, 0)?;
            }
        }
        for keys in self.locks.clone() {
            let answer = self.bench.call(&["EXISTS", &keys.lock, &keys.queue]);
            super::state::ensure(answer == Value::Int(0), || format!("{keys:?}: {answer:?}"))?;
        }
        Ok(())
    }
}
