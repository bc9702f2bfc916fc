//! `once`: each tick of a schedule is run by one machine, and not again when it is done.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use fencelock_core::{Claimed, Error, ErrorKind, Once, Run, Tick};
use tokio::task::JoinSet;

use crate::behaviours::prelude::*;

const GROUP: &str = "once";
const NEEDS: &[Need] = &[Need::Cells];
const EXPIRE: &[Need] = &[Need::Cells, Need::Backdoor(Backdoor::Expire)];
const LOSE_REPLY: &[Need] = &[Need::Cells, Need::Backdoor(Backdoor::LoseReply)];

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "one_of_many_machines_runs_a_tick", NEEDS, &one_of_many),
    behaviour(GROUP, "a_tick_that_is_done_is_not_run_again_and_the_next_one_is", NEEDS, &done),
    behaviour(GROUP, "a_machine_whose_clock_is_off_by_years_stops_no_other", NEEDS, &skewed),
    behaviour(GROUP, "a_run_that_was_given_up_is_taken_over", NEEDS, &taken_over),
    behaviour(GROUP, "a_failed_run_can_be_repeated", NEEDS, &failed),
    behaviour(GROUP, "never_twice_means_it", NEEDS, &never_twice),
    behaviour(GROUP, "a_run_that_lost_its_lock_marks_nothing", EXPIRE, &lost),
    // Fault 7
    behaviour(GROUP, "a_run_whose_reply_was_lost_is_done", LOSE_REPLY, &reply),
    behaviour(GROUP, "work_ends_at_its_limit", NEEDS, &limit),
    behaviour(GROUP, "runs_exclude_the_lock_of_the_same_name", NEEDS, &excludes),
    behaviour(GROUP, "a_claim_without_a_valid_tick_is_refused", NEEDS, &refused),
];

async fn claimed(context: &Context, once: &Once) -> Claimed {
    context.soon("a claim answers", once.claim()).await.expect("an answer")
}

async fn runs(context: &Context, once: &Once) -> Run {
    match claimed(context, once).await {
        Claimed::Run(run) => run,
        other => panic!("{other:?}"),
    }
}

async fn assert_done(context: &Context, once: &Once) {
    let claimed = claimed(context, once).await;
    context.assert_final(matches!(claimed, Claimed::Done { .. }), || format!("{claimed:?}"));
}

async fn finish(context: &Context, run: Run) {
    context.soon("the tick is done", run.done()).await.expect("done");
}

async fn one_of_many(context: Arc<Context>) {
    let name = context.name("report");
    for round in 0..4 {
        let (ran, inside) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let mut tasks = JoinSet::new();
        for machine in 0..10 {
            let locks = context.client().await;
            let wait = if machine % 2 == 0 { context.patience() } else { Duration::ZERO };
            let once = locks.once(&name).tick(Tick::number(round)).wait_at_most(wait);
            let (ran, inside) = (ran.clone(), inside.clone());
            tasks.spawn(async move {
                let run = once.run(async |_| {
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two run at once");
                    tokio::task::yield_now().await;
                    ran.fetch_add(1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    Ok::<_, Error>(())
                });
                run.await.expect("an answer").is_some()
            });
        }
        let all = context.within(context.patience() * 4, "all have asked", tasks.join_all()).await;
        assert_eq!(all.iter().filter(|ran| **ran).count(), 1);
        let ran = ran.load(Ordering::SeqCst);
        context.assert_final(ran == 1, || format!("the tick was run {ran} times"));
    }
    work::remove_cell(&context, &name).await;
}

async fn done(context: Arc<Context>) {
    let name = context.name("report");
    let (one, two) = (context.client().await, context.client().await);
    for tick in [7, 8, 9] {
        let (here, there) = (
            one.once(&name).tick(Tick::number(tick)).label("the first machine"),
            two.once(&name).tick(Tick::number(tick)),
        );
        let run = runs(&context, &here).await;
        assert!(matches!(claimed(&context, &there).await, Claimed::Running));
        finish(&context, run).await;
        match claimed(&context, &there).await {
            Claimed::Done { by } => assert!(by.ends_with("the first machine"), "{by}"),
            other => panic!("{other:?}"),
        }
        assert!(
            context
                .soon("a run answers", there.run(async |_| Ok::<_, Error>(())))
                .await
                .expect("no")
                .is_none()
        );
    }
    // A late one asks for what was done long ago.
    assert_done(&context, &two.once(&name).tick(Tick::number(7))).await;
    work::remove_cell(&context, &name).await;
}

async fn skewed(context: Arc<Context>) {
    let name = context.name("report");
    let locks = context.client().await;
    let (day, year) = (Duration::from_secs(86_400), Duration::from_secs(365 * 86_400));
    let ahead = locks.once(&name).tick(Tick::at(SystemTime::now() + year));
    finish(&context, runs(&context, &ahead).await).await;
    for days in 0..40 {
        let tick = Tick::at(SystemTime::now() + days * day);
        let once = locks.once(&name).tick(tick);
        finish(&context, runs(&context, &once).await).await;
        assert_done(&context, &once).await;
    }
    assert_done(&context, &ahead).await;
    work::remove_cell(&context, &name).await;
}

async fn taken_over(context: Arc<Context>) {
    let name = context.name("report");
    let (one, two) = (context.client().await, context.client().await);
    let first = runs(&context, &one.once(&name).tick(Tick::number(1))).await;
    let waiting = two.once(&name).tick(Tick::number(1)).wait_at_most(context.patience() * 2);
    let waiting = tokio::spawn(async move { waiting.claim().await });
    context.until_queued(&one, &name, 1).await;
    let token = first.fencing_token();
    drop(first);
    let second = context.soon("it is taken over", waiting).await.expect("no panic");
    let Claimed::Run(second) = second.expect("an answer") else { panic!("it was not done") };
    assert!(second.fencing_token() > token);
    // Two wait for the same tick: the later one finds it done.
    let waiting = one.once(&name).tick(Tick::number(1)).wait_at_most(context.patience() * 2);
    let waiting = tokio::spawn(async move { waiting.claim().await });
    context.until_queued(&one, &name, 1).await;
    finish(&context, second).await;
    let third = context.soon("it is told", waiting).await.expect("no panic").expect("an answer");
    assert!(matches!(third, Claimed::Done { .. }), "{third:?}");
    work::remove_cell(&context, &name).await;
}

async fn failed(context: Arc<Context>) {
    let name = context.name("report");
    let once = context.client().await.once(&name).tick(Tick::number(1));
    let run = runs(&context, &once).await;
    context.soon("it is given up", run.failed()).await.expect("released");
    let no = || Error::new(ErrorKind::InvalidArgument, "no");
    let tried = once.run(async |_| Err::<(), Error>(no()));
    let error = context.soon("it fails", tried).await.expect_err("it failed");
    assert_eq!(error.message(), "no");
    let tried = once.run(async |_| Ok::<i32, Error>(7));
    assert_eq!(context.soon("it succeeds", tried).await.expect("ran"), Some(7));
    assert_done(&context, &once).await;
    work::remove_cell(&context, &name).await;
}

async fn never_twice(context: Arc<Context>) {
    let name = context.name("report");
    let locks = context.client().await;
    let once = |tick| locks.once(&name).tick(Tick::number(tick)).never_twice();
    drop(runs(&context, &once(1)).await);
    context.until_free(&locks, &name).await;
    assert_done(&context, &once(1)).await;
    // Who does not mind may run it.
    let again = runs(&context, &locks.once(&name).tick(Tick::number(1))).await;
    finish(&context, again).await;
    finish(&context, runs(&context, &once(2)).await).await;
    assert_done(&context, &once(2)).await;
    work::remove_cell(&context, &name).await;
}

async fn lost(context: Arc<Context>) {
    let name = context.name("report");
    let (one, two) = (context.client().await, context.client().await);
    let first = runs(&context, &one.once(&name).tick(Tick::number(1))).await;
    context.store().expire(&name).await.expect("the store forgets it");
    let second = runs(&context, &two.once(&name).tick(Tick::number(1))).await;
    finish(&context, second).await;
    // Whether or not it knows of its loss by now, a later holder has written.
    let error = context.soon("an answer", first.done()).await.expect_err("it was lost");
    let is_told = matches!(error.kind(), ErrorKind::Stale | ErrorKind::Lost);
    context.assert_final(is_told, || format!("{error}"));
    work::remove_cell(&context, &name).await;
}

async fn reply(context: Arc<Context>) {
    let name = context.name("report");
    let (one, two) = (context.client().await, context.client().await);
    for tick in 0..3 {
        let run = runs(&context, &one.once(&name).tick(Tick::number(tick))).await;
        context.inject_fault(NetworkFault::ReplyDropped).await;
        finish(&context, run).await;
        context.heal().await;
        assert_done(&context, &two.once(&name).tick(Tick::number(tick))).await;
    }
    work::remove_cell(&context, &name).await;
}

async fn limit(context: Arc<Context>) {
    let name = context.name("report");
    let once = context.client().await.once(&name).tick(Tick::number(1));
    let limited = once.clone().at_most_for(Duration::from_millis(50));
    let running = limited.run(async |_| std::future::pending::<fencelock_core::Result<()>>().await);
    let error = context.soon("the work is ended", running).await.expect_err("too long");
    work::assert_kind(&error, ErrorKind::Lost);
    context.until_free(&context.client().await, &name).await;
    finish(&context, runs(&context, &once).await).await;
    work::remove_cell(&context, &name).await;
}

async fn excludes(context: Arc<Context>) {
    let name = context.name("report");
    let locks = context.client().await;
    let once = locks.once(&name).tick(Tick::number(1));
    let guard = context.acquire(&locks, &name).await;
    assert!(matches!(claimed(&context, &once).await, Claimed::Running));
    context.release(guard).await;
    let run = runs(&context, &once).await;
    work::assert_busy(&context, &locks, &name).await;
    finish(&context, run).await;
    context.release(context.acquire(&locks, &name).await).await;
    work::remove_cell(&context, &name).await;
}

async fn refused(context: Arc<Context>) {
    let locks = context.client().await;
    let short = Tick::every(Duration::from_millis(10));
    for wrong in [locks.once("report"), locks.once("report").tick(short), locks.once("")] {
        let error = wrong.claim().await.expect_err("refused");
        work::assert_kind(&error, ErrorKind::InvalidArgument);
    }
}
