//! A writer that becomes a reader, and requests of its that are lost, late or repeated.

use super::*;

pub(super) const TRAPS: &[Trap] = &[
    ("a downgrade serves the readers ahead of a writer", serves_readers),
    ("a downgrade of a fixed lease keeps its end", fixed_lease),
    ("a late downgrade acquires nothing", no_ghost),
    ("an eviction of another is no release of a reader", only_its_own),
    ("a token deleted before a downgrade is replaced", token_deleted),
    ("out of memory, a downgrade and its repetition are carried out", out_of_memory),
];

/// The identity that `claim` has after its downgrade.
fn reader_of(claim: &Claim) -> Claim {
    let owner = u64::from_str_radix(&claim.owner, 16).unwrap();
    Claim::new(Mode::Shared, claim.ttl, &claim.process, owner)
}

fn send(bench: &mut Bench, claim: &Claim, ttl: i64) -> Value {
    let (reader, ttl) = (reader_of(claim).text, ttl.to_string());
    bench.send("downgrade", &keys(), &[&claim.text, &reader, &ttl]);
    bench.client.receive()
}

fn downgrade(bench: &mut Bench, claim: &Claim) -> Verdict {
    equal("the downgrade", &send(bench, claim, claim.ttl), &Value::Int(1))
}

/// The release of a claim that does not know whether it was downgraded.
fn release_unsure(bench: &mut Bench, claim: &Claim) -> Value {
    bench.send("release", &keys(), &[&claim.text, "or", &reader_of(claim).text]);
    bench.client.receive()
}

fn nothing_left(bench: &mut Bench) -> Verdict {
    let left = bench.call(&["EXISTS", &keys().lock, &keys().queue]);
    equal("the remaining keys", &left, &Value::Int(0))
}

fn serves_readers(bench: &mut Bench) -> Verdict {
    let (writer, next) = (exclusive(1), exclusive(4));
    acquire(bench, &writer)?;
    for waiter in [shared(2), shared(3), next.clone(), shared(5)] {
        queue(bench, &waiter)?;
    }
    downgrade(bench, &writer)?;
    equal("the pushes", &messages(bench).len(), &2)?;
    for (n, is_in) in [(2, true), (3, true), (5, false)] {
        holds(bench, &shared(n), is_in)?;
    }
    holds(bench, &next, false)?;
    for n in [2, 3] {
        acquire(bench, &shared(n))?;
        release(bench, &shared(n))?;
    }
    release(bench, &reader_of(&writer))?;
    holds(bench, &next, true)?;
    acquire(bench, &next)?;
    release(bench, &next)?;
    acquire(bench, &shared(5))?;
    release(bench, &shared(5))?;
    nothing_left(bench)
}

fn fixed_lease(bench: &mut Bench) -> Verdict {
    let (writer, other) = (exclusive(1), with_ttl(&shared(2), 2 * LONG));
    acquire(bench, &writer)?;
    bench.advance(&[keys()], 10_000);
    equal("the downgrade", &send(bench, &writer, 0), &Value::Int(1))?;
    near("the TTL", ttl(bench, &keys().lock), LONG - 10_000)?;
    acquire(bench, &other)?;
    equal("the repetition", &send(bench, &writer, 0), &Value::Int(1))?;
    near("the TTL of both", ttl(bench, &keys().lock), 2 * LONG)?;
    bench.advance(&[keys()], LONG - 9_999);
    equal("after its end", &send(bench, &writer, 0), &Value::Int(0))?;
    holds(bench, &other, true)?;
    release(bench, &other)
}

fn no_ghost(bench: &mut Bench) -> Verdict {
    let writer = exclusive(1);
    acquire(bench, &writer)?;
    release(bench, &writer)?;
    equal("on a free lock", &send(bench, &writer, LONG), &Value::Int(0))?;
    nothing_left(bench)
}

fn only_its_own(bench: &mut Bench) -> Verdict {
    let (writer, other) = (exclusive(1), shared(2));
    acquire(bench, &writer)?;
    downgrade(bench, &writer)?;
    acquire(bench, &other)?;
    equal("the release", &release_unsure(bench, &writer), &Value::Int(1))?;
    holds(bench, &other, true)?;
    equal("the pushes", &messages(bench), &Vec::<String>::new())?;
    release(bench, &other)?;
    nothing_left(bench)
}

fn token_deleted(bench: &mut Bench) -> Verdict {
    for text in [None, Some("0q")] {
        let writer = exclusive(1);
        let token = acquire(bench, &writer)?;
        bench.call(&["DEL", &keys().token]);
        if let Some(text) = text {
            bench.call(&["SET", &keys().token, text]);
        }
        downgrade(bench, &writer)?;
        let state = bench.state(&keys())?;
        ensure(state.last_token > Some(token), || format!("{:?}", state.last_token))?;
        release(bench, &reader_of(&writer))?;
    }
    Ok(())
}

fn out_of_memory(bench: &mut Bench) -> Verdict {
    let writer = exclusive(1);
    acquire(bench, &writer)?;
    for _ in 0..2 {
        bench.advance(&[keys()], 10_000);
        bench.call(&["CONFIG", "SET", "maxmemory", "1"]);
        downgrade(bench, &writer)?;
        bench.call(&["CONFIG", "SET", "maxmemory", "0"]);
    }
    near("the TTL", ttl(bench, &keys().lock), LONG)?;
    let state = bench.state(&keys())?;
    let end = state.holders.get(&reader_of(&writer).text).map_or(0, |holder| holder.expiry);
    near("the reader's end", end, state.now() + LONG)?;
    release(bench, &reader_of(&writer))?;
    nothing_left(bench)
}
