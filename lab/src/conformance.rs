//! `fencelock conformance`: whether a store passes the conformance suite here.
//!
//! The store may be in use: the suite touches nothing but what begins with a fresh random prefix,
//! and removes that at its end, also after Ctrl-C. What it does to the servers is said before it
//! begins; what could not be removed, at the end.

use std::process::ExitCode;

use fencelock::backend::url::{Connecting, StoreUrl};
use fencelock::{Error, ErrorKind, Result};
use fencelock_conformance::{RunOptions, peer_main_if_asked, run_against_url};

use crate::interrupt::Interrupts;
use crate::leftovers;
use crate::registers;

/// Runs the conformance suite against a store; each behaviour passes, fails, or is ignored with
/// the reason.
///
/// The store may be in use. All names begin with a fresh random prefix, and what lies under it is
/// removed at the end, also after a failure, Ctrl-C or SIGTERM; after SIGKILL it expires. A user of
/// Redis without the right to SCAN leaves the fencing tokens' keys, for a day at most.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Store URL, such as redis://HOST or file:///DIR
    #[arg(env = fencelock::URL_VARIABLE, hide_env_values = true)]
    url: String,
    /// Only behaviours whose name contains this, such as ownership::
    #[arg(long)]
    filter: Option<String>,
    /// Start no further behaviour after a failure; those on exclusion come first
    #[arg(long)]
    fail_fast: bool,
}

impl Options {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        self.refuse_default_directory()?;
        eprintln!("{}", what_follows(&StoreUrl::parse(&self.url)?));
        let mut options = RunOptions::default();
        options.filter.clone_from(&self.filter);
        options.fail_fast = self.fail_fast;
        let runtime = fencelock_cli::runtime()?;
        let interrupts = Interrupts::catch(&runtime)?;
        options.stop = interrupts.stop().clone();
        let report = run_against_url(connect, &self.url, &options)?;
        if let Err(why) = report.verdict() {
            eprintln!("fencelock: {why}");
        }
        if let Some(error) = report.left_behind() {
            leftovers::report(&self.url, error);
        }
        interrupts.end_if_caught();
        Ok(report.exit_code())
    }

    /// The suite works in a directory of its own within the one that is named, and removes it.
    fn refuse_default_directory(&self) -> Result<()> {
        let url = StoreUrl::parse(&self.url)?;
        if url.scheme() != "file" || !url.path().is_empty() {
            return Ok(());
        }
        let message = "the suite needs a directory to make its own one in; \
                       name it, for example file:///DIR";
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }
}

fn what_follows(url: &StoreUrl) -> String {
    format!(
        "The suite connects dozens of clients to {url}, some in processes of their own, some of \
         which it kills, and takes thousands of locks there for some minutes. Their names begin \
         with `conformance-` and a random number, after the URL's prefix if it has one. At the end, \
         also after Ctrl-C, it removes all that lies under these names. It changes no setting of \
         the servers, restarts nothing, and touches no other name."
    )
}

/// Runs one of the suite's peer processes, if this program was executed as one.
pub(crate) fn serve_if_asked() {
    peer_main_if_asked(connect, Some(registers::open));
}

pub(crate) fn connect(url: &str) -> Connecting {
    let url = url.to_owned();
    Box::pin(async move { fencelock::connect(&url).await })
}
