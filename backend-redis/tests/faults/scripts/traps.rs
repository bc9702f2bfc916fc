//! Failures that happened once, or nearly, in some library: each trap on an empty server.

use super::Verdict;
use super::bench::{Bench, Keys, Op};
use super::claim::{Claim, Mode};
use super::client::Value;
use super::state::{SLACK, ensure};

mod cells;
mod downgrade;
mod groups;
mod memory;
mod queues;
mod tokens;

/// A name, and the function that springs the trap.
pub(crate) type Trap = (&'static str, fn(&mut Bench) -> Verdict);

pub(crate) fn all() -> Vec<Trap> {
    let of_locks = [tokens::TRAPS, queues::TRAPS, groups::TRAPS, downgrade::TRAPS, memory::TRAPS];
    [&of_locks.concat(), cells::TRAPS].concat()
}

/// Springs one on an empty server.
pub(crate) fn spring(bench: &mut Bench, (name, trap): Trap) -> Verdict {
    bench.call(&["CONFIG", "SET", "maxmemory", "0"]);
    bench.call(&["FLUSHALL"]);
    bench.client.take_pushes();
    let verdict = trap(bench).map_err(|why| format!("{name}: {why}"));
    bench.call(&["CONFIG", "SET", "maxmemory", "0"]);
    verdict
}

fn keys() -> Keys {
    Keys::of("lock")
}

const LONG: i64 = 30_000;

fn exclusive(n: u64) -> Claim {
    Claim::new(Mode::Exclusive, LONG, process(n), n)
}

fn shared(n: u64) -> Claim {
    Claim::new(Mode::Shared, LONG, process(n), n)
}

fn permits(n: u64, share: i64, limit: i64) -> Claim {
    Claim::new(Mode::Permits { n: share, limit }, LONG, process(n), n)
}

fn with_ttl(claim: &Claim, ttl: i64) -> Claim {
    let owner = u64::from_str_radix(&claim.owner, 16).unwrap();
    Claim::new(claim.mode, ttl, &claim.process, owner)
}

fn process(n: u64) -> &'static str {
    let all = super::random_runs::PROCESSES;
    all[usize::try_from(n).unwrap() % all.len()]
}

/// Acquires, which must succeed.
fn acquire(bench: &mut Bench, claim: &Claim) -> Result<i64, String> {
    let answer = bench.op(Op::Queue, &keys(), claim);
    answer.int().filter(|token| *token > 0).ok_or_else(|| format!("{}: {answer:?}", claim.text))
}

/// Queues, which must not acquire; returns the time until the next check.
fn queue(bench: &mut Bench, claim: &Claim) -> Result<i64, String> {
    let answer = bench.op(Op::Queue, &keys(), claim);
    let check_after = answer.list().first().and_then(Value::int);
    check_after.ok_or_else(|| format!("{}: {answer:?}", claim.text))
}

fn release(bench: &mut Bench, claim: &Claim) -> Verdict {
    answers(bench, Op::Release, claim, 1)
}

fn answers(bench: &mut Bench, op: Op, claim: &Claim, expected: i64) -> Verdict {
    let answer = bench.op(op, &keys(), claim);
    equal(&format!("{op:?} {}", claim.text), &answer.int(), &Some(expected))
        .map_err(|why| format!("{why}: {answer:?}"))
}

fn holds(bench: &mut Bench, claim: &Claim, expected: bool) -> Verdict {
    let state = bench.state(&keys())?;
    let holders: Vec<_> = state.holders.keys().collect();
    ensure(state.holders.contains_key(&claim.text) == expected, || {
        format!("{} should{} hold: {holders:?}", claim.text, if expected { "" } else { " not" })
    })
}

fn messages(bench: &mut Bench) -> Vec<String> {
    bench.call(&["PING"]);
    bench.client.take_pushes().into_iter().map(|push| push.message).collect()
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, is: &T, expected: &T) -> Verdict {
    ensure(is == expected, || format!("{what} is {is:?}, not {expected:?}"))
}

fn near(what: &str, is: i64, expected: i64) -> Verdict {
    // Test machines stall.
    let slack = 5 * SLACK;
    ensure((is - expected).abs() < slack, || format!("{what} is {is}, not {expected}"))
}

fn ttl(bench: &mut Bench, key: &str) -> i64 {
    bench.call(&["PTTL", key]).int().unwrap_or_default()
}
