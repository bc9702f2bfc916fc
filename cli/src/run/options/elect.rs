//! The options of `fencelock elect`.

use super::common::{Common, Job};
use super::help::{ELECT_EXIT_CODES, ELECT_MORE};
use crate::run::exit::{Codes, Outcome};
use crate::run::plan::{Kind, Own, Plan};
use crate::run::reports::Reports;

/// Runs a command on the leader of several machines, and on the next leader when that is gone
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "fencelock elect [OPTIONS] NAME -- COMMAND…\n       fencelock elect [OPTIONS] NAME -c STRING"
)]
#[command(after_help = ELECT_EXIT_CODES, after_long_help = format!("{ELECT_EXIT_CODES}\n\n{ELECT_MORE}"))]
pub(crate) struct Options {
    #[command(flatten)]
    job: Job,
    /// What `fencelock leader` shows of this leader, such as its address: at most 4 KiB [default: host,
    /// process id and label]
    #[arg(long, value_name = "TEXT")]
    words: Option<String>,
    #[command(flatten)]
    common: Common,
}

impl Options {
    pub(in crate::run) fn codes(&self) -> Codes {
        Codes::default()
    }

    pub(crate) fn wants_warnings(&self) -> bool {
        self.common.wants_warnings()
    }

    pub(in crate::run) fn plan(self, reports: Reports) -> Result<Plan, Outcome> {
        Plan::new(self.job, self.common, Own::of(Kind::Election(self.words)), reports)
    }
}
