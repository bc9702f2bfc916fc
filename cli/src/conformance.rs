//! `fencelock conformance`: does a store behave, here?
//!
//! The store may be in use: the suite touches nothing but what begins with a fresh random prefix.
//! What stays of that for a while, and what the suite does to the servers, is said before it begins.

use std::process::ExitCode;

use fencelock::url::{Connecting, StoreUrl};
use fencelock::{Error, ErrorKind, Result};
use fencelock_conformance::{RunOptions, peer_main_if_asked, run_against_url};

/// Runs the conformance suite against a store; each behaviour passes, fails, or is ignored with
/// the reason.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The store, as file:///DIR
    #[arg(env = fencelock::URL_VARIABLE, hide_env_values = true)]
    url: String,
    /// Only behaviours whose name contains this, as ownership::
    #[arg(long)]
    filter: Option<String>,
    /// Begin no further behaviour after one has failed; those on exclusion come first
    #[arg(long)]
    fail_fast: bool,
}

impl Options {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        self.refuse_default_directory()?;
        eprintln!("{}", what_follows(&StoreUrl::parse(&self.url)?));
        let mut options = RunOptions::default();
        if let Some(filter) = &self.filter {
            options = options.filter(filter);
        }
        if self.fail_fast {
            options = options.fail_fast();
        }
        let report = run_against_url(connect, &self.url, &options)?;
        if let Err(why) = report.verdict() {
            eprintln!("fencelock: {why}");
        }
        Ok(report.exit_code())
    }

    /// A file lock's directory stays for its token, so the suite works in a directory of its own
    /// within the one that is named, and removes it.
    fn refuse_default_directory(&self) -> Result<()> {
        let url = StoreUrl::parse(&self.url)?;
        if url.scheme() != "file" || !url.path().is_empty() {
            return Ok(());
        }
        let message = "the suite would leave directories in your default one; \
                       name a directory for it, as file:///DIR";
        Err(Error::new(ErrorKind::InvalidArgument, message))
    }
}

fn what_follows(url: &StoreUrl) -> String {
    let stays = match url.scheme() {
        "mem" => "Nothing stays.",
        "file" => "They lie in a directory of the suite's own, which goes with it.",
        "zk" | "zookeeper" => {
            "Their empty nodes stay until the servers remove them, usually a minute."
        }
        _ => "A small key for the last fencing token of each stays, for a day at most.",
    };
    format!(
        "The suite connects dozens of clients to {url}, some in processes of their own, some of \
         which it kills, and takes thousands of locks there for some minutes. Their names begin \
         with `conformance-`, behind the URL's prefix if it has one. {stays} It changes no setting \
         of the servers, restarts nothing, and touches no other name."
    )
}

/// Becomes one of the suite's peer processes, if this program was executed as one.
pub(crate) fn serve_if_asked() {
    peer_main_if_asked(connect);
}

pub(crate) fn connect(url: &str) -> Connecting {
    let url = url.to_owned();
    Box::pin(async move { fencelock::connect(&url).await })
}
