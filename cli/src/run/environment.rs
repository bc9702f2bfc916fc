//! The environment variables of the command. A nested fencelock reads from them which locks are
//! held around it, for which it would wait for ever.

use std::time::{Duration, SystemTime};

use fencelock::FencingToken;
use serde::{Deserialize, Serialize};

use super::exit::Outcome;
use super::plan::Plan;
use super::process::child::Variable;

/// All locks held by the commands of fencelock around a command, as a JSON list, the outermost first.
const HELD: &str = "FENCELOCK_HELD";

#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
struct Held {
    store: String,
    name: String,
}

/// The locks that are held around this process.
#[derive(Debug)]
pub(super) struct Environment {
    held: Vec<Held>,
}

impl Environment {
    pub(super) fn read() -> Result<Environment, Outcome> {
        let held = match std::env::var(HELD) {
            Ok(text) => serde_json::from_str(&text),
            Err(std::env::VarError::NotPresent) => Ok(Vec::new()),
            Err(std::env::VarError::NotUnicode(_)) => serde_json::from_str(""),
        };
        let held = held.map_err(|cause| {
            let advice = "is not what an outer fencelock wrote; unset it";
            Outcome::configuration(format!("the environment's {HELD} {advice}: {cause}"))
        })?;
        Ok(Environment { held })
    }

    /// Refuses a lock that this very job holds already, and so would wait for itself.
    pub(super) fn refuse_nested(&self, plan: &Plan) -> Result<(), Outcome> {
        if !self.held.contains(&held(plan)) {
            return Ok(());
        }
        Err(Outcome::usage(format!(
            "{:?} on {} is already held by the fencelock that this command runs under; it would wait \
             for itself (see {HELD})",
            plan.name, plan.store.redacted_url
        )))
    }

    /// The variables for a command that holds the lock with this `token`.
    pub(super) fn of_command(&self, plan: &Plan, token: FencingToken) -> Vec<Variable> {
        let own = held(plan);
        let all: Vec<&Held> = self.held.iter().chain([&own]).collect();
        // A list of texts always has a JSON form.
        let list = serde_json::to_string(&all).unwrap_or_default();
        let mut own = vec![
            ("FENCELOCK_NAME", plan.name.clone()),
            ("FENCELOCK_TOKEN", token.to_string()),
            ("FENCELOCK_STORE", plan.store.redacted_url.clone()),
            (HELD, list),
        ];
        own.extend(plan.own.hold_at_most.map(|limit| ("FENCELOCK_DEADLINE", unix_seconds(limit))));
        let own = own.into_iter().map(|(name, value)| (name, Some(value.into())));
        own.chain(plan.store.config.environment.iter().cloned()).collect()
    }
}

fn held(plan: &Plan) -> Held {
    Held { store: plan.store.identity(), name: plan.name.clone() }
}

/// Now and `more`, rounded down. For users and scripts: no decision here depends on it.
fn unix_seconds(more: Duration) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.saturating_add(more).as_secs().to_string()
}
