//! Which steps wait for the disk: as their transactions say before they end.

use super::*;

pub(super) const TRAPS: &[Trap] = &[
    ("a grant waits for the disk, whatever the default is", grants),
    ("a step that may be lost does not wait", others),
    ("a batch waits if one of its steps granted", batches),
    ("a step that notifies does not wait, and what it granted is repeated", notifying),
    ("a check changes nothing of the user's transaction", checks),
];

/// What synchronous_commit is at the end of a step's transaction.
fn after(
    bench: &mut Bench,
    default: &str,
    call: impl FnOnce(&mut Bench) -> Verdict,
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
    expected: [(&str, &str); 4],
    mut call: impl FnMut(&mut Bench) -> Verdict,
) -> Verdict {
    for (default, expected) in expected {
        let is = after(bench, default, &mut call)?;
        equal(&format!("synchronous_commit, from {default}, of {step}"), &is.as_str(), &expected)?;
    }
    Ok(())
}

const KEPT: [(&str, &str); 4] =
    [("off", "on"), ("local", "on"), ("on", "on"), ("remote_write", "remote_write")];
const OFF: [(&str, &str); 4] =
    [("off", "off"), ("local", "off"), ("on", "off"), ("remote_write", "off")];

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
    expect(bench, "a swap, repeated", KEPT, |bench| {
        let sql =
            "SELECT swap_cell_1('repeated', NULL, 'b0e4d8f0-0000-4000-8000-000000000001', '', 0)";
        bench.main.query(sql, &[]).map(drop)
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
    // Locks with a row that is free, which a batch grants all at once.
    let free = [b"1", b"2", b"3", b"4"].map(|key| first.clone().key(key));
    for claim in &free {
        bench.acquire(claim)?;
        bench.release(claim)?;
    }
    let mut free = free.into_iter();
    expect(bench, "a batch of free locks", KEPT, |bench| {
        let claim = free.next().expect("one for each default");
        bench.call(&Call::Batch(vec![of(&claim)])).map(drop)
    })?;
    let none = [of(&second), Step::Release(first.key(b"z"))];
    expect(bench, "a batch without", OFF, |bench| bench.call(&Call::Batch(none.to_vec())).map(drop))
}

/// NOTIFY locks out the notifications of the whole server until the commit has ended.
fn notifying(bench: &mut Bench) -> Verdict {
    let [holder, waiter] = [1, 2].map(Claim::exclusive);
    for default in ["off", "local", "on", "remote_write"] {
        bench.reset();
        bench.acquire(&holder)?;
        bench.queue(&waiter)?;
        let free = Claim::exclusive(3).key(b"free");
        let owners = format!("'{}', '{}'", holder.owner, free.owner);
        let batch = format!(
            "SELECT at, reply FROM batch_1('{{r,a}}', '{{lock,free}}', ARRAY[{owners}]::uuid[], '{{x,x}}', \
             '{{1,1}}', '{{1,1}}', '{{9000000,9000000}}', '{{\"\",\"\"}}', '{{true,true}}', '{{1,1}}', 'p')"
        );
        let mut replies = Vec::new();
        bench.main.run(&format!("BEGIN; SET LOCAL synchronous_commit = '{default}'"))?;
        let rows = bench.main.query(&batch, &[])?;
        replies.extend(rows.iter().map(|row| (row.get::<_, i32>(0), row.get::<_, Option<i64>>(1))));
        let sync = bench.main.query("SELECT current_setting('synchronous_commit')", &[])?;
        bench.main.run("COMMIT")?;
        equal("what the transaction waits for", &sync[0].get::<_, &str>(0), &"off")?;
        equal("the last row", &replies.last().map(|(at, _)| *at), &Some(0))?;
        let token = replies.iter().find_map(|(at, token)| (*at == 2).then_some(*token)).flatten();
        equal("the repetition", &Some(bench.acquire(&free)?), &token)?;
        // A downgrade that lets a reader in, and readers of whom the first lets the others in.
        bench.acquire(&waiter)?;
        bench.queue(&Claim::shared(4))?;
        let downgrade = format!("SELECT downgrade_1('lock', '{}', 9000000)", waiter.owner);
        let reply = bench.main.query(&downgrade, &[])?;
        equal("the downgrade", &reply[0].get::<_, i64>(0), &-2)?;
        let reply = bench.main.query(&downgrade, &[])?;
        equal("the downgrade, repeated", &reply[0].get::<_, i64>(0), &1)?;
    }
    Ok(())
}

fn checks(bench: &mut Bench) -> Verdict {
    let claim = Claim::exclusive(1);
    let token = bench.acquire(&claim)?;
    let same = ["off", "local", "on", "remote_write"].map(|default| (default, default));
    expect(bench, "a check", same, |bench| bench.main.run(&check(&claim, token)))?;
    expect(bench, "a fence", same, |bench| bench.main.run("SELECT fence('stock', 1)"))
}
