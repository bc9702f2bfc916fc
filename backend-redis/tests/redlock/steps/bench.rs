//! One node that may vote by its incarnation record, and the steps as calls.

use fencelock_testkit::servers::TestRedis;

use super::client::{Client, Value};

/// A waiter of client `p1`.
pub(crate) const ME: &str = "x 30000 p1 aa a label";
/// A waiter of client `p2`.
pub(crate) const OTHER: &str = "x 30000 p2 bb a label";
pub(crate) const READER: &str = "s 30000 p1 cc a label";
pub(crate) const SECOND_READER: &str = "s 30000 p2 dd a label";

pub(crate) const PROCESSES: [&str; 2] = ["p1", "p2"];

/// A round of a waiter.
pub(crate) fn round(waiter: &str, number: u32) -> String {
    let (mode, rest) = waiter.split_at(1);
    format!("{mode}{number}{rest}")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
}

impl Mode {
    /// This node's number.
    pub(crate) const NUMBER: u64 = 3;

    /// The argument of `vote`.
    fn more(self) -> &'static str {
        if self == Mode::Shared { "3" } else { "" }
    }
}

/// The lowest score of waiters in a queue.
const BAND: u64 = 1_000_000_000_000_000;
/// Tokens are counted from here: in a sorted set they are above all times, like real ones.
const BASE: u64 = 1_700_000_000_000_000;
const RECORD: &str = "run open 1 3 1 60000";
const KEYS: [&str; 4] = ["lock", "{lock}:q", "{lock}:f", "fencelock:redlock"];

pub(crate) struct Node {
    client: Client,
    _server: TestRedis,
}

/// A reply.
pub(crate) struct Answer(Value);

impl Answer {
    /// A number; a token as counted from [`BASE`].
    #[track_caller]
    pub(crate) fn int(&self) -> Option<i64> {
        assert!(self.0.error().is_none(), "{:?}", self.0);
        self.0.int().map(from_base)
    }

    pub(crate) fn error(&self) -> Option<&str> {
        self.0.error()
    }

    /// The owner, for how long in ms, and whether the waiter is the first.
    #[track_caller]
    pub(crate) fn rejection(&self) -> (String, i64, i64) {
        let [Value::Text(whose), Value::Int(ms), Value::Int(first)] = self.0.list() else {
            panic!("not a rejection: {:?}", self.0);
        };
        (whose.clone(), *ms, *first)
    }

    /// When to check again in ms, whether waiters are missing, and the first.
    #[track_caller]
    pub(crate) fn check(&self) -> (i64, i64, String) {
        let [Value::Int(ms), Value::Int(missing), Value::Text(first), ..] = self.0.list() else {
            panic!("not a reply to a check: {:?}", self.0);
        };
        (*ms, *missing, first.clone())
    }

    /// The waiters whose turn it is, by a check.
    #[track_caller]
    pub(crate) fn turns(&self) -> Vec<String> {
        self.0.list()[3..].iter().filter_map(Value::text).map(str::to_owned).collect()
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

fn from_base(number: i64) -> i64 {
    number.checked_sub_unsigned(BASE).filter(|token| *token >= 0).unwrap_or(number)
}

fn token(from_base: u64) -> String {
    (BASE + from_base).to_string()
}

impl Node {
    /// An empty one.
    pub(crate) fn start() -> Node {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let server = runtime.block_on(TestRedis::start()).unwrap();
        let mut client = Client::connect(server.port());
        client.subscribe(&PROCESSES);
        let mut node = Node { client, _server: server };
        node.call(&["SET", "fencelock:redlock", RECORD]);
        node
    }

    pub(crate) fn call(&mut self, command: &[&str]) -> Answer {
        Answer(self.client.call(command))
    }

    fn step(&mut self, name: &str, keys: usize, values: &[&str]) -> Answer {
        let scripts = fencelock_redis::quorum_scripts();
        let text = scripts.into_iter().find(|(known, _)| *known == name).unwrap().1;
        let count = keys.to_string();
        self.call(&[&["EVAL", text, &count], &KEYS[..keys], values].concat())
    }

    /// Without a place in the queue, and without a base.
    pub(crate) fn vote_of(&mut self, identity: &str, mode: Mode, proposal: u64) -> String {
        let proposal = proposal.to_string();
        let answer =
            self.step("vote", 4, &[RECORD, identity, "30000", &proposal, mode.more(), "", "0"]);
        answer.0.text().map_or_else(|| panic!("{answer:?}"), str::to_owned)
    }

    /// Without a place in the queue.
    pub(crate) fn vote(&mut self, identity: &str, proposal: u64) -> Answer {
        let (proposal, ttl) = (token(proposal), "30000");
        self.step("vote", 4, &[RECORD, identity, ttl, &proposal, "", "", "0"])
    }

    pub(crate) fn vote_shared(&mut self, identity: &str, proposal: u64) -> Answer {
        let (proposal, ttl) = (token(proposal), "30000");
        self.step("vote", 4, &[RECORD, identity, ttl, &proposal, "3", "", "0"])
    }

    /// With a place in the queue, by arrival.
    pub(crate) fn vote_as(
        &mut self,
        identity: &str,
        waiter: &str,
        mode: Mode,
        proposal: u64,
        arrival: u64,
    ) -> Answer {
        let (proposal, arrival) = (token(proposal), (BAND + arrival).to_string());
        let values = [RECORD, identity, "30000", &proposal, mode.more(), waiter, &arrival];
        self.step("vote", 4, &values)
    }

    /// Puts a waiter into the queue of a lock that is held, or has others before it.
    #[track_caller]
    pub(crate) fn wait(&mut self, waiter: &str, mode: Mode, arrival: u64) {
        self.vote_as(&round(waiter, 1), waiter, mode, 16, arrival).rejection();
    }

    pub(crate) fn raise(&mut self, identity: &str, to: u64) -> Answer {
        self.step("raise", 4, &[RECORD, identity, &token(to)])
    }

    pub(crate) fn extend(&mut self, identity: &str, ttl: &str, to: u64, mode: &str) -> Answer {
        self.step("extend", 4, &[RECORD, identity, ttl, &token(to), mode])
    }

    pub(crate) fn free(&mut self, identity: &str) -> Answer {
        self.step("free", 3, &[identity, "", ""])
    }

    /// The waiter leaves too.
    pub(crate) fn free_waiting(&mut self, identity: &str, waiter: &str) -> Answer {
        self.step("free", 3, &[identity, waiter, ""])
    }

    /// The waiter stays, with its arrival.
    pub(crate) fn roll_back(&mut self, identity: &str, waiter: &str, arrival: u64) -> Answer {
        self.step("free", 3, &[identity, waiter, &(BAND + arrival).to_string()])
    }

    /// For an operator.
    pub(crate) fn evict(&mut self, identity: &str) -> Answer {
        self.step("free", 3, &[identity, "", "", "evict"])
    }

    /// The key by which the node remembers that a round was evicted.
    pub(crate) fn eviction(&mut self, round: &str) -> String {
        let words: Vec<&str> = round.split(' ').collect();
        let text = [words[0], words[3]].concat();
        let hash = self.call(&["EVAL", "return redis.sha1hex(ARGV[1])", "0", &text]);
        format!("{{lock}}:e:{}}}:q", hash.0.text().expect("a hash"))
    }

    pub(crate) fn check_waiters(&mut self, client: &str, waiters: &[&str]) -> Answer {
        self.step("check_waiters", 3, &[&[client], waiters].concat())
    }

    /// What was pushed since the last time: channel and message.
    pub(crate) fn pushes(&mut self) -> Vec<(String, String)> {
        self.call(&["PING"]);
        let pushes = self.client.take_pushes().into_iter();
        pushes.map(|push| (push.channel, push.message)).collect()
    }

    pub(crate) fn holder(&mut self) -> String {
        self.text("lock")
    }

    /// 0 for none.
    pub(crate) fn token(&mut self) -> i64 {
        // It may end with the mark of a queue.
        self.text("{lock}:f").trim_end_matches('q').parse().map_or(0, from_base)
    }

    pub(crate) fn set_token(&mut self, to: u64) {
        self.call(&["SET", "{lock}:f", &token(to)]);
    }

    pub(crate) fn text(&mut self, key: &str) -> String {
        self.client.call(&["GET", key]).text().unwrap_or_default().to_owned()
    }

    pub(crate) fn ttl(&mut self, key: &str) -> i64 {
        self.call(&["PTTL", key]).int().unwrap()
    }

    /// In order.
    pub(crate) fn waiters(&mut self) -> Vec<String> {
        let waiters = ["ZRANGEBYSCORE", "{lock}:q", &BAND.to_string(), "+inf"];
        let answer = self.client.call(&waiters);
        answer.texts().into_iter().map(str::to_owned).collect()
    }

    /// A digest of all data, without the TTLs.
    pub(crate) fn state(&mut self) -> String {
        let digest = self.client.call(&["DEBUG", "DIGEST"]);
        digest.text().unwrap_or_else(|| panic!("{digest:?}")).to_owned()
    }
}
