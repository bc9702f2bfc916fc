//! Readers, permits, and writers that become readers.

use super::*;

pub(super) const TRAPS: &[Trap] = &[
    ("modes exclude each other", modes),
    ("permits are counted, at each claim's own limit", permits),
    ("a permit that ended or was released is counted no longer", returned),
    ("a run of readers ends at a writer", run_of_readers),
    ("a long run of readers is continued", long_run),
    ("a member that ended while its reply was late extends", late_member),
    ("a writer becomes a reader, and readers join it", downgrade),
    ("a downgrade is repeated", repeated),
    ("a downgrade of what is not held is none", not_held),
    ("a downgraded hold is released, renewed and checked", downgraded),
    ("a downgrade does not let a waiting writer in", writer_behind),
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

fn permits(bench: &mut Bench) -> Verdict {
    bench.acquire(&Claim::permits(1, 2, 3))?;
    equal("two more of 3", &bench.try_once(&Claim::permits(2, 2, 3))?, &0)?;
    bench.acquire(&Claim::permits(3, 1, 3))?;
    equal("one more of 3", &bench.try_once(&Claim::permits(4, 1, 3))?, &0)?;
    bench.acquire(&Claim::permits(5, 2, 5))?;
    equal("one more of 5", &bench.try_once(&Claim::permits(6, 1, 5))?, &0)
}

fn returned(bench: &mut Bench) -> Verdict {
    let (first, second, third) =
        (Claim::permits(1, 2, 3).ttl(SECOND), Claim::permits(2, 1, 3), Claim::permits(3, 2, 3));
    bench.acquire(&first)?;
    bench.acquire(&second)?;
    bench.queue(&third)?;
    bench.advance(SECOND - 1);
    bench.queue(&third)?;
    bench.advance(1);
    bench.acquire(&third)?;
    bench.queue(&Claim::permits(4, 3, 3))?;
    bench.release(&second)?;
    bench.queue(&Claim::permits(4, 3, 3))?;
    bench.release(&third)?;
    bench.acquire(&Claim::permits(4, 3, 3)).map(drop)
}

fn run_of_readers(bench: &mut Bench) -> Verdict {
    bench.acquire(&Claim::exclusive(1))?;
    for claim in [Claim::shared(2), Claim::shared(3), Claim::exclusive(4), Claim::shared(5)] {
        bench.queue(&claim)?;
    }
    bench.release(&Claim::exclusive(1))?;
    let grants = bench.state()?.lock(b"lock").grants();
    let owners: Vec<_> = grants.iter().map(|grant| grant.owner.as_u128()).collect();
    equal("the readers", &owners, &vec![2, 3])
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

fn late_member(bench: &mut Bench) -> Verdict {
    let reader = Claim::shared(1).ttl(SECOND);
    let token = bench.acquire(&reader)?;
    bench.advance(2 * SECOND);
    equal("the token", &bench.acquire(&reader)?, &token)?;
    equal("a writer's try", &bench.try_once(&Claim::exclusive(2))?, &0)
}

fn becomes_reader(bench: &mut Bench, claim: &Claim, ttl: i64) -> Result<i64, String> {
    bench.number(&Call::Downgrade(claim.clone(), ttl))
}

fn downgrade(bench: &mut Bench) -> Verdict {
    let writer = Claim::exclusive(1).tokens(4);
    let token = bench.acquire(&writer)?;
    for claim in [Claim::shared(2), Claim::shared(3), Claim::exclusive(4), Claim::shared(5)] {
        bench.queue(&claim)?;
    }
    bench.advance(SECOND);
    let (reply, notes, state) = bench.call(&Call::Downgrade(writer.clone(), LONG))?;
    equal("the reply", &reply.number, &1)?;
    equal("the notifications", &notes.len(), &2)?;
    let grants = state.lock(b"lock").grants();
    let owners: Vec<_> = grants.iter().map(|grant| (grant.owner.as_u128(), grant.mode)).collect();
    equal("the readers", &owners, &vec![(1, 's'), (2, 's'), (3, 's')])?;
    equal("the tokens", &(grants[0].first, grants[0].last), &(token, token + 3))?;
    equal("the end", &grants[0].until, &(bench.now() + LONG))
}

fn repeated(bench: &mut Bench) -> Verdict {
    let writer = Claim::exclusive(1);
    bench.acquire(&writer)?;
    equal("the first", &becomes_reader(bench, &writer, 0)?, &1)?;
    let until = |bench: &Bench| -> Result<i64, String> {
        let grant = bench.state()?.lock(b"lock").grant(Uuid::from_u128(1));
        Ok(grant.ok_or("it is gone")?.until)
    };
    equal("the end, kept", &until(bench)?, &(START + LONG))?;
    bench.advance(SECOND);
    equal("the second", &becomes_reader(bench, &writer, 0)?, &1)?;
    equal("the end, kept again", &until(bench)?, &(START + LONG))?;
    equal("the third", &becomes_reader(bench, &writer, LONG)?, &1)?;
    equal("the end, extended", &until(bench)?, &(bench.now() + LONG))?;
    equal("a reader's", &bench.acquire(&Claim::shared(2)).map(|_| ()), &Ok(()))?;
    let reader = Claim::shared(2);
    equal("the reader's own", &becomes_reader(bench, &reader, 0)?, &1)
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

fn downgraded(bench: &mut Bench) -> Verdict {
    let writer = Claim::exclusive(1).tokens(2);
    let token = bench.acquire(&writer)?;
    becomes_reader(bench, &writer, LONG)?;
    bench.acquire(&Claim::shared(2))?;
    ensure(bench.renews(&writer)?, || "not renewed".into())?;
    bench.main.run(&check(&writer, token))?;
    bench.main.run(&check(&writer, token + 1))?;
    fails("FL001", &bench.main.run(&check(&writer, token - 1)))?;
    equal("its release", &bench.release(&writer)?, &1)?;
    equal("its second release", &bench.release(&writer)?, &0)?;
    fails("FL001", &bench.main.run(&check(&writer, token)))?;
    equal("a writer's try", &bench.try_once(&Claim::exclusive(3))?, &0)?;
    bench.release(&Claim::shared(2))?;
    bench.acquire(&Claim::exclusive(3)).map(drop)
}

fn writer_behind(bench: &mut Bench) -> Verdict {
    let writer = Claim::exclusive(1);
    bench.acquire(&writer)?;
    bench.queue(&Claim::exclusive(2))?;
    bench.queue(&Claim::shared(3))?;
    becomes_reader(bench, &writer, LONG)?;
    bench.queue(&Claim::exclusive(2))?;
    bench.queue(&Claim::shared(3))?;
    bench.release(&writer)?;
    bench.acquire(&Claim::exclusive(2)).map(drop)
}
