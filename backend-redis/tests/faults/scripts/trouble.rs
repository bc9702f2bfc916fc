//! Events that clients do not cause: time, death, and other programs on the same keys.

use rand::RngExt;
use rand::seq::IndexedRandom;

use super::Verdict;
use super::bench::Op;
use super::client::Value;
use super::random_runs::{Belief, Life, PROCESSES, RandomRun};
use super::state::ensure;

impl RandomRun<'_> {
    pub(super) fn any_trouble(&mut self) -> Verdict {
        let lock = self.below(self.locks.len());
        let keys = self.locks[lock].clone();
        match self.below(40) {
            0..10 => {
                let ms = *[1, 39, 900, 1999, 3001, 5001, 31_000].choose(&mut self.rng).unwrap();
                self.bench.advance(&self.locks, ms);
                self.note(format!("{ms} ms pass"));
            }
            10..14 => self.ends_meet(lock)?,
            14..17 => self.silence(lock),
            17..20 => self.freeze_or_thaw(),
            20 => self.die(),
            21..25 => {
                let mut set = vec!["SET", &keys.lock, "other program", "NX"];
                set.extend([["PX", "60"], ["PX", "30000"]].choose(&mut self.rng).unwrap());
                self.bench.call(&set);
                self.note(format!("foreign {set:?}"));
            }
            25..27 => self.end_foreign_holds(),
            27..30 => self.foreign(&["DEL", &keys.lock]),
            30..32 => self.foreign(&["DEL", &keys.queue]),
            32..34 => self.foreign(&["DEL", &keys.token]),
            34 => self.foreign(&["FLUSHDB"]),
            35 => {
                self.bench.call(&["DEL", &keys.lock]);
                self.foreign(&["SET", &keys.lock, "for ever"]);
            }
            36 => self.foreign(&["DEBUG", "SLEEP", "0.003"]),
            _ => std::thread::sleep(std::time::Duration::from_millis(2)),
        }
        Ok(())
    }

    fn note(&mut self, what: String) {
        self.trace.push(what);
    }

    fn foreign(&mut self, command: &[&str]) {
        self.bench.call(command);
        self.note(format!("foreign {command:?}"));
    }

    pub(super) fn end_foreign_holds(&mut self) {
        for keys in self.locks.clone() {
            if let Value::Text(text) = self.bench.call(&["GET", &keys.lock])
                && (text == "other program" || text == "for ever")
            {
                self.foreign(&["DEL", &keys.lock]);
            }
        }
    }

    /// Makes all members of a group expire in the same ms, which is near.
    fn ends_meet(&mut self, lock: usize) -> Verdict {
        const MEET: &str = "
        local time = redis.call('TIME')
        local soon = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[1]
        if redis.call('TYPE', KEYS[1]).ok == 'zset' then
          for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], 1, 1e15)) do
            redis.call('ZADD', KEYS[1], soon, member)
          end
        end
        redis.call('PEXPIREAT', KEYS[1], soon)";
        let ms = self.rng.random_range(1..=2).to_string();
        self.bench.call(&["EVAL", MEET, "1", &self.locks[lock].lock, &ms]);
        self.note(format!("all ends in {ms} ms"));
        for _ in 0..6 {
            match self.below(3) {
                0 => {
                    let process = self.below(PROCESSES.len());
                    if self.runs(process) {
                        self.check(lock, process)?;
                    }
                }
                n => {
                    let op = [Op::Queue, Op::Release][n - 1];
                    if let Some(actor) = self.any_actor(|belief| belief != Belief::Holds) {
                        self.act(actor, op)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// One client is considered dead, at one lock.
    fn silence(&mut self, lock: usize) {
        let queue = self.locks[lock].queue.clone();
        let process = format!("@{}", PROCESSES[self.below(PROCESSES.len())]);
        self.foreign(&["ZADD", &queue, "XX", "1000000000000", &process]);
    }

    fn freeze_or_thaw(&mut self) {
        let process = self.below(PROCESSES.len());
        self.lives[process] = match self.lives[process] {
            Life::Runs => Life::Frozen,
            Life::Frozen => Life::Runs,
            Life::Dead => Life::Dead,
        };
        self.note(format!("{} is {:?}", PROCESSES[process], self.lives[process]));
    }

    fn die(&mut self) {
        let process = self.below(PROCESSES.len());
        if self.lives.iter().filter(|life| **life == Life::Dead).count() < 2 {
            self.lives[process] = Life::Dead;
            self.note(format!("{} is dead", PROCESSES[process]));
        }
    }

    /// One of the keys is a list of another program: steps fail, and do not change it.
    pub(super) fn locks_of_lists(&mut self) -> Verdict {
        let lock = self.below(self.locks.len());
        let keys = self.locks[lock].clone();
        let key = [&keys.lock, &keys.queue, &keys.token][self.below(3)].clone();
        self.bench.call(&["DEL", &key]);
        self.foreign(&["RPUSH", &key, "a", "b"]);
        let mut touched = Vec::new();
        for _ in 0..3 {
            let Some(n) = self.any_actor(|_| true) else { break };
            let claim = self.actors[n].claim.clone();
            let ops = [Op::Queue, Op::Try, Op::Release, Op::Renew, Op::Check];
            let op = *ops.choose(&mut self.rng).unwrap();
            let answer = self.bench.op(op, &keys, &claim);
            self.note(format!("{op:?} {} {}: {answer:?}", claim.text, keys.lock));
            let is_known = |text: &str| text.contains("WRONGTYPE") || text.contains("fencelock: ");
            ensure(answer.error().is_none_or(is_known), || format!("{answer:?}"))?;
            if key == keys.lock {
                let fails = matches!(op, Op::Queue | Op::Try | Op::Check);
                ensure(answer.error().is_some() == fails, || format!("{op:?}: {answer:?}"))?;
            }
            let list = self.bench.call(&["LRANGE", &key, "0", "-1"]);
            ensure(list.texts() == ["a", "b"], || format!("{op:?} destroyed {key}"))?;
            // After an error the state is unknown: a client releases.
            self.bench.op(Op::Release, &keys, &claim);
            let held = self.bench.call(&["GET", &keys.lock]);
            ensure(held.text() != Some(&claim.text), || format!("{} holds", claim.text))?;
            touched.push(n);
        }
        self.foreign(&["DEL", &key]);
        // After an error of a release it is still unknown.
        for n in touched {
            let claim = self.actors[n].claim.clone();
            self.bench.op(Op::Release, &keys, &claim);
            if self.actors[n].lock == lock {
                self.actors[n].belief = Belief::Idle;
            }
        }
        // A queue that an error left has a TTL.
        self.bench.client.take_pushes();
        self.bench.state(&keys).map(drop)
    }
}
