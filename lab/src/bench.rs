//! `fencelock bench`: measures a store on this machine; prints one line of JSON.
//!
//! Most workloads are closed loops: each client acquires, holds, releases, and asks again. Latencies of
//! `uncontended` are of acquire and release together, of `contended` of acquire alone, and of `handover`
//! from the call of one holder's release, after a hold of 2 ms, to the next holder's grant, across
//! processes too. [`held`] is not a loop.

mod clients;
mod figures;
mod held;
mod limits;
mod options;
mod worker;

use std::process::ExitCode;
use std::sync::Arc;

use fencelock::{Error, ErrorKind, Result, Settings};
use serde::Serialize;

pub(crate) use clients::{Load, LockSource, Note};
pub(crate) use figures::{cpu_time, fairness, handed_off, histogram, new_histogram, now};
use figures::{in_us, largest_deviation_percent, tenth};
use limits::{Limit, Limits};
pub(crate) use options::{Options, Seen};
use options::{Workload, json, store_word};
use worker::{Workers, may_begin};

#[derive(Serialize)]
struct Line<'a> {
    store: &'a str,
    workload: Workload,
    clients: u32,
    processes: u32,
    pairs_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    /// The longest, to a hundredth.
    max_us: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    local_handoffs: Option<u32>,
    /// Jain's index over the clients' pairs: 1 when all got the same.
    fairness: f64,
    /// With several processes: the pairs of each, in the order in which they were started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pairs_by_process: Option<Vec<u64>>,
    /// By how much the one that is furthest from their mean differs from it, in percent of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    largest_deviation_percent: Option<f64>,
    /// Of `handover`: grants to a client that had asked over a millisecond after one still waiting.
    #[serde(skip_serializing_if = "Option::is_none")]
    overtaken: Option<usize>,
}

impl Options {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        self.takes_no_handoffs_from_the_url()?;
        self.takes_limits_only_of_a_database()?;
        if let Some(first) = self.worker {
            self.work(first)?;
            return Ok(ExitCode::SUCCESS);
        }
        let line = match self.workload {
            Workload::Held => json(&self.hold()?),
            _ => json(&self.line(store_word(&self.url), &self.in_loops()?)),
        };
        println!("{line}");
        if self.limits {
            self.measure_limits()?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// They would replace the option's, and the printed line would not show them.
    fn takes_no_handoffs_from_the_url(&self) -> Result<()> {
        let parameters = self.url.split(['?', '&']).skip(1);
        match parameters.filter_map(|it| it.strip_prefix("local_handoffs=")).last() {
            None => Ok(()),
            Some(most) => Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "the URL has local_handoffs={most}: leave it out, and give --local-handoffs {most}, \
                     which the result shows"
                ),
            )),
        }
    }

    /// The worker process's part: reports when it is connected, and starts on request.
    fn work(&self, first: u32) -> Result<()> {
        fencelock_cli::runtime()?.block_on(async {
            let source = self.connect().await?;
            println!("ready");
            if may_begin()? {
                println!("{}", json(&self.drive(&source, first).await?));
            }
            source.close().await
        })
    }

    async fn connect(&self) -> Result<LockSource> {
        let settings = Settings::default().local_handoffs(self.local_handoffs.unwrap_or(1))?;
        LockSource::connect(&self.url, settings).await
    }

    /// What each process saw.
    fn in_loops(&self) -> Result<Vec<Seen>> {
        fencelock_cli::runtime()?.block_on(async {
            let source = self.connect().await?;
            let seen = match self.processes {
                1 => vec![self.drive(&source, 0).await?],
                _ => {
                    source.reaches_processes()?;
                    Workers::start(self)?.drive()?
                }
            };
            source.close().await?;
            Ok(seen)
        })
    }

    async fn drive(&self, source: &LockSource, first: u32) -> Result<Seen> {
        let (locks, note) = match self.workload {
            Workload::Uncontended => (u32::MAX, Note::Pair),
            Workload::Contended => (1, Note::Acquire),
            _ => (1, Note::Hold),
        };
        let clients = first..first + self.clients;
        source.drive(Load { clients, locks, time: self.seconds, note }).await
    }

    fn takes_limits_only_of_a_database(&self) -> Result<()> {
        let is_database = ["postgres", "postgresql"].contains(&store_word(&self.url));
        let is_one_loop = self.workload == Workload::Uncontended && self.processes == 1;
        if !self.limits || is_database && is_one_loop {
            return Ok(());
        }
        let message = "--limits is for `uncontended` in one process on postgres://: leave it out";
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }

    /// Prints a line for each.
    fn measure_limits(&self) -> Result<()> {
        fencelock_cli::runtime()?.block_on(async {
            for limit in Limit::ALL {
                let limits = Limits::connect(limit, &self.url, self.clients).await?;
                let source = LockSource::Limits(Arc::new(limits));
                let clients = 0..self.clients;
                let load = Load { clients, locks: u32::MAX, time: self.seconds, note: Note::Pair };
                let seen = source.drive(load).await;
                source.close().await?;
                println!("{}", json(&self.line(limit.name(), &[seen?])));
            }
            Ok(())
        })
    }

    fn line<'a>(&self, store: &'a str, seen: &[Seen]) -> Line<'a> {
        let elapsed = seen.iter().map(|s| s.elapsed).fold(0.0, f64::max);
        let pairs: Vec<u64> = seen.iter().flat_map(|s| s.pairs.iter().copied()).collect();
        let by_process: Vec<u64> = seen.iter().map(|s| s.pairs.iter().sum()).collect();
        let by_process = (by_process.len() > 1).then_some(by_process);
        let mut latencies = histogram(seen);
        let handed_off = handed_off(seen.iter().flat_map(|s| s.holds.iter().copied()));
        if self.workload == Workload::Handover {
            latencies = handed_off.took;
        }
        Line {
            store,
            workload: self.workload,
            clients: self.clients,
            processes: self.processes.min(self.clients),
            pairs_per_s: tenth(pairs.iter().sum::<u64>() as f64 / elapsed),
            p50_us: in_us(latencies.value_at_quantile(0.5)),
            p99_us: in_us(latencies.value_at_quantile(0.99)),
            max_us: in_us(latencies.max()),
            local_handoffs: self.local_handoffs,
            fairness: (1e3 * fairness(&pairs)).round() / 1e3,
            largest_deviation_percent: by_process.as_deref().map(largest_deviation_percent),
            pairs_by_process: by_process,
            overtaken: (self.workload == Workload::Handover).then_some(handed_off.overtaken),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn options(url: &str, workload: Workload) -> Options {
        Options {
            url: url.to_owned(),
            workload,
            clients: 3,
            seconds: Duration::from_millis(50),
            processes: 1,
            local_handoffs: None,
            limits: false,
            worker: None,
        }
    }

    #[test]
    fn hand_offs_are_an_option_and_no_parameter() {
        let options = options("mem://?ttl=5s&local_handoffs=8", Workload::Handover);
        let error = options.run().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.to_string().contains("give --local-handoffs 8"), "{error}");
    }

    #[test]
    fn only_a_database_has_limits() {
        let with_limits = |url, workload| Options { limits: true, ..options(url, workload) };
        for options in [
            with_limits("redis://127.0.0.1", Workload::Uncontended),
            with_limits("postgres://127.0.0.1/db", Workload::Contended),
            Options {
                processes: 2,
                ..with_limits("postgres://127.0.0.1/db", Workload::Uncontended)
            },
        ] {
            let error = options.run().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(error.to_string().contains("--limits"), "{error}");
        }
    }

    #[test]
    fn the_share_of_each_process_is_shown() {
        let shares = [&[50, 60][..], &[100], &[40, 50]];
        let seen = shares.map(|pairs| Seen { pairs: pairs.to_vec(), ..Seen::default() });
        let options = options("file://", Workload::Handover);
        let line = |seen| serde_json::to_value(options.line("file", seen)).unwrap();
        assert_eq!(line(&seen)["pairs_by_process"], serde_json::json!([110, 100, 90]));
        assert_eq!(line(&seen)["largest_deviation_percent"], 10.0);
        for only_of_several in ["pairs_by_process", "largest_deviation_percent"] {
            assert!(line(&seen[..1]).get(only_of_several).is_none());
        }
    }

    #[test]
    fn one_line_has_what_a_comparison_needs() {
        let options = Options { local_handoffs: Some(2), ..options("mem://", Workload::Handover) };
        let line = options.line("mem", &options.in_loops().unwrap());
        let line = serde_json::to_value(line).unwrap();
        for key in ["pairs_per_s", "p50_us", "p99_us", "fairness"] {
            assert!(line[key].as_f64().unwrap() > 0.0, "{key} in {line}");
        }
        assert!(line["overtaken"].is_u64(), "{line}");
    }
}
