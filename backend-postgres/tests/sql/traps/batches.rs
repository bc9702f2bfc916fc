//! Several steps in one call.

use super::*;

pub(super) const TRAPS: &[Trap] = &[
    ("steps of one lock are in the order given", order),
    ("a batch waits for no other step", impatient),
    ("a batch waits for no renewal, and keeps no busy row", busy),
    ("a batch's grants are those of attempts", grants),
    ("a batch's grant does not wait for, nor pass, a guarded transaction", guarded),
    ("a renewal of several locks does not wait", impatient_renewal),
    ("a batch's release does not wait for a renewal of a reader", renewal),
    ("a batch takes keys in order", sorted),
    ("a renewal takes keys in order", sorted_renewal),
];

fn attempt(claim: &Claim) -> Step {
    Step::Attempt { claim: claim.clone(), queue: true }
}

fn batch(bench: &mut Bench, steps: &[Step]) -> Result<Vec<i64>, String> {
    let (reply, ..) = bench.call(&Call::Batch(steps.to_vec()))?;
    Ok(reply.steps)
}

fn order(bench: &mut Bench) -> Verdict {
    let (first, second) = (Claim::exclusive(1), Claim::exclusive(2));
    bench.acquire(&first)?;
    let steps = [Step::Release(first.clone()), attempt(&second)];
    equal("a release and an attempt", &batch(bench, &steps)?, &vec![1, START + 1])?;
    let steps = [attempt(&first), Step::Release(second.clone()), attempt(&first)];
    equal("between two attempts", &batch(bench, &steps)?, &vec![-1000, 1, START + 2])?;
    let steps = [Step::Release(first.clone()), Step::Release(first)];
    equal("a release, repeated", &batch(bench, &steps)?, &vec![1, 0])
}

fn impatient(bench: &mut Bench) -> Verdict {
    let of = |n, key: &[u8]| Claim::exclusive(n).key(key);
    let reader = Claim::shared(6).key(b"b");
    for n in 1..4 {
        bench.acquire(&of(n, &[b'a' + u8::try_from(n).unwrap()]))?;
    }
    bench.other.run("BEGIN; SELECT FROM locks WHERE key IN ('b', 'c') FOR NO KEY UPDATE")?;
    let steps = [
        attempt(&of(5, b"b")),
        attempt(&reader),
        Step::Release(of(2, b"c")),
        Step::Release(of(3, b"d")),
        attempt(&of(8, b"e")),
    ];
    equal("the replies", &batch(bench, &steps)?, &vec![-2, -2, -2, 1, START])?;
    bench.other.run("COMMIT")?;
    equal("the replies afterwards", &batch(bench, &steps)?, &vec![-1000, -1000, 1, 0, START])
}

fn busy(bench: &mut Bench) -> Verdict {
    let (holder, next) = (Claim::exclusive(1).ttl(SECOND), Claim::exclusive(2));
    bench.acquire(&holder)?;
    bench.other.run("BEGIN; UPDATE locks SET until = until + 1")?;
    equal("during a renewal", &batch(bench, &[attempt(&next)])?, &vec![-2])?;
    bench.other.run("COMMIT")?;
    // In a transaction that goes on for a while, as one that waits for the disk.
    bench.main.run("BEGIN")?;
    equal("of a busy lock", &batch(bench, &[attempt(&next)])?, &vec![-1000])?;
    bench.other.run(&soon(&check(&holder, START)))?;
    bench.main.run("COMMIT")
}

fn grants(bench: &mut Bench) -> Verdict {
    let claim = Claim::exclusive(1).ttl(SECOND).tokens(3);
    let first = |bench: &mut Bench, claim: &Claim| batch(bench, &[attempt(claim)]);
    // The first makes the row.
    equal("the first token", &first(bench, &claim)?, &vec![START])?;
    equal("a repetition's", &first(bench, &claim)?, &vec![START])?;
    equal("a release", &batch(bench, &[Step::Release(claim.clone())])?, &vec![1])?;
    equal("a release, repeated", &batch(bench, &[Step::Release(claim.clone())])?, &vec![0])?;
    equal("the next token, while the clock stands", &first(bench, &claim)?, &vec![START + 3])?;
    equal(
        "a busy lock",
        &batch(bench, &[Step::Attempt { claim: Claim::exclusive(2), queue: false }])?,
        &vec![0],
    )?;
    bench.advance(SECOND - 1);
    equal(
        "before the end",
        &batch(bench, &[Step::Attempt { claim: Claim::exclusive(2), queue: false }])?,
        &vec![0],
    )?;
    bench.advance(1);
    // Of the same claim it is the same grant, as long as no other has been granted.
    equal("after the end", &first(bench, &claim)?, &vec![START + 3])?;
    bench.advance(SECOND);
    let next = Claim::exclusive(2).tokens(2);
    let token = bench.now();
    equal("another's after the end", &first(bench, &next)?, &vec![token])?;
    equal("another's release", &batch(bench, &[Step::Release(claim.clone())])?, &vec![0])?;
    bench.queue(&Claim::shared(3))?;
    let steps = [Step::Release(next.clone())];
    equal("a release with a waiter", &batch(bench, &steps)?, &vec![1])?;
    equal("the reader", &bench.acquire(&Claim::shared(3))?, &(token + 2))?;
    bench.release(&Claim::shared(3))?;
    equal("a reader", &first(bench, &Claim::shared(4))?, &vec![token + 3])?;
    equal("another reader", &first(bench, &Claim::shared(5))?, &vec![token + 4])?;
    for wrong in [
        Claim::exclusive(6).ttl(0),
        Claim::exclusive(6).tokens(0),
        Claim { process: String::new(), ..Claim::exclusive(6) },
    ] {
        bench.release(&Claim::shared(4))?;
        bench.release(&Claim::shared(5))?;
        fails("23514", &first(bench, &wrong))?;
    }
    Ok(())
}

fn guarded(bench: &mut Bench) -> Verdict {
    let (first, next) = (Claim::exclusive(1).ttl(SECOND), Claim::exclusive(2));
    let token = bench.acquire(&first)?;
    begins_with_check(bench, &first, token)?;
    bench.advance(2 * SECOND);
    equal(
        "of another",
        &batch(bench, &[Step::Attempt { claim: next.clone(), queue: false }])?,
        &vec![0],
    )?;
    bench.other.run("COMMIT")?;
    bench.main.run("BEGIN")?;
    equal("afterwards", &batch(bench, &[attempt(&next)])?, &vec![bench.now()])?;
    // Not before it is known whether the grant is committed.
    fails("55P03", &bench.other.run(&soon(&check(&Claim::exclusive(1), token))))?;
    bench.other.run("ROLLBACK")?;
    bench.main.run("COMMIT")
}

/// In a transaction that waits for no row, or hardly.
fn soon(sql: &str) -> String {
    format!("BEGIN; SET LOCAL lock_timeout = '300ms'; {sql}; COMMIT")
}

fn impatient_renewal(bench: &mut Bench) -> Verdict {
    for claims in [[1, 2].map(Claim::exclusive), [1, 2].map(Claim::shared)] {
        bench.reset();
        let [first, second] = claims;
        let second = second.key(b"other");
        bench.acquire(&first)?;
        bench.acquire(&second)?;
        let lock = "BEGIN; SELECT FROM locks WHERE key = 'lock' FOR UPDATE;
          SELECT FROM claims WHERE key = 'lock' FOR UPDATE";
        bench.other.run(lock)?;
        let owners = format!("'{}', '{}'", first.owner, second.owner);
        let renew = format!(
            "SELECT owner, is_held FROM renew_1('{{lock,other}}', ARRAY[{owners}]::uuid[], '{{9,9}}', false)
             ORDER BY is_held"
        );
        let rows = bench.main.query(&renew, &[])?;
        let replies: Vec<(Uuid, bool)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        equal("the replies", &replies, &vec![(first.owner, false), (second.owner, true)])?;
        bench.other.run("COMMIT")?;
    }
    Ok(())
}

fn renewal(bench: &mut Bench) -> Verdict {
    let reader = Claim::shared(1);
    bench.acquire(&reader)?;
    bench.other.run("BEGIN; UPDATE claims SET until = until + 1")?;
    let steps = [Step::Release(reader.clone())];
    equal("during a renewal", &batch(bench, &steps)?, &vec![-2])?;
    bench.other.run("COMMIT")?;
    let token = START;
    begins_with_check(bench, &reader, token)?;
    equal("during a guarded transaction", &batch(bench, &steps)?, &vec![1])?;
    bench.other.run("COMMIT")
}

fn sorted(bench: &mut Bench) -> Verdict {
    let steps = [b"c", b"a", b"b"].map(|key| attempt(&Claim::exclusive(1).key(key)));
    batch(bench, &steps)?;
    let rows = bench.main.query("SELECT key FROM locks ORDER BY ctid", &[])?;
    let keys: Vec<Vec<u8>> = rows.iter().map(|row| row.get(0)).collect();
    equal("the order of the rows", &keys, &[b"a", b"b", b"c"].map(|key| key.to_vec()).into())
}

fn sorted_renewal(bench: &mut Bench) -> Verdict {
    let of = |key: &[u8]| Claim::exclusive(1).key(key);
    bench.acquire(&of(b"a"))?;
    bench.acquire(&of(b"b"))?;
    bench.other.run("BEGIN; SELECT FROM locks WHERE key = 'b' FOR UPDATE")?;
    let owner = of(b"a").owner;
    let waits = bench.main.start(&format!(
        "SELECT renew_1(ARRAY['b', 'a']::bytea[], ARRAY['{owner}', '{owner}']::uuid[], ARRAY[9, 9], true)"
    ));
    bench.until_it_waits(bench.main_pid)?;
    let free =
        bench.third.query("SELECT FROM locks WHERE key = 'a' FOR UPDATE SKIP LOCKED", &[])?;
    bench.other.run("COMMIT")?;
    bench.main.join(waits)?;
    ensure(free.is_empty(), || "the second key was locked first".into())
}
