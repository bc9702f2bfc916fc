//! Cells whose time is over, as `fencelock tidy` finds and removes them: of a store that ends no data by
//! time.

use fencelock_core::{ExpiredCells, Locks};

use crate::behaviours::interface::names::ODD;
use crate::behaviours::prelude::*;

const GROUP: &str = "expired_cells";
const NEEDS: &[Need] = &[Need::Cells];

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "only_what_is_over_is_found_and_removed", NEEDS, &removed),
    behaviour(GROUP, "a_cell_that_was_written_anew_stays", NEEDS, &written),
];

const SECOND: Duration = Duration::from_secs(1);

/// `None` of a store that ends cells by itself.
async fn find(context: &Context, locks: &Locks) -> Option<ExpiredCells> {
    let found = context.soon("the cells are listed", locks.expired_cells(&[], Duration::ZERO));
    let found = found.await.expect("an answer");
    if let Some(found) = &found {
        context.assert_final(found.unread.is_empty(), || format!("{:?}", found.unread));
    }
    found
}

/// Writes cells with these names that are kept for a second, and returns when all are over.
async fn until_over(context: &Context, locks: &Locks, names: &[&str]) {
    for name in names {
        let brief = locks.cell(name).keep_for(SECOND);
        assert!(brief.compare_and_set(None, *b"brief").await.expect("an answer"), "{name:?}");
    }
    // The last one.
    let last = locks.cell(names.last().expect("a name"));
    context
        .until_within(context.patience() + 2 * SECOND, "its time is over", async || {
            last.read().await.expect("an answer").is_none()
        })
        .await;
}

async fn removed(context: Arc<Context>) {
    let locks = context.client().await;
    let longest = "x".repeat(512);
    let mut names: Vec<&str> = ODD.iter().copied().chain([longest.as_str()]).collect();
    names.sort_unstable();
    let (kept, held) = (locks.cell("kept"), context.name("held"));
    assert!(kept.compare_and_set(None, *b"kept").await.expect("an answer"));
    // Of a lock no cell is there.
    let guard = context.acquire(&locks, &held).await;
    until_over(&context, &locks, &names).await;
    if let Some(found) = find(&context, &locks).await {
        let over: Vec<&str> = found.expired.iter().map(|cell| cell.name().as_str()).collect();
        assert_eq!((over, found.others), (names, 1));
        for cell in &found.expired {
            assert!(locks.remove_expired(cell).await.expect("an answer"), "{cell:?}");
            assert!(!locks.remove_expired(cell).await.expect("an answer"), "{cell:?} is gone");
        }
        let left = find(&context, &locks).await.expect("as before");
        assert_eq!((left.expired.len(), left.others), (0, 1));
    }
    assert!(kept.read().await.expect("an answer").is_some());
    kept.remove().await.expect("removed");
    context.release(guard).await;
}

async fn written(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    until_over(&context, &one, &["brief"]).await;
    let found = find(&context, &one).await;
    let brief = two.cell("brief");
    assert!(brief.compare_and_set(None, *b"anew").await.expect("an answer"));
    for cell in found.iter().flat_map(|found| &found.expired) {
        assert!(!one.remove_expired(cell).await.expect("an answer"));
    }
    assert_eq!(brief.read().await.expect("an answer").expect("it stays").bytes(), b"anew");
    brief.remove().await.expect("removed");
}
