//! Elections: one leader at a time, whom others can find.

use std::sync::atomic::{AtomicU32, Ordering};

use fencelock_core::{Election, ErrorKind, Leader, Observer, Term};
use tokio::task::JoinSet;

use crate::behaviours::prelude::*;

const GROUP: &str = "elections";
const NEEDS: &[Need] = &[Need::Cells];
const EXPIRE: &[Need] = &[Need::Cells, Need::Backdoor(Backdoor::Expire)];

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "one_leads_at_a_time_and_terms_rise", NEEDS, &one),
    behaviour(GROUP, "the_next_in_line_leads_after_a_resignation", NEEDS, &next),
    behaviour(GROUP, "observers_see_every_last_leader_and_that_there_is_none", NEEDS, &observed),
    behaviour(GROUP, "words_can_change", NEEDS, &words),
    behaviour(GROUP, "an_old_leaders_words_are_refused", EXPIRE, &old),
    behaviour(GROUP, "a_lost_term_campaigns_again", EXPIRE, &again),
    behaviour(GROUP, "a_cancelled_campaign_leaves_nothing", NEEDS, &cancelled),
    behaviour(GROUP, "words_that_are_too_long_are_refused", NEEDS, &refused),
];

async fn campaign(context: &Context, election: &Election) -> Term {
    context.soon("it leads", election.campaign()).await.expect("elected")
}

async fn resign(context: &Context, term: Term) {
    context.soon("it resigns", term.resign()).await.expect("resigned");
}

async fn leader(context: &Context, election: &Election) -> Option<Leader> {
    context.soon("the leader is asked for", election.leader()).await.expect("an answer")
}

async fn seen(context: &Context, observer: &mut Observer) -> Option<Leader> {
    context.soon("the observer is told", observer.next()).await.expect("an answer")
}

async fn one(context: Arc<Context>) {
    let name = context.name("scheduler");
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..5 {
        let (locks, name, inside) = (context.client().await, name.clone(), inside.clone());
        tasks.spawn(async move {
            let election = locks.election(&name);
            let mut terms = Vec::new();
            for _ in 0..4 {
                let term = election.campaign().await.expect("elected");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two lead");
                tokio::task::yield_now().await;
                terms.push(term.fencing_token());
                inside.fetch_sub(1, Ordering::SeqCst);
                term.resign().await.expect("resigned");
            }
            terms
        });
    }
    let terms = context.within(context.patience() * 4, "all have led", tasks.join_all()).await;
    assert!(terms.iter().all(|terms| terms.is_sorted()));
    let mut all: Vec<_> = terms.into_iter().flatten().collect();
    all.sort_unstable();
    all.dedup();
    context.assert_final(all.len() == 20, || "a term came twice".to_owned());
    work::remove_cell(&context, &name).await;
}

async fn next(context: Arc<Context>) {
    let name = context.name("scheduler");
    let (one, two) = (context.client().await, context.client().await);
    let (here, there) =
        (one.election(&name).with_words("first"), two.election(&name).with_words("second"));
    assert_eq!(leader(&context, &there).await, None);
    let first = campaign(&context, &here).await;
    let led_by = leader(&context, &there).await.expect("it leads");
    assert_eq!((led_by.words(), led_by.term()), (&b"first"[..], first.fencing_token()));
    let candidate = there.clone();
    let waiting = tokio::spawn(async move { candidate.campaign().await });
    context.until_queued(&one, &name, 1).await;
    resign(&context, first).await;
    let second = context.soon("it follows", waiting).await.expect("no panic").expect("elected");
    assert_eq!(leader(&context, &here).await.expect("it leads").words(), b"second");
    resign(&context, second).await;
    assert_eq!(leader(&context, &here).await, None, "its words are there, and it leads no longer");
    // A holder that has said nothing is found by its label.
    let guard = context.soon("held", one.lock(&name).label("by hand").acquire()).await;
    let led_by = leader(&context, &there).await.expect("it is held");
    assert!(String::from_utf8_lossy(led_by.words()).ends_with("by hand"), "{led_by:?}");
    context.release(guard.expect("acquired")).await;
    work::remove_cell(&context, &name).await;
}

async fn observed(context: Arc<Context>) {
    let name = context.name("scheduler");
    let (one, two) = (context.client().await, context.client().await);
    let election = one.election(&name);
    let mut observer = two.election(&name).observe().await.expect("an observer");
    let mut second = two.election(&name).observe().await.expect("another");
    assert_eq!(seen(&context, &mut observer).await, None);
    for round in 0..3u8 {
        let term = campaign(&context, &election.clone().with_words([round])).await;
        let wanted = (vec![round], term.fencing_token());
        for observer in [&mut observer, &mut second] {
            let find = async {
                loop {
                    let seen = observer.next().await.expect("an answer");
                    // Before its first words it is seen by its label.
                    if seen.is_some_and(|it| (it.words().to_vec(), it.term()) == wanted) {
                        return;
                    }
                }
            };
            context.soon("the leader is seen", find).await;
        }
        resign(&context, term).await;
        assert_eq!(seen(&context, &mut observer).await, None);
    }
    // One that comes late is told at once.
    let term = campaign(&context, &election.clone().with_words("late")).await;
    let mut late = two.election(&name).observe().await.expect("an observer");
    let find = async {
        while late.next().await.expect("an answer").is_none_or(|it| it.words() != b"late") {}
    };
    context.soon("the leader is seen", find).await;
    context.soon("the client closes", two.close()).await.expect("closed");
    let error = context.soon("it ends", observer.next()).await;
    if let Err(error) = error {
        work::assert_kind(&error, ErrorKind::Closed);
    }
    resign(&context, term).await;
    work::remove_cell(&context, &name).await;
}

async fn words(context: Arc<Context>) {
    let name = context.name("scheduler");
    let election = context.client().await.election(&name);
    let term = campaign(&context, &election.clone().with_words("starting")).await;
    for words in [&b"ready"[..], b"", &[7; 4_096]] {
        context.soon("it says so", term.proclaim(words)).await.expect("written");
        let led_by = leader(&context, &election).await.expect("it leads");
        assert_eq!((led_by.words(), led_by.term()), (words, term.fencing_token()));
    }
    resign(&context, term).await;
    work::remove_cell(&context, &name).await;
}

async fn old(context: Arc<Context>) {
    let name = context.name("scheduler");
    let (one, two) = (context.client().await, context.client().await);
    let first = campaign(&context, &one.election(&name).with_words("first")).await;
    context.store().expire(&name).await.expect("the store forgets it");
    let second = campaign(&context, &two.election(&name).with_words("second")).await;
    assert!(second.fencing_token() > first.fencing_token());
    let error = context.soon("an answer", first.proclaim("mine")).await.expect_err("it is over");
    let is_told = matches!(error.kind(), ErrorKind::Stale | ErrorKind::Lost);
    context.assert_final(is_told, || format!("{error}"));
    let led_by = leader(&context, &one.election(&name)).await.expect("it leads");
    assert_eq!(led_by.words(), b"second");
    resign(&context, second).await;
    drop(first);
    work::remove_cell(&context, &name).await;
}

async fn again(context: Arc<Context>) {
    let name = context.name("scheduler");
    let one = work::client_that_renews_soon(&context).await;
    let two = context.client().await;
    let terms = Arc::new(AtomicU32::new(0));
    let (election, counted) = (one.election(&name).with_words("it"), terms.clone());
    let leading = tokio::spawn(async move {
        election
            .lead(|term| {
                let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
                async move {
                    if is_first {
                        term.lost().await;
                        // Never: the work is dropped when the term is lost.
                        std::future::pending::<()>().await;
                    }
                    Ok(term.fencing_token())
                }
            })
            .await
    });
    let is_led = |seen: &fencelock_core::Snapshot| seen.holders.len() == 1;
    context.until_seen("it leads", &two, &name, is_led).await;
    context.until("it works", async || terms.load(Ordering::SeqCst) == 1).await;
    context.store().expire(&name).await.expect("the store forgets it");
    let bound = context.silence_frees_within(context.params().ttl) * 2;
    let term = context.within(bound, "it leads again", leading).await.expect("no panic");
    assert!(term.is_ok() && terms.load(Ordering::SeqCst) == 2);
    context.until_free(&two, &name).await;
    work::remove_cell(&context, &name).await;
}

async fn cancelled(context: Arc<Context>) {
    let name = context.name("scheduler");
    let (one, two) = (context.client().await, context.client().await);
    let term = campaign(&context, &one.election(&name)).await;
    let candidate = two.election(&name);
    let waiting = tokio::spawn(async move { candidate.campaign().await });
    context.until_queued(&one, &name, 1).await;
    waiting.abort();
    context.until_queued(&one, &name, 0).await;
    drop(term);
    context.until_free(&one, &name).await;
    for polls in 0..10 {
        let election = two.election(&name);
        drop(crate::cancel_points::DroppedAfter::polls(polls, election.campaign()).await);
        context.until_free(&one, &name).await;
    }
    work::remove_cell(&context, &name).await;
}

async fn refused(context: Arc<Context>) {
    let name = context.name("scheduler");
    let election = context.client().await.election(&name);
    let error = election.clone().with_words([0; 4_097]).campaign().await.expect_err("too long");
    work::assert_kind(&error, ErrorKind::InvalidArgument);
    let term = campaign(&context, &election).await;
    let error = term.proclaim([0; 4_097]).await.expect_err("too long");
    work::assert_kind(&error, ErrorKind::InvalidArgument);
    resign(&context, term).await;
    work::remove_cell(&context, &name).await;
}
