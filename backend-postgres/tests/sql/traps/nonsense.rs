//! Arguments that no driver of ours sends.

use super::*;

pub(super) const TRAPS: &[Trap] = &[
    ("a claim of nonsense is refused", nonsense),
    ("the largest numbers overflow nothing", largest),
    ("nothing is done for a NULL", nulls),
    ("arrays of different lengths are no steps", lengths),
];

fn nonsense(bench: &mut Bench) -> Verdict {
    let good = Claim::permits(1, 1, 1);
    let all = [
        Claim { mode: 'y', ..good.clone() },
        Claim { n: 0, ..good.clone() },
        Claim { n: 2, ..good.clone() },
        Claim { n: 2, limit: 2, ..Claim::shared(4) },
        Claim { ttl: 0, ..good.clone() },
        Claim { process: String::new(), ..good.clone() },
        Claim { process: "p".repeat(64), ..good.clone() },
        Claim { process: "p".repeat(64), ..Claim::exclusive(3) },
        Claim { tokens: 0, ..good },
        Claim { tokens: 0, ..Claim::exclusive(2) },
    ];
    all.iter().try_for_each(|claim| fails("23514", &bench.attempt(claim)))
}

fn largest(bench: &mut Bench) -> Verdict {
    const MOST: i64 = i64::MAX;
    let [first, second] = [1, 2].map(|n| Claim::permits(n, MOST, MOST));
    bench.acquire(&first)?;
    equal("a try beside it", &bench.try_once(&Claim::permits(3, 1, MOST))?, &0)?;
    bench.queue(&second)?;
    bench.queue(&Claim::permits(3, 1, 1))?;
    bench.look(&second, &[])?;
    bench.release(&first)?;
    bench.acquire(&second)?;
    bench.release(&second)?;
    bench.acquire(&Claim::permits(3, 1, 1)).map(drop)
}

fn nulls(bench: &mut Bench) -> Verdict {
    let holder = Claim::shared(1);
    let token = bench.acquire(&holder)?;
    bench.queue(&Claim::exclusive(2))?;
    let free = Claim::exclusive(3).key(b"free");
    bench.acquire(&free)?;
    bench.release(&free)?;
    let before = bench.state()?;
    let owner = holder.owner;
    let calls = [
        "attempt_1('lock', NULL, 'x', 1, 1, 9, 'p', '', true, 1, true)".to_owned(),
        "release_1('lock', NULL)".to_owned(),
        "downgrade_1('lock', NULL, 9)".to_owned(),
        format!(
            "renew_1(ARRAY['lock', NULL]::bytea[], ARRAY[NULL, '{owner}']::uuid[], ARRAY[9, 9], true)"
        ),
        "look_1(NULL, ARRAY['lock']::bytea[], '{}')".to_owned(),
        "evict_1('lock', NULL)".to_owned(),
        "clear_1(NULL)".to_owned(),
        steps("'r'", "'lock'", "NULL"),
        steps("'a'", "'lock'", "NULL"),
    ];
    for call in calls {
        bench.main.run(&format!("SELECT * FROM {call}")).map_err(|why| format!("{call}: {why}"))?;
        equal(&call, &bench.state()?, &before)?;
    }
    // It would pass, and then end the connection.
    fails("22004", &bench.main.run(&format!("SELECT check_token('lock', {token}, NULL)")))?;
    let sql = format!("SELECT reply FROM {}", steps("'r'", "'lock'", "NULL"));
    let reply = bench.main.query(&sql, &[])?;
    equal("a release of no owner", &reply[0].get::<_, Option<i64>>(0), &None)?;
    for missing in 1..ATTEMPT.len() {
        let step = attempt_without(missing);
        let reply = bench.main.query(&format!("SELECT reply FROM {step}"), &[])?;
        equal(&step, &reply[0].get::<_, Option<i64>>(0), &None)?;
        equal(&step, &bench.state()?, &before)?;
    }
    // The checks of users must not pass.
    fails("FL001", &bench.main.run("SELECT check_token(NULL, 1, 1000)"))?;
    fails("FL001", &bench.main.run("SELECT check_token('lock', NULL, 1000)"))?;
    fails("23502", &bench.main.run("SELECT fence('stock', NULL)"))?;
    fails("23502", &bench.main.run("SELECT fence(NULL, 1)"))
}

/// The arguments of a batch with one attempt, for a lock with a row.
const ATTEMPT: [&str; 10] = [
    "'a'",
    "'free'",
    "'00000000-0000-4000-8000-000000000004'",
    "'x'",
    "1",
    "1",
    "9",
    "''",
    "true",
    "1",
];

/// That batch, with NULL for an argument.
fn attempt_without(argument: usize) -> String {
    let mut arguments = ATTEMPT;
    arguments[argument] = "NULL";
    batch(arguments)
}

/// That batch, with other steps.
fn steps(steps: &str, keys: &str, owners: &str) -> String {
    let mut arguments = ATTEMPT;
    arguments[..3].copy_from_slice(&[steps, keys, owners]);
    batch(arguments)
}

/// A batch with these elements of its arrays.
fn batch(arguments: [&str; 10]) -> String {
    const TYPES: [&str; 10] = [
        "\"char\"", "bytea", "uuid", "\"char\"", "bigint", "bigint", "bigint", "bytea", "boolean",
        "int",
    ];
    let arrays = arguments.iter().zip(TYPES).map(|(of, kind)| format!("ARRAY[{of}]::{kind}[], "));
    format!("batch_1({}'p')", arrays.collect::<String>())
}

fn lengths(bench: &mut Bench) -> Verdict {
    let holder = Claim::exclusive(1);
    bench.acquire(&holder)?;
    let owner = holder.owner;
    // The second would be a release.
    let longer = steps("'a'", "'other', 'lock'", &format!("gen_random_uuid(), '{owner}'"));
    fails("20000", &bench.main.run(&format!("SELECT * FROM {longer}")))?;
    let unknown = steps("'z'", "'lock'", &format!("'{owner}'"));
    fails("20000", &bench.main.run(&format!("SELECT * FROM {unknown}")))?;
    ensure(bench.renews(&holder)?, || "released".into())
}
