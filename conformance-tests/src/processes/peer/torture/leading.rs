//! Elections: each process is a candidate, and observes.

use std::io;

use rand::RngExt;

use super::tools::{Calm, Tools};
use crate::history::What;
use crate::how::How;
use crate::processes::workload::{ELECTION, Errors};

/// Campaigns and leads again and again, and once more when all is calm: a candidate leads after every fault.
pub(super) async fn lead(mut tools: Tools, calm: Calm) -> io::Result<Errors> {
    loop {
        let is_last = calm.has_come();
        term(&mut tools).await;
        if is_last {
            return Ok(tools.errors);
        }
    }
}

async fn term(tools: &mut Tools) {
    let election = tools.locks.election(ELECTION).ttl(tools.workload.ttl).with_words("candidate");
    let claim = tools.history.invoke(ELECTION, How::Exclusive);
    let term = match election.campaign().await {
        Ok(term) => term,
        Err(error) => {
            tools.history.record(&claim, What::Unknown);
            return tools.count(&error).await;
        }
    };
    tools.history.granted(term.guard(), &claim);
    match tools.random.random_range(0..300) {
        0 => tools.hold_for_long(term.guard(), &claim).await,
        _ => tools.pause(0..60).await,
    }
    if tools.random.random_bool(0.3)
        && let Err(error) = term.proclaim("leader").await
    {
        tools.count(&error).await;
    }
    tools.history.releasing(term.guard(), &claim);
    if tools.random.random_bool(0.9) {
        let resigned = term.resign().await;
        tools.history.released(&claim, &resigned);
    }
}

/// Records each term that an observer is told of.
pub(super) async fn observe(mut tools: Tools, mut calm: Calm) -> io::Result<Errors> {
    let election = tools.locks.election(ELECTION);
    let mut observer = election.observe().await.map_err(io::Error::other)?;
    let claim = tools.history.begin(ELECTION, What::Observed { term: None });
    loop {
        let leader = tokio::select! {
            biased;
            () = calm.comes() => return Ok(tools.errors),
            leader = observer.next() => leader,
        };
        match leader {
            Ok(leader) => {
                let term = leader.map(|leader| leader.term().get());
                tools.history.record(&claim, What::Observed { term });
            }
            Err(error) => tools.count(&error).await,
        }
    }
}
