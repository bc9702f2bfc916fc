//! `fencelock redlock`: what an operator does with the nodes of a `redlock://` URL.
//!
//! docs/redlock.md says when to do what.

mod report;

use std::process::ExitCode;
use std::sync::Arc;

use fencelock::redlock::{Membership, NodeStatus, init, open_when_due, replace, status};
use fencelock::url::StoreUrl;
use fencelock::{Error, ErrorKind, Operation, Result};

use report::{json, table};

/// Declares the nodes of a redlock:// URL new, shows how they are, or changes the set.
#[derive(clap::Subcommand, Debug)]
pub(crate) enum Options {
    /// Declare the nodes new: none of them ever held a lock, so all take part at once
    Init(Init),
    /// Show each node's part, its marker's age, its clock, and a lock's fence and holder there
    Status(Status),
    /// Change the set of nodes; safe to repeat after an interruption
    Replace(Replace),
}

#[derive(clap::Args, Debug)]
pub(crate) struct Init {
    /// The nodes, as redlock://H1,H2,H3
    #[arg(env = fencelock::URL_VARIABLE, hide_env_values = true)]
    url: String,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Status {
    /// The nodes, as redlock://H1,H2,H3
    #[arg(env = fencelock::URL_VARIABLE, hide_env_values = true)]
    url: String,
    /// Show what each node has of this lock
    #[arg(long, value_name = "NAME")]
    lock: Option<String>,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Replace {
    /// The nodes that are in use, as redlock://H1,H2,H3
    old_url: String,
    /// The nodes from now on, as redlock://H1,H2,H4?set_epoch=2: one more than the old set has
    new_url: String,
    /// Wait until the new set takes part
    #[arg(long)]
    wait: bool,
}

impl Options {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let runtime = crate::runtime()?;
        match self {
            Options::Init(options) => runtime.block_on(options.run()),
            Options::Status(options) => runtime.block_on(options.run()),
            Options::Replace(options) => runtime.block_on(options.run()),
        }
    }
}

impl Init {
    async fn run(&self) -> Result<ExitCode> {
        init(&self.url).await?;
        println!("all nodes take part");
        Ok(ExitCode::SUCCESS)
    }
}

impl Status {
    /// The table, and an error if no lock can be granted as things are.
    async fn run(&self) -> Result<ExitCode> {
        let nodes = status(&self.url, self.lock.as_deref()).await?;
        match self.json {
            true => println!("{}", json(&nodes)),
            false => print!("{}", table(&nodes, self.lock.is_some())),
        }
        match no_majority(&nodes) {
            None => Ok(ExitCode::SUCCESS),
            Some(error) => {
                let store: Arc<str> = StoreUrl::parse(&self.url)?.to_string().into();
                Err(error.during(Operation::Inspect).with_store(&store))
            }
        }
    }
}

impl Replace {
    async fn run(&self) -> Result<ExitCode> {
        let replaced = replace(&self.old_url, &self.new_url).await?;
        for (node, why) in &replaced.not_closed {
            eprintln!(
                "fencelock: {node} was not told that it has left the set ({}); never start it again \
                 with its data",
                why.message()
            );
        }
        match (replaced.opens_in.as_millis().div_ceil(1000), self.wait) {
            (0, _) => println!("the new set takes part"),
            (seconds, false) => println!("the new set takes part in {seconds} s"),
            (seconds, true) => {
                println!("the new set takes part in {seconds} s; waiting");
                open_when_due(&self.new_url).await?;
                println!("the new set takes part");
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Too few nodes take part: for now, or for good if that many are sure of it.
fn no_majority(nodes: &[NodeStatus]) -> Option<Error> {
    let majority = nodes.len() / 2 + 1;
    let count = nodes.iter().filter(|node| node.takes_part()).count();
    if count >= majority {
        return None;
    }
    let is_final = |node: &&NodeStatus| match &node.seen {
        Ok(seen) => matches!(
            seen.membership,
            Membership::Closed(_) | Membership::OfAnotherSet(_) | Membership::Foreign
        ),
        Err(error) => !error.is_retryable(),
    };
    let kind = match nodes.len() - nodes.iter().filter(is_final).count() < majority {
        true => ErrorKind::Refused,
        false => ErrorKind::Unreachable,
    };
    let message = format!("{count} of {} nodes take part, and {majority} must", nodes.len());
    Some(Error::new(kind, message))
}
