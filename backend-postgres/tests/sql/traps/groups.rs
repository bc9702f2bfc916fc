//! Readers, permits, and writers that become readers.

use super::*;

pub(super) const TRAPS: &[Trap] = &[
    ("modes exclude each other", modes),
    ("a long run of readers is continued", long_run),
    ("a downgrade of what is not held is none", not_held),
];

fn modes(bench: &mut Bench) -> Verdict {
    let all = |n| [Claim::exclusive(n), Claim::shared(n), Claim::permits(n, 1, 2)];
    for (i, first) in all(1).iter().enumerate() {
        for (j, second) in all(2).iter().enumerate() {
            bench.reset();
            bench.acquire(first)?;
            let token = bench.try_once(second)?;
            equal("whether both hold", &(token > 0), &(i == j && i > 0))?;
        }
    }
    Ok(())
}

fn long_run(bench: &mut Bench) -> Verdict {
    bench.acquire(&Claim::exclusive(1))?;
    for n in 0..70 {
        bench.queue(&Claim::shared(100 + n))?;
    }
    bench.release(&Claim::exclusive(1))?;
    equal("those of one hand-off", &bench.state()?.lock(b"lock").grants().len(), &64)?;
    bench.acquire(&Claim::shared(100))?;
    equal("those of two", &bench.state()?.lock(b"lock").grants().len(), &70)
}

fn becomes_reader(bench: &mut Bench, claim: &Claim, ttl: i64) -> Result<i64, String> {
    bench.number(&Call::Downgrade(claim.clone(), ttl))
}

fn not_held(bench: &mut Bench) -> Verdict {
    let (first, second) = (Claim::exclusive(1).ttl(SECOND), Claim::exclusive(2));
    equal("without a lock", &becomes_reader(bench, &first, LONG)?, &0)?;
    bench.acquire(&first)?;
    bench.queue(&second)?;
    equal("of a waiter", &becomes_reader(bench, &second, LONG)?, &0)?;
    bench.release(&first)?;
    equal("of an unconfirmed one", &becomes_reader(bench, &second, LONG)?, &0)?;
    equal("of a former holder", &becomes_reader(bench, &first, LONG)?, &0)?;
    bench.release(&second)?;
    bench.acquire(&first)?;
    bench.advance(SECOND);
    equal("of an ended one", &becomes_reader(bench, &first, LONG)?, &0)?;
    bench.reset();
    bench.acquire(&Claim::permits(3, 1, 1))?;
    equal("of a permit", &becomes_reader(bench, &Claim::permits(3, 1, 1), LONG)?, &0)
}
