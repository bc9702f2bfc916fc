//! A server with the scripts loaded, and the steps as calls.

use super::claim::Claim;
use super::client::{Client, Value};
use super::random_runs::PROCESSES;
use super::state::{READ, State};

/// The names and texts of the scripts.
pub(crate) type Texts = Vec<(&'static str, String)>;

pub(crate) fn real_texts() -> Texts {
    fencelock_redis::scripts().into_iter().map(|(name, text)| (name, text.to_owned())).collect()
}

/// The operations of claims and clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Queue,
    Try,
    Release,
    Evict,
    Renew,
    Check,
}

/// The keys of a lock.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    pub(crate) lock: String,
    pub(crate) queue: String,
    pub(crate) token: String,
}

impl Keys {
    pub(crate) fn of(name: &str) -> Keys {
        Keys { lock: name.into(), queue: format!("{{{name}}}:q"), token: format!("{{{name}}}:f") }
    }
}

pub(crate) struct Bench {
    pub(crate) client: Client,
    digests: Vec<(&'static str, String)>,
    /// How many of our scripts ran.
    pub(crate) calls: u64,
}

impl Bench {
    /// An empty server with these scripts, and a client of all processes' channels; an error if it cannot compile one.
    pub(crate) fn new(port: u16, texts: &Texts) -> Result<Bench, String> {
        let mut client = Client::connect(port);
        client.call(&["FLUSHALL"]);
        let mut digests = Vec::new();
        for (name, text) in texts.iter().chain([&("read", READ.to_owned())]) {
            match client.call(&["SCRIPT", "LOAD", text]) {
                Value::Text(digest) => digests.push((*name, digest)),
                refused => return Err(format!("{name}: {refused:?}")),
            }
        }
        client.subscribe(&PROCESSES);
        Ok(Bench { client, digests, calls: 0 })
    }

    pub(crate) fn digest(&self, name: &str) -> String {
        self.digests.iter().find(|(known, _)| *known == name).unwrap().1.clone()
    }

    /// Adds a call of a script to the next round trip.
    pub(crate) fn send(&mut self, script: &str, keys: &Keys, args: &[&str]) {
        self.send_for_keys(script, &[&keys.lock, &keys.queue, &keys.token], args);
    }

    fn send_for_keys(&mut self, script: &str, keys: &[&str], args: &[&str]) {
        self.calls += u64::from(script != "read");
        // Every other step, by its text, is sent as a batch of one, which must make no difference.
        let sum = args.iter().flat_map(|arg| arg.bytes()).fold(0, u8::wrapping_add);
        if script != "read" && sum % 2 == 1 {
            let command = self.batch_for_keys(&[(script, keys, args)]);
            let command: Vec<&str> = command.iter().map(String::as_str).collect();
            self.client.send_for_one(&command);
        } else {
            let (digest, count) = (self.digest(script), keys.len().to_string());
            self.client.send(&[&["EVALSHA", &digest, &count], keys, args].concat());
        }
    }

    /// The reply to a swap of the cell at `key`.
    pub(crate) fn swap(&mut self, key: &str, from: &str, to: &str, keep: &str) -> Value {
        self.send_for_keys("swap", &[key], &[from, to, keep]);
        self.client.receive()
    }

    /// The command for several steps in one call.
    pub(crate) fn batch(&self, steps: &[(&str, &Keys, &[&str])]) -> Vec<String> {
        let keys = steps.iter().map(|(_, keys, _)| [&*keys.lock, &*keys.queue, &*keys.token]);
        let keys: Vec<_> = keys.collect();
        let steps =
            steps.iter().zip(&keys).map(|((step, _, args), keys)| (*step, &keys[..], *args));
        self.batch_for_keys(&steps.collect::<Vec<_>>())
    }

    pub(crate) fn batch_for_keys(&self, steps: &[(&str, &[&str], &[&str])]) -> Vec<String> {
        let keys = || steps.iter().flat_map(|(_, keys, _)| *keys);
        let mut command =
            vec!["EVALSHA".to_owned(), self.digest("batch"), keys().count().to_string()];
        command.extend(keys().map(|key| (*key).to_owned()));
        for (script, keys, args) in steps {
            command.extend([(*script).to_owned(), format!("{}{}", keys.len(), args.len())]);
            command.extend(args.iter().map(|arg| (*arg).to_owned()));
        }
        command
    }

    pub(crate) fn send_op(&mut self, op: Op, keys: &Keys, claim: &Claim) {
        let (me, ttl) = (claim.text.as_str(), claim.ttl.to_string());
        match op {
            Op::Queue => self.send("attempt", keys, &[me, &ttl]),
            Op::Try => self.send("attempt", keys, &[me, &ttl, "try"]),
            Op::Release => self.send("release", keys, &[me]),
            Op::Evict => self.send("release", keys, &[me, "evict"]),
            Op::Renew => self.send("renew", keys, &[me, &ttl, ""]),
            Op::Check => self.send("check_waiters", keys, &[&claim.process, me]),
        }
    }

    pub(crate) fn op(&mut self, op: Op, keys: &Keys, claim: &Claim) -> Value {
        self.send_op(op, keys, claim);
        self.client.receive()
    }

    pub(crate) fn send_check(&mut self, keys: &Keys, process: &str, samples: &[String]) {
        let samples = samples.iter().map(String::as_str);
        let args: Vec<_> = [process].into_iter().chain(samples).collect();
        self.send("check_waiters", keys, &args);
    }

    pub(crate) fn state(&mut self, keys: &Keys) -> Result<State, String> {
        self.send("read", keys, &[]);
        State::of(&self.client.receive())
    }

    pub(crate) fn call(&mut self, command: &[&str]) -> Value {
        self.client.call(command)
    }

    /// Lets time pass for all locks, except for their tokens, which do not expire in a run.
    pub(crate) fn advance(&mut self, locks: &[Keys], ms: i64) {
        const ADVANCE: &str = "
        local by = tonumber(ARGV[1])
        for i = 1, #KEYS, 2 do
          for k = i, i + 1 do
            local key = KEYS[k]
            if redis.call('TYPE', key).ok == 'zset' then
              for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, 1, 1e15)) do
                redis.call('ZINCRBY', key, -by, member)
              end
            end
            local left = redis.call('PTTL', key)
            if left >= 0 then redis.call('PEXPIRE', key, left - by) end
          end
        end";
        let (count, ms) = ((2 * locks.len()).to_string(), ms.to_string());
        let mut command = vec!["EVAL", ADVANCE, &count];
        command.extend(locks.iter().flat_map(|keys| [keys.lock.as_str(), &keys.queue]));
        command.push(&ms);
        let answer = self.call(&command);
        assert_eq!(answer.error(), None);
    }
}
