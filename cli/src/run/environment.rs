//! What the command inherits: the signals that were blocked, and the environment variables. A nested
//! fencelock reads from them which locks are held around it, for which it would wait for ever.

use std::time::{Duration, SystemTime};

use fencelock::FencingToken;
use serde::{Deserialize, Serialize};

use super::exit::Outcome;
use super::plan::{Kind, Plan};
use super::process::child::Inherited;
use super::signals::Blocked;

/// All locks held by the commands of fencelock around a command, as a JSON list, the outermost first.
const HELD: &str = "FENCELOCK_HELD";

#[derive(Debug, Serialize, Deserialize)]
struct Held {
    store: String,
    name: String,
    /// By a reader, or with permits: others may hold it too.
    #[serde(default)]
    shared: bool,
}

/// The locks that are held around this process, and the signals that were blocked.
#[derive(Debug)]
pub(super) struct Environment {
    held: Vec<Held>,
    blocked: Blocked,
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
        let blocked =
            Blocked::unblock().map_err(|cause| Outcome::System("cannot unblock signals", cause))?;
        Ok(Environment { held, blocked })
    }

    /// Refuses a lock that this very job holds already, and so would wait for itself. Where both share it, it
    /// may be granted, or wait for a writer in line, which waits for this job: that needs a limit.
    pub(super) fn refuse_nested(&self, plan: &Plan) -> Result<(), Outcome> {
        let own = held(plan);
        let is_own = |outer: &&Held| (&outer.store, &outer.name) == (&own.store, &own.name);
        let Some(outer) = self.held.iter().rfind(is_own) else { return Ok(()) };
        let both_share = outer.shared && own.shared;
        if both_share && plan.own.wait.is_some() {
            return Ok(());
        }
        let would = match both_share {
            true => {
                "may wait for a writer that waits for this job; limit that by -w, or try with -n"
            }
            false => "would wait for itself",
        };
        Err(Outcome::usage(format!(
            "{:?} on {} is already held by the fencelock that this command runs under; it {would} \
             (see {HELD})",
            plan.name, plan.store.redacted_url
        )))
    }

    /// What a command inherits that holds the lock with this `token`.
    pub(super) fn of_command(&self, plan: &Plan, token: FencingToken) -> Inherited {
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
        let variables = own.chain(plan.store.config.environment.iter().cloned()).collect();
        Inherited { variables, blocked: self.blocked }
    }
}

fn held(plan: &Plan) -> Held {
    let shared = matches!(plan.own.kind, Kind::Read | Kind::Permits(_));
    Held { store: plan.store.identity(), name: plan.name.clone(), shared }
}

/// Now and `more`, rounded down. For users and scripts: no decision here depends on it.
fn unix_seconds(more: Duration) -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.saturating_add(more).as_secs().to_string()
}
