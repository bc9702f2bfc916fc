//! Counters and ids: no number is given out twice.

use std::collections::BTreeSet;

use fencelock_core::{Counter, ErrorKind, Ids, TokenEpoch};
use tokio::task::JoinSet;

use crate::behaviours::prelude::*;

const GROUP: &str = "counters";
const NEEDS: &[Need] = &[Need::Cells];
const LOSE_REPLY: &[Need] = &[Need::Cells, Need::Backdoor(Backdoor::LoseReply)];
const LOSE_DATA: &[Need] = &[Need::TokensBeyondData, Need::Backdoor(Backdoor::LoseData)];

pub(crate) const BEHAVIOURS: &[Behaviour] = &[
    behaviour(GROUP, "additions_of_all_clients_add_up_and_no_sum_is_given_twice", NEEDS, &add_up),
    // Fault 7
    behaviour(GROUP, "an_addition_whose_reply_was_lost_counts_once", LOSE_REPLY, &lost_replies),
    behaviour(GROUP, "a_value_outlives_its_clients", NEEDS, &outlives),
    behaviour(GROUP, "at_least_never_lowers", NEEDS, &at_least),
    behaviour(GROUP, "an_overflow_is_an_error_and_changes_nothing", NEEDS, &overflow),
    behaviour(GROUP, "ids_are_unique_across_clients_and_rise_within_one", &[], &unique),
    behaviour(GROUP, "ids_are_unique_across_a_data_loss", LOSE_DATA, &data_loss),
    behaviour(GROUP, "a_client_takes_a_block_of_ids_at_once", &[], &blocks),
    behaviour(GROUP, "ids_that_cannot_be_are_refused", &[], &refused),
];

async fn add(context: &Context, counter: &Counter, n: i64) -> i64 {
    context.soon("it is added", counter.add(n)).await.expect("added")
}

async fn remove(context: &Context, counter: &Counter) {
    context.soon("it is removed", counter.remove()).await.expect("removed");
    assert_eq!(counter.get().await.expect("an answer"), 0);
}

async fn add_up(context: Arc<Context>) {
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let locks = context.client().await;
        for _ in 0..5 {
            let counter = locks.counter("orders");
            tasks.spawn(async move {
                let mut sums = Vec::new();
                for _ in 0..20 {
                    sums.push(counter.add(1).await.expect("added"));
                }
                sums
            });
        }
    }
    let sums = context.within(context.patience() * 4, "all have added", tasks.join_all()).await;
    for sums in &sums {
        assert!(sums.is_sorted(), "{sums:?}");
    }
    let sums: BTreeSet<i64> = sums.into_iter().flatten().collect();
    let expected: BTreeSet<i64> = (1..=400).collect();
    context.assert_final(sums == expected, || "sums are missing, or were given twice".to_owned());
    let counter = context.client().await.counter("orders");
    assert_eq!(counter.get().await.expect("an answer"), 400);
    remove(&context, &counter).await;
}

async fn lost_replies(context: Arc<Context>) {
    let (one, two) = (context.client().await, context.client().await);
    let (counter, other) = (one.counter("orders"), two.counter("orders"));
    for round in 0..5 {
        context.inject_fault(NetworkFault::ReplyDropped).await;
        let adding = [(); 3].map(|()| counter.add(1));
        let added = context.soon("added", futures_util::future::join_all(adding)).await;
        let added: BTreeSet<i64> = added.into_iter().map(|sum| sum.expect("added")).collect();
        context.heal().await;
        context.assert_final(added.len() == 3, || format!("{added:?}"));
        let sum = other.get().await.expect("an answer");
        context.assert_final(sum == 3 * (round + 1), || format!("{sum} in round {round}"));
    }
    remove(&context, &counter).await;
}

async fn outlives(context: Arc<Context>) {
    let params = context.params();
    for round in 1..=3 {
        let locks = context.connect(&params).await;
        assert_eq!(add(&context, &locks.counter("orders"), 5).await, 5 * round);
        context.soon("the client closes", locks.close()).await.expect("closed");
    }
    remove(&context, &context.client().await.counter("orders")).await;
}

async fn at_least(context: Arc<Context>) {
    let counter = context.client().await.counter("orders");
    for (least, expected) in [(7, 7), (3, 7), (7, 7), (-1, 7), (100, 100)] {
        let value = context.soon("raised", counter.at_least(least)).await.expect("an answer");
        assert_eq!((value, counter.get().await.expect("an answer")), (expected, expected));
    }
    assert_eq!(add(&context, &counter, -101).await, -1);
    assert_eq!(counter.at_least(0).await.expect("an answer"), 0);
    remove(&context, &counter).await;
}

async fn overflow(context: Arc<Context>) {
    let counter = context.client().await.counter("orders");
    counter.at_least(i64::MAX - 1).await.expect("an answer");
    // Together with an addition that fits.
    let (fits, not) = tokio::join!(counter.add(1), counter.add(i64::MAX));
    assert_eq!(fits.expect("it fits"), i64::MAX);
    work::assert_kind(&not.expect_err("it does not fit"), ErrorKind::InvalidArgument);
    let error = counter.add(1).await.expect_err("it does not fit");
    work::assert_kind(&error, ErrorKind::InvalidArgument);
    assert_eq!(add(&context, &counter, -1).await, i64::MAX - 1);
    remove(&context, &counter).await;
}

async fn take(context: &Context, ids: &Ids, count: usize) -> Vec<u64> {
    let taking = async {
        let mut taken = Vec::new();
        for _ in 0..count {
            taken.push(ids.next().await.expect("an id"));
        }
        taken
    };
    context.within(context.patience() * 4, "ids are taken", taking).await
}

async fn unique(context: Arc<Context>) {
    let mut tasks = JoinSet::new();
    context.name("ids:orders");
    for _ in 0..3 {
        let locks = context.client().await;
        for _ in 0..4 {
            let (context, ids) = (context.clone(), locks.ids("orders").block(7));
            tasks.spawn(async move { take(&context, &ids, 30).await });
        }
    }
    let taken = tasks.join_all().await;
    for taken in &taken {
        assert!(taken.is_sorted(), "{taken:?}");
    }
    let all: BTreeSet<u64> = taken.iter().flatten().copied().collect();
    context.assert_final(all.len() == 360, || format!("{} of 360 ids differ", all.len()));
}

async fn data_loss(context: Arc<Context>) {
    context.name("ids:orders");
    let before = take(&context, &context.client().await.ids("orders"), 2_000).await;
    context.store().lose_data().await.expect("the store loses its data");
    let locks = context.client().await;
    let after = async {
        loop {
            match locks.ids("orders").next().await {
                Ok(id) => return id,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    };
    let after = context.within(context.patience() * 4, "an id after the loss", after).await;
    context.assert_final(after > before[before.len() - 1], || format!("{after} came again"));
}

async fn blocks(context: Arc<Context>) {
    context.name("ids:orders");
    let locks = context.client().await;
    let ids = take(&context, &locks.ids("orders"), 1_025).await;
    assert_eq!(ids[1_023], ids[0] + 1_023, "one block");
    assert!(ids[1_024] > ids[1_023]);
    // Another handle of the same client goes on with it.
    let next = take(&context, &locks.ids("orders"), 1).await;
    assert_eq!(next[0], ids[1_024] + 1);
}

async fn refused(context: Arc<Context>) {
    let locks = context.client().await;
    for wrong in [locks.ids("orders").block(0), locks.ids("orders").block(1_025), locks.ids("")] {
        let error = wrong.next().await.expect_err("refused");
        work::assert_kind(&error, ErrorKind::InvalidArgument);
    }
    context.name("ids:orders");
    let epoch = context.client_with(|params| params.token_epoch = 3).await;
    let next = epoch.ids("orders");
    let error = context.soon("an answer", next.next()).await.expect_err("no room");
    work::assert_kind(&error, ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("token_epoch"), "{error}");
    assert!(TokenEpoch::new(3).is_ok());
}
