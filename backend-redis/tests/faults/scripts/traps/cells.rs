//! Cells: compared by their stamps, and never taken from another program.

use super::*;

pub(super) const TRAPS: &[Trap] = &[
    ("a swap from another stamp changes nothing", other_stamps),
    ("a repeated swap is made once", repeated),
    ("a content that comes back is not the stamp", same_content),
    ("the last swap says how long a cell is kept", kept),
    ("a cell of another program is refused and left", foreign),
    ("out of memory, a swap is refused and a removal made", out_of_memory),
    ("a rewritten cell is as it was, and was written", rewritten),
];

const C: &str = "{lock}:c";
const NONE: &str = "";
const FOREVER: &str = "0";
/// Stamps.
const A: &str = "stamp of write a";
const B: &str = "stamp of write b";
const D: &str = "stamp of write d";

/// A stamp with its content.
fn with(stamp: &str, content: &str) -> String {
    [stamp, content].concat()
}

fn swaps(bench: &mut Bench, from: &str, to: &str, expected: i64) -> Verdict {
    let answer = bench.swap(C, from, to, FOREVER);
    equal(&format!("the swap of {from:?} to {to:?}"), &answer, &Value::Int(expected))
}

fn there(bench: &mut Bench, expected: &str) -> Verdict {
    equal("the cell", &bench.call(&["GET", C]).text(), &Some(expected))
}

fn nothing(bench: &mut Bench) -> Verdict {
    equal("the keys", &bench.call(&["DBSIZE"]), &Value::Int(0))
}

fn other_stamps(bench: &mut Bench) -> Verdict {
    swaps(bench, A, &with(B, "b"), 0)?;
    swaps(bench, A, NONE, 0)?;
    nothing(bench)?;
    swaps(bench, NONE, &with(A, "a"), 1)?;
    for from in [B, NONE] {
        swaps(bench, from, &with(D, "d"), 0)?;
    }
    swaps(bench, B, NONE, 0)?;
    there(bench, &with(A, "a"))?;
    // An empty content is one.
    swaps(bench, A, B, 1)?;
    there(bench, B)
}

fn repeated(bench: &mut Bench) -> Verdict {
    for _ in 0..3 {
        swaps(bench, NONE, &with(A, "a"), 1)?;
    }
    for _ in 0..3 {
        swaps(bench, A, &with(B, "b"), 1)?;
    }
    // It is not written again, so that its time is not extended either.
    swaps(bench, B, NONE, 1)?;
    equal("the swap", &bench.swap(C, NONE, &with(A, "a"), "30000"), &Value::Int(1))?;
    bench.call(&["PEXPIRE", C, "10000"]);
    equal("the swap", &bench.swap(C, NONE, &with(A, "a"), "30000"), &Value::Int(1))?;
    near("the TTL", ttl(bench, C), 10_000)
}

fn same_content(bench: &mut Bench) -> Verdict {
    swaps(bench, NONE, &with(A, "same"), 1)?;
    swaps(bench, A, &with(B, "same"), 1)?;
    swaps(bench, A, &with(D, "same"), 0)?;
    there(bench, &with(B, "same"))
}

fn kept(bench: &mut Bench) -> Verdict {
    let mut from = NONE;
    for (stamp, keep, expected) in
        [(A, "30000", LONG), (B, "10000", 10_000), (D, FOREVER, -1), (A, "4611686018427387903", 0)]
    {
        let answer = bench.swap(C, from, &with(stamp, "x"), keep);
        equal("the swap", &answer, &Value::Int(1))?;
        match expected {
            -1 => equal("the TTL", &ttl(bench, C), &-1)?,
            // For ages.
            0 => ensure(ttl(bench, C) > i64::MAX / 4, || "it ends too soon".into())?,
            _ => near("the TTL", ttl(bench, C), expected)?,
        }
        from = stamp;
    }
    Ok(())
}

fn foreign(bench: &mut Bench) -> Verdict {
    let put: [&[&str]; 7] = [
        &["SET", C, ""],
        &["SET", C, "short"],
        &["SET", C, "fifteen letters"],
        &["RPUSH", C, "a"],
        &["HSET", C, "a", "b"],
        &["ZADD", C, "1", "a"],
        &["XADD", C, "1-1", "a", "b"],
    ];
    for put in put {
        bench.call(&["DEL", C]);
        bench.call(put);
        let dump = bench.call(&["DUMP", C]);
        for (from, to) in
            [(NONE, with(A, "a")), (A, with(B, "b")), (A, NONE.into()), ("short", A.into())]
        {
            let answer = bench.swap(C, from, &to, FOREVER);
            let is_known = |text: &str| {
                text.contains("WRONGTYPE")
                    || text.contains("fencelock: {lock}:c is the text of another program")
            };
            ensure(answer.error().is_some_and(is_known), || format!("{put:?}: {answer:?}"))?;
        }
        equal("the key", &bench.call(&["DUMP", C]), &dump)?;
    }
    Ok(())
}

fn out_of_memory(bench: &mut Bench) -> Verdict {
    swaps(bench, NONE, &with(A, "a"), 1)?;
    bench.call(&["CONFIG", "SET", "maxmemory", "1"]);
    for from in [A, B] {
        let answer = bench.swap(C, from, &with(D, "d"), FOREVER);
        let is_refused = answer.error().is_some_and(|error| error.contains("OOM"));
        ensure(is_refused == (from == A), || format!("from {from:?}: {answer:?}"))?;
    }
    there(bench, &with(A, "a"))?;
    rewrite(bench, &Value::Text(with(A, "a")))?;
    swaps(bench, A, NONE, 1)?;
    rewrite(bench, &Value::Nil)?;
    nothing(bench)
}

/// Rewrites the cell, which must be `expected`, and be written.
fn rewrite(bench: &mut Bench, expected: &Value) -> Verdict {
    let digest = bench.digest("rewrite");
    let changes = |bench: &mut Bench| {
        let info = bench.call(&["INFO", "persistence"]);
        let line = info.text().and_then(|info| {
            info.lines().find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"))
        });
        line.map(|count| count.trim().parse::<i64>().unwrap())
    };
    let before = changes(bench);
    let answer = bench.call(&["EVALSHA", &digest, "1", C]);
    equal("the cell", &answer, expected)?;
    // As a write of the script: that is what replicas get, and WAIT waits for.
    let after = changes(bench);
    ensure(after > before, || format!("{before:?}, then {after:?} changes"))?;
    equal("the cell after it", &bench.call(&["GET", C]), expected)
}

fn rewritten(bench: &mut Bench) -> Verdict {
    rewrite(bench, &Value::Nil)?;
    nothing(bench)?;
    swaps(bench, NONE, &with(A, "a"), 1)?;
    rewrite(bench, &Value::Text(with(A, "a")))?;
    equal("the TTL", &ttl(bench, C), &-1)?;
    bench.call(&["PEXPIRE", C, "30000"]);
    rewrite(bench, &Value::Text(with(A, "a")))?;
    near("the TTL", ttl(bench, C), LONG)?;
    bench.call(&["DEL", C]);
    bench.call(&["RPUSH", C, "a"]);
    let digest = bench.digest("rewrite");
    let answer = bench.call(&["EVALSHA", &digest, "1", C]);
    ensure(answer.error().is_some_and(|text| text.contains("WRONGTYPE")), || {
        format!("{answer:?}")
    })?;
    equal("the list", &bench.call(&["LLEN", C]), &Value::Int(1))
}
