//! What a random process, user or operator does next.

use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};
use uuid::Uuid;

use super::super::Verdict;
use super::super::bench::{Call, Step, ensure, equal};
use super::super::claim::{LONG, SECOND};
use super::super::rules::Guarded;
use super::{Actor, Belief, Life, RandomRun};

impl RandomRun<'_> {
    pub(super) fn any_attempt(&mut self) -> Verdict {
        let often = self.below(4) > 0;
        let holds = |belief| matches!(belief, Belief::Holds(..));
        let Some(n) = self.any_actor(|belief| !(often && holds(belief))) else { return Ok(()) };
        self.attempt(n)
    }

    fn attempt(&mut self, n: usize) -> Verdict {
        let (claim, queue) = (self.actors[n].claim.clone(), self.actors[n].queues);
        self.actors[n].may_end(self.bench.now() + claim.ttl);
        let reply = self.call(&Call::Attempt { claim, queue })?;
        match reply {
            Some(reply) => self.believe(n, reply.number),
            None => Ok(()),
        }
    }

    /// What the reply to an attempt means for the claim.
    fn believe(&mut self, n: usize, reply: i64) -> Verdict {
        let now = self.bench.now();
        let claim = self.actors[n].claim.clone();
        self.actors[n].belief = match reply {
            1.. => Belief::Holds(reply, now + claim.ttl),
            ..0 => Belief::Waits,
            0 => {
                self.actors[n].claim = self.new_claim(Some(&claim.process));
                Belief::Idle
            }
        };
        self.believers_are_compatible(&claim.key)
    }

    /// Independent of the rows: what clients were told.
    fn believers_are_compatible(&self, key: &[u8]) -> Verdict {
        let now = self.bench.now();
        let holds = |actor: &&Actor| {
            actor.claim.key == key && matches!(actor.belief, Belief::Holds(_, until) if until > now)
        };
        let holders: Vec<_> = self.actors.iter().filter(holds).map(|actor| &actor.claim).collect();
        let Some(first) = holders.first().filter(|_| !self.is_clock_set) else { return Ok(()) };
        let fits = holders.len() == 1
            || (first.mode != 'x' && holders.iter().all(|claim| claim.mode == first.mode));
        ensure(fits, || format!("all of these hold: {holders:?}"))?;
        let (sum, limit) = holders
            .iter()
            .fold((0, 0), |(sum, limit), claim| (sum + claim.n, limit.max(claim.limit)));
        ensure(first.mode != 'p' || sum <= limit, || format!("too many hold: {holders:?}"))
    }

    pub(super) fn any_release(&mut self) -> Verdict {
        let often = self.below(10) > 0;
        match self.any_actor(|belief| !often || belief != Belief::Idle) {
            Some(n) => self.release(n),
            None => Ok(()),
        }
    }

    pub(super) fn release(&mut self, n: usize) -> Verdict {
        let claim = self.actors[n].claim.clone();
        // It no longer counts on it when it asks.
        self.actors[n].belief = Belief::Waits;
        if self.call(&Call::Release(claim.clone()))?.is_some() {
            self.actors[n].claim = self.new_claim(Some(&claim.process));
            self.actors[n].belief = Belief::Idle;
        }
        Ok(())
    }

    pub(super) fn any_renewal(&mut self) -> Verdict {
        let Some(n) = self.any_actor(|belief| matches!(belief, Belief::Holds(..))) else {
            return Ok(());
        };
        let process = self.actors[n].claim.process.clone();
        let is_due = |actor: &&Actor| {
            actor.claim.process == process && matches!(actor.belief, Belief::Holds(..))
        };
        let claims: Vec<_> =
            self.actors.iter().filter(is_due).map(|actor| actor.claim.clone()).collect();
        let ttl = *[LONG, SECOND, 0].choose(&mut self.rng).unwrap();
        let now = self.bench.now();
        for actor in self.actors.iter_mut().filter(|actor| claims.contains(&actor.claim)) {
            if ttl > 0 {
                actor.may_end(now + ttl);
            }
        }
        let Some(reply) = self.call(&Call::Renew(claims.clone(), ttl))? else { return Ok(()) };
        for claim in claims {
            let n = self.actors.iter().position(|actor| actor.claim.owner == claim.owner).unwrap();
            let is_renewed = reply.owners.iter().any(|(owner, _)| *owner == claim.owner);
            match self.actors[n].belief {
                // Also one that an earlier call extended without a reply, if the client counts it
                // as lost.
                Belief::Holds(token, until) if is_renewed && until > now => {
                    let until = if ttl > 0 { now + ttl } else { until };
                    self.actors[n].belief = Belief::Holds(token, until);
                }
                _ => self.release(n)?,
            }
        }
        Ok(())
    }

    pub(super) fn any_downgrade(&mut self) -> Verdict {
        let holds = |belief| matches!(belief, Belief::Holds(..));
        let Some(n) = self.any_actor(holds) else { return Ok(()) };
        let claim = self.actors[n].claim.clone();
        if claim.mode == 'p' {
            return Ok(());
        }
        // A reader from now on, answered or not.
        self.actors[n].claim.mode = 's';
        let ttl = *[LONG, 0].choose(&mut self.rng).unwrap();
        match self.call(&Call::Downgrade(claim, ttl))? {
            Some(reply) if reply.number == 0 => self.release(n),
            _ => Ok(()),
        }
    }

    pub(super) fn any_eviction(&mut self) -> Verdict {
        let key = self.keys.choose(&mut self.rng).unwrap().clone();
        let lock = self.state.lock(&key);
        let now = self.bench.now();
        let holders = lock.grants().into_iter().filter(|grant| grant.until > now);
        let waiters = lock.claims.iter().filter(|claim| self.state.is_waiter(claim));
        let all = holders.map(|grant| (grant.owner, format!("h{}", grant.first)));
        let all: Vec<_> = all.chain(waiters.map(|c| (c.owner, format!("w{}", c.seq)))).collect();
        let Some((owner, id)) = all.choose(&mut self.rng).cloned() else { return Ok(()) };
        let listed: Vec<_> = all.iter().map(|(_, id)| id.clone()).collect();
        self.shown(&key, &listed)?;
        let Some(n) = self.actors.iter().position(|actor| actor.claim.owner == owner) else {
            return Ok(());
        };
        self.actors[n].belief = Belief::Waits;
        self.judged(&Call::Evict { key, id }).map(drop)
    }

    /// `inspect` lists exactly these.
    fn shown(&mut self, key: &[u8], expected: &[String]) -> Verdict {
        let rows = self.bench.main.query("SELECT id FROM inspect_1($1)", &[&key])?;
        let ids: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        equal("what is shown", &ids.as_slice(), &expected)
    }

    pub(super) fn any_batch(&mut self) -> Verdict {
        let Some(first) = self.any_actor(|_| true) else { return Ok(()) };
        let process = self.actors[first].claim.process.clone();
        let mut all: Vec<_> =
            (0..self.actors.len()).filter(|n| self.actors[*n].claim.process == process).collect();
        all.shuffle(&mut self.rng);
        let mut steps = Vec::new();
        for n in &all {
            let claim = self.actors[*n].claim.clone();
            steps.push(match self.actors[*n].belief {
                Belief::Idle | Belief::Waits => {
                    Step::Attempt { claim, queue: self.actors[*n].queues }
                }
                Belief::Holds(..) => {
                    self.actors[*n].belief = Belief::Waits;
                    Step::Release(claim)
                }
            });
        }
        let Some(reply) = self.call(&Call::Batch(steps.clone()))? else { return Ok(()) };
        for ((n, step), number) in all.iter().zip(&steps).zip(reply.steps) {
            match step {
                Step::Attempt { .. } => self.believe(*n, number)?,
                Step::Release(_) => {
                    self.actors[*n].claim = self.new_claim(Some(&process));
                    self.actors[*n].belief = Belief::Idle;
                }
            }
        }
        Ok(())
    }

    pub(super) fn any_look(&mut self) -> Verdict {
        let process = self.lives.choose(&mut self.rng).unwrap().0.clone();
        if self.runs(&process) { self.look(&process) } else { Ok(()) }
    }

    /// The look of each second, and what the process does with the reply.
    pub(super) fn look(&mut self, process: &str) -> Verdict {
        let waits =
            |actor: &&Actor| actor.claim.process == process && actor.belief == Belief::Waits;
        let sample: Vec<_> =
            self.actors.iter().filter(waits).map(|actor| actor.claim.owner).collect();
        let (process, keys) = (process.to_owned(), self.keys.clone());
        let Some(reply) = self.call(&Call::Look { process, keys, sample })? else { return Ok(()) };
        for (owner, _) in reply.owners.iter().filter(|(_, again)| *again <= 0) {
            self.ring(*owner)?;
        }
        Ok(())
    }

    fn ring(&mut self, owner: Uuid) -> Verdict {
        let is_waiting =
            |actor: &Actor| actor.claim.owner == owner && actor.belief == Belief::Waits;
        match self.actors.iter().position(is_waiting) {
            Some(n) if self.runs(&self.actors[n].claim.process) => self.attempt(n),
            _ => Ok(()),
        }
    }

    /// Notifications come late, in any order, or never.
    pub(super) fn deliver(&mut self) -> Verdict {
        if self.undelivered.is_empty() {
            return self.any_look();
        }
        let n = self.below(self.undelivered.len());
        let (_, owner) = self.undelivered.swap_remove(n);
        if self.below(4) > 0 { self.ring(owner.parse().unwrap()) } else { Ok(()) }
    }

    /// A user's transaction begins with a check of a token, or ends.
    pub(super) fn any_transaction(&mut self) -> Verdict {
        if self.guarded.take().is_some() {
            self.trace.push("the transaction ends".into());
            return self.bench.other.run("COMMIT");
        }
        let fit = |n: &usize| matches!(self.actors[*n].belief, Belief::Holds(..));
        let fit: Vec<_> = (0..self.actors.len()).filter(fit).collect();
        let Some(n) = fit.choose(&mut self.rng).copied() else { return Ok(()) };
        let actor = &self.actors[n];
        let Belief::Holds(token, _) = actor.belief else { return Ok(()) };
        let claim = actor.claim.clone();
        let lock = self.state.lock(&claim.key);
        let grant = lock.grant(claim.owner);
        let grant = grant.filter(|grant| grant.first == token && grant.until != 0);
        let own = token + i64::from(self.rng.random_range(0..claim.tokens));
        let used = *[own, own, own, token - 1].choose(&mut self.rng).unwrap();
        let shown = format!("a transaction of {} checks {used}: {grant:?}", claim.owner);
        self.trace.push(shown);
        self.bench.other.run("BEGIN")?;
        let checked =
            self.bench.other.query("SELECT check_token($1, $2, 60000)", &[&claim.key, &used]);
        // The token before may be another grant's. Of several exclusive ones, none comes after a later one.
        let turn = self.turns.entry(claim.key.clone()).or_default();
        let now = self.bench.now();
        let expected = grant
            .filter(|grant| (grant.first..=grant.last).contains(&used))
            // Over, it passes as long as nobody waits.
            .filter(|grant| match grant.mode {
                'x' => grant.until > now || !lock.crowd,
                _ => grant.until > now || !lock.claims.iter().any(|claim| claim.state == 'w'),
            })
            .filter(|grant| grant.mode != 'x' || used >= *turn);
        if let Some(grant) = &expected
            && grant.mode == 'x'
            && grant.first < grant.last
        {
            *turn = used;
        }
        match (checked, expected) {
            (Ok(_), Some(grant)) => {
                self.guarded =
                    Some(Guarded { key: claim.key, owner: claim.owner, mode: grant.mode });
                Ok(())
            }
            (Ok(_), None) if used < token => self.bench.other.run("ROLLBACK"),
            (Err(error), None) if error.starts_with("FL001") => self.bench.other.run("ROLLBACK"),
            (checked, expected) => Err(format!("{used}: {checked:?}, held: {expected:?}")),
        }
    }

    pub(super) fn any_trouble(&mut self) -> Verdict {
        let n = self.below(self.lives.len());
        match self.below(10) {
            0 if n > 0 => self.lives[n].1 = Life::Dead,
            1 if self.lives[n].1 == Life::Runs => self.lives[n].1 = Life::Frozen,
            0..4 if self.lives[n].1 == Life::Frozen => self.lives[n].1 = Life::Runs,
            4 if self.below(10) == 0 => {
                self.is_clock_set = true;
                let by = *[-40, 40].choose(&mut self.rng).unwrap();
                return self.pass(by * SECOND);
            }
            _ => {
                let us = *[1, 900, SECOND / 20, SECOND, 2 * SECOND, 7 * SECOND / 2, LONG]
                    .choose(&mut self.rng)
                    .unwrap();
                return self.pass(us);
            }
        }
        self.trace.push(format!("{:?}", self.lives[n]));
        Ok(())
    }

    pub(super) fn pass(&mut self, us: i64) -> Verdict {
        self.bench.advance(us);
        self.state.now = self.bench.now();
        self.trace.push(format!("{us} us pass"));
        Ok(())
    }
}
