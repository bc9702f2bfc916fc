//! `fencelock redlock`: administration of the nodes of a `redlock://` URL.
//!
//! docs/redlock.md explains when to use which command.

mod report;

use std::process::ExitCode;
use std::sync::Arc;

use fencelock::backend::url::StoreUrl;
use fencelock::redlock::{Membership, NodeStatus, init, open_when_due, replace, status};
use fencelock::{Error, ErrorKind, Operation, Result};
use fencelock_cli::say;

use report::{json, table};

/// Initialize the nodes of a redlock:// store, show their status, or replace the set
#[derive(clap::Subcommand, Debug)]
pub(crate) enum Options {
    /// Declare the nodes new: none of them ever held a lock, so all take part at once
    Init {
        /// The nodes, such as redlock://H1,H2,H3
        #[arg(env = fencelock::URL_VARIABLE, hide_env_values = true)]
        url: String,
    },
    /// Show each node's state, record age, clock, and a lock's fencing token and holder there
    Status {
        /// The nodes, such as redlock://H1,H2,H3
        #[arg(env = fencelock::URL_VARIABLE, hide_env_values = true)]
        url: String,
        /// Show the state of this lock at each node
        #[arg(long, value_name = "NAME")]
        lock: Option<String>,
        /// Print one line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Change the set of nodes; safe to repeat after an interruption
    Replace {
        /// The nodes in use, such as redlock://H1,H2,H3
        old_url: String,
        /// The new set, such as redlock://H1,H2,H4?set_epoch=2: one more than the old set has
        new_url: String,
        /// Wait until the new set takes part
        #[arg(long)]
        wait: bool,
    },
}

impl Options {
    pub(crate) fn run(self) -> Result<ExitCode> {
        fencelock_cli::runtime()?.block_on(async {
            match self {
                Options::Init { url } => {
                    init(&url).await?;
                    println!("all nodes take part");
                }
                Options::Status { url, lock, json } => {
                    show_status(&url, lock.as_deref(), json).await?;
                }
                Options::Replace { old_url, new_url, wait } => {
                    replace_set(&old_url, &new_url, wait).await?;
                }
            }
            Ok(ExitCode::SUCCESS)
        })
    }
}

/// Prints the status; an error if no lock can be granted at present.
async fn show_status(url: &str, lock: Option<&str>, as_json: bool) -> Result<()> {
    let nodes = status(url, lock).await?;
    if as_json {
        println!("{}", json(&nodes));
    } else {
        print!("{}", table(&nodes, lock.is_some()));
    }
    let Some(error) = no_quorum(&nodes) else { return Ok(()) };
    let store: Arc<str> = StoreUrl::parse(url)?.to_string().into();
    Err(error.during(Operation::Inspect).with_store(&store))
}

async fn replace_set(old_url: &str, new_url: &str, wait: bool) -> Result<()> {
    let replaced = replace(old_url, new_url).await?;
    for (node, why) in &replaced.not_closed {
        say(&format!(
            "{node} could not be notified that it has left the set ({}); never start it again with its \
             data",
            why.message()
        ));
    }
    match (replaced.opens_in.as_millis().div_ceil(1000), wait) {
        (0, _) => println!("the new set takes part"),
        (seconds, false) => println!("the new set takes part in {seconds} s"),
        (seconds, true) => {
            println!("the new set takes part in {seconds} s; waiting");
            open_when_due(new_url).await?;
            println!("the new set takes part");
        }
    }
    Ok(())
}

/// The error when too few nodes take part: retryable, unless that many are excluded for good.
fn no_quorum(nodes: &[NodeStatus]) -> Option<Error> {
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
