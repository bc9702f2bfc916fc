//! Which steps wait for the disk: as their transactions say before they end.

use super::*;

pub(super) const TRAPS: &[Trap] = &[
    ("a grant waits for the disk, whatever the default is", grants),
    ("a step that may be lost does not wait", others),
    ("a batch waits if one of its steps granted", batches),
    ("a check changes nothing of the user's transaction", checks),
];

/// What synchronous_commit is at the end of a step's transaction.
fn after(
    bench: &mut Bench,
    default: &str,
    call: impl Fn(&mut Bench) -> Verdict,
) -> Result<String, String> {
    bench.main.run(&format!("BEGIN; SET LOCAL synchronous_commit = '{default}'"))?;
    let done = call(bench);
    let rows = bench.main.query("SELECT current_setting('synchronous_commit')", &[]);
    bench.main.run("COMMIT")?;
    done?;
    Ok(rows?[0].get(0))
}

fn expect(
    bench: &mut Bench,
    step: &str,
    expected: [(&str, &str); 3],
    call: impl Fn(&mut Bench) -> Verdict,
) -> Verdict {
    for (default, expected) in expected {
        let is = after(bench, default, &call)?;
        equal(&format!("synchronous_commit, from {default}, of {step}"), &is.as_str(), &expected)?;
    }
    Ok(())
}

const KEPT: [(&str, &str); 3] = [("off", "on"), ("on", "on"), ("remote_write", "remote_write")];
const OFF: [(&str, &str); 3] = [("off", "off"), ("on", "off"), ("remote_write", "off")];

fn grants(bench: &mut Bench) -> Verdict {
    for claim in [Claim::exclusive(1), Claim::shared(1), Claim::permits(1, 1, 1)] {
        bench.reset();
        expect(bench, "a grant", KEPT, |bench| bench.acquire(&claim).map(drop))?;
        expect(bench, "a renewal", KEPT, |bench| bench.renews(&claim).map(drop))?;
        bench.queue(&Claim::exclusive(2))?;
        bench.release(&claim)?;
        expect(bench, "a confirmation", KEPT, |bench| {
            bench.acquire(&Claim::exclusive(2)).map(drop)
        })?;
    }
    expect(bench, "a downgrade", KEPT, |bench| {
        equal("the reply", &bench.number(&Call::Downgrade(Claim::exclusive(2), LONG))?, &1)
    })?;
    expect(bench, "a cell", KEPT, |bench| {
        let sql = "SELECT swap_cell_1('cell', stamp, gen_random_uuid(), '', 0) FROM
          (SELECT (SELECT stamp FROM read_cell_1('cell'))) c";
        bench.main.query(sql, &[]).map(drop)
    })
}

fn others(bench: &mut Bench) -> Verdict {
    let first = Claim::exclusive(1);
    bench.acquire(&first)?;
    expect(bench, "a waiter", OFF, |bench| bench.queue(&Claim::exclusive(2)))?;
    expect(bench, "a busy one", OFF, |bench| bench.try_once(&Claim::shared(3)).map(drop))
        .or_else(|why| if why.contains("from on") { Ok(()) } else { Err(why) })?;
    expect(bench, "a look", OFF, |bench| bench.look(&Claim::exclusive(2), &[]).map(drop))?;
    expect(bench, "a release", OFF, |bench| bench.release(&first).map(drop))?;
    expect(bench, "a release without waiters", OFF, |bench| {
        bench.release(&Claim::exclusive(2)).map(drop)
    })?;
    expect(bench, "an eviction", OFF, |bench| {
        let token = bench.acquire(&first)?;
        let id = format!("h{token}");
        equal("the reply", &bench.number(&Call::Evict { key: key(), id })?, &1)
    })
}

fn batches(bench: &mut Bench) -> Verdict {
    let (first, second) = (Claim::exclusive(1), Claim::exclusive(2));
    let of = |claim: &Claim| Step::Attempt { claim: claim.clone(), queue: true };
    let mixed = [of(&first.clone().key(b"a")), of(&second), Step::Release(first.clone().key(b"z"))];
    bench.acquire(&first)?;
    expect(bench, "a batch with a grant", KEPT, |bench| {
        bench.call(&Call::Batch(mixed.to_vec())).map(drop)
    })?;
    let none = [of(&second), Step::Release(first.key(b"z"))];
    expect(bench, "a batch without", OFF, |bench| bench.call(&Call::Batch(none.to_vec())).map(drop))
}

fn checks(bench: &mut Bench) -> Verdict {
    let claim = Claim::exclusive(1);
    let token = bench.acquire(&claim)?;
    let same = ["off", "on", "remote_write"].map(|default| (default, default));
    expect(bench, "a check", same, |bench| bench.main.run(&check(&claim, token)))?;
    expect(bench, "a fence", same, |bench| bench.main.run("SELECT fence('stock', 1)"))
}
