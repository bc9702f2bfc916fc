//! The options of `fencelock once`.

use std::time::Duration;

use fencelock::Tick;

use super::common::{Common, Job, duration, wait_limit};
use super::help::{ONCE_EXIT_CODES, ONCE_MORE};
use crate::run::exit::{Codes, Outcome};
use crate::run::plan::{Kind, OneTick, Own, Plan};
use crate::run::reports::Reports;

/// Runs a scheduled command once for each tick of its schedule, on one of several machines
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "fencelock once [OPTIONS] NAME -- COMMAND…\n       fencelock once [OPTIONS] NAME -c STRING"
)]
#[command(after_help = ONCE_EXIT_CODES, after_long_help = format!("{ONCE_EXIT_CODES}\n\n{ONCE_MORE}"))]
pub(crate) struct Options {
    #[command(flatten)]
    job: Job,
    /// The time between two runs of the schedule: minute, or a duration of 1s or more, such as 1h or 1d
    #[arg(long, value_name = "PERIOD", default_value = "minute", value_parser = period)]
    per: Duration,
    /// While another machine runs the job, wait no longer than this, to take over if that fails or
    /// dies; without it, skip the tick at once. Also limits the wait for the store. Seconds, such as 10,
    /// or a duration with a unit, such as 10m
    #[arg(short, long, value_name = "TIME", value_parser = wait_limit, allow_negative_numbers = true)]
    wait: Option<Duration>,
    /// End the command before it has run for longer than this; it gets SIGTERM when only --grace of this
    /// time is left
    #[arg(long, value_name = "DUR", value_parser = duration)]
    hold_at_most: Option<Duration>,
    /// Do not run a tick again that was begun, although its run failed or its machine died
    #[arg(long)]
    never_twice: bool,
    /// Do not run a tick again whose command has failed
    #[arg(long)]
    failed_is_done: bool,
    /// Exit with CODE, and say why, when the tick is skipped [default: 0, in silence]
    #[arg(long, value_name = "CODE")]
    skipped: Option<u8>,
    #[command(flatten)]
    common: Common,
}

impl Options {
    pub(in crate::run) fn codes(&self) -> Codes {
        Codes { busy: self.skipped, skip_ok: self.skipped.is_none(), ..Codes::default() }
    }

    pub(crate) fn wants_warnings(&self) -> bool {
        self.common.wants_warnings()
    }

    pub(in crate::run) fn plan(self, reports: Reports) -> Result<Plan, Outcome> {
        let tick = OneTick {
            // Before any wait: the schedule has started this process in the tick that it means.
            tick: Tick::every(self.per),
            is_never_twice: self.never_twice,
            is_done_after_failure: self.failed_is_done,
        };
        let own =
            Own { wait: self.wait, hold_at_most: self.hold_at_most, ..Own::of(Kind::Tick(tick)) };
        Plan::new(self.job, self.common, own, reports)
    }
}

/// `minute`, as in a crontab, or a duration that a tick may have.
fn period(text: &str) -> Result<Duration, String> {
    const SHORTEST: Duration = Duration::from_secs(1);
    let period = match text {
        "minute" => Some(Duration::from_secs(60)),
        _ => duration(text).ok().filter(|period| *period >= SHORTEST),
    };
    period.ok_or_else(|| "expected minute, or 1s or longer, such as 1h or 1d".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_is_a_minute_or_a_duration() {
        for (text, seconds) in
            [("minute", 60), ("1s", 1), ("1m30s", 90), ("1h", 3_600), ("1d", 86_400)]
        {
            assert_eq!(period(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for wrong in ["", "60", "0s", "999ms", "-1s", "hourly", "1 month of Sundays"] {
            let why = period(wrong).expect_err(wrong);
            assert!(why.contains("such as 1h or 1d"), "{why}");
        }
    }
}
