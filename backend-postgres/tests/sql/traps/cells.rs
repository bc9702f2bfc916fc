//! Cells.

use super::*;

pub(super) const TRAPS: &[Trap] = &[
    ("a repeated swap is found again", repeated),
    ("a cell's time ends", expiry),
    ("a swap, which waits for the disk, notifies no client", silence),
];

fn swap(
    bench: &Bench,
    from: Option<u128>,
    to: Option<u128>,
    content: &[u8],
    keep: i64,
) -> Result<bool, String> {
    let (from, to) = (from.map(Uuid::from_u128), to.map(Uuid::from_u128));
    let rows = bench.main.query(
        "SELECT swap_cell_1($1, $2, $3, $4, $5)",
        &[&b"cell".as_slice(), &from, &to, &content, &keep],
    )?;
    Ok(rows[0].get(0))
}

fn read(bench: &Bench) -> Result<Option<(u128, Vec<u8>)>, String> {
    let rows =
        bench.main.query("SELECT stamp, content FROM read_cell_1($1)", &[&b"cell".as_slice()])?;
    Ok(rows.first().map(|row| (row.get::<_, Uuid>(0).as_u128(), row.get(1))))
}

fn repeated(bench: &mut Bench) -> Verdict {
    for _ in 0..2 {
        equal("the first", &swap(bench, None, Some(1), b"a", 0)?, &true)?;
    }
    for _ in 0..2 {
        equal("the second", &swap(bench, Some(1), Some(2), b"b", 0)?, &true)?;
    }
    equal("the first, once more", &swap(bench, None, Some(1), b"a", 0)?, &false)?;
    equal("the cell", &read(bench)?, &Some((2, b"b".to_vec())))
}

fn expiry(bench: &mut Bench) -> Verdict {
    swap(bench, None, Some(1), b"a", SECOND)?;
    bench.advance(SECOND - 1);
    ensure(read(bench)?.is_some(), || "it ended early".into())?;
    bench.advance(1);
    equal("the cell after its end", &read(bench)?, &None)?;
    equal("of its stamp", &swap(bench, Some(1), Some(2), b"b", 0)?, &false)?;
    equal("of none", &swap(bench, None, Some(2), b"b", 0)?, &true)?;
    bench.advance(1000 * 86_400 * SECOND);
    equal("one without an end", &read(bench)?, &Some((2, b"b".to_vec())))?;
    equal("given an end", &swap(bench, Some(2), Some(3), b"c", SECOND)?, &true)?;
    equal("without one again", &swap(bench, Some(3), Some(4), b"d", 0)?, &true)?;
    bench.advance(2 * SECOND);
    ensure(read(bench)?.is_some(), || "the old end was kept".into())
}

fn silence(bench: &mut Bench) -> Verdict {
    for (from, to) in [(None, Some(1)), (Some(1), Some(2)), (Some(2), None)] {
        bench.main.run("BEGIN")?;
        let swapped = swap(bench, from, to, b"", 0);
        equal("a swap", &notifies(bench)?, &false)?;
        equal("the swap", &swapped?, &true)?;
        swap(bench, from, to, b"", 0)?;
    }
    Ok(())
}
