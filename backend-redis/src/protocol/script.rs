//! The atomic steps, each a Lua file of its own in `lua/`.
//!
//! A script is called by its digest; a server that does not know it, after a restart or
//! `SCRIPT FLUSH`, is sent the text. Texts are constant: values are passed in ARGV only.

use std::sync::LazyLock;

use fencelock_core::batching::Priority;

/// One script and its digest.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) name: &'static str,
    /// Of its calls among those that wait to be sent.
    pub(crate) priority: Priority,
    pub(crate) text: String,
    pub(crate) digest: String,
}

const KEYS: &str = include_str!("lua/keys.lua");

/// Shared parts, by the lines that include them; a part may include one later in this list.
const PARTS: [(&str, &str); 7] = [
    ("--<notify.lua>\n", include_str!("lua/notify.lua")),
    ("--<writable.lua>\n", include_str!("lua/writable.lua")),
    ("--<heartbeat.lua>\n", include_str!("lua/heartbeat.lua")),
    ("--<token.lua>\n", include_str!("lua/token.lua")),
    ("--<queue.lua>\n", include_str!("lua/queue.lua")),
    ("--<lock.lua>\n", include_str!("lua/lock.lua")),
    ("--<foreign.lua>\n", include_str!("lua/foreign.lua")),
];

impl Script {
    fn new(name: &'static str, text: String) -> Script {
        let digest = redis::Script::new(&text).get_hash().to_owned();
        let priority = match name {
            "renew" | "extend" => Priority::Renewal,
            "release" | "free" | "downgrade" | "raise" => Priority::Held,
            _ => Priority::Attempt,
        };
        Script { name, priority, text, digest }
    }

    /// `body` after the keys. Shared parts are inserted where a body includes them, so that an
    /// uncontended step ends before they are run.
    pub(crate) fn step(name: &'static str, body: &str, more_parts: &[(&str, &str)]) -> Script {
        let parts = more_parts.iter().chain(&PARTS);
        let text = parts.fold(body.to_owned(), |text, (line, part)| text.replace(line, part));
        Script::new(name, format!("{KEYS}{text}"))
    }

    /// A script that runs any number of `steps` in one call.
    pub(crate) fn batch(steps: &[&Script]) -> Script {
        let function = |step: &&Script| {
            let text = step.text.replace("redis.call('TIME')", "TIME");
            format!("{} = function(KEYS, ARGV)\n{text}end,\n", step.name)
        };
        let functions: String = steps.iter().map(function).collect();
        let text = include_str!("lua/batch.lua").replace("--<steps>\n", &functions);
        Script::new("batch", text)
    }
}

/// The scripts of one server.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) attempt: Script,
    pub(crate) release: Script,
    pub(crate) renew: Script,
    pub(crate) downgrade: Script,
    pub(crate) check_waiters: Script,
    pub(crate) inspect: Script,
    pub(crate) swap: Script,
    pub(crate) rewrite: Script,
    pub(crate) batch: Script,
}

impl Scripts {
    pub(crate) fn all(&self) -> [&Script; 9] {
        let Scripts { attempt, release, renew, downgrade, check_waiters, .. } = self;
        let Scripts { inspect, swap, rewrite, batch, .. } = self;
        [attempt, release, renew, downgrade, check_waiters, inspect, swap, rewrite, batch]
    }
}

pub(crate) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| {
    let attempt = Script::step("attempt", include_str!("lua/attempt.lua"), &[]);
    let release = Script::step("release", include_str!("lua/release.lua"), &[]);
    let renew = Script::step("renew", include_str!("lua/renew.lua"), &[]);
    let downgrade = Script::step("downgrade", include_str!("lua/downgrade.lua"), &[]);
    let check_waiters = Script::step("check_waiters", include_str!("lua/check_waiters.lua"), &[]);
    let inspect = Script::step("inspect", include_str!("lua/inspect.lua"), &[]);
    // Their key is a cell's, not a lock's.
    let swap = PARTS.iter().fold(include_str!("lua/swap.lua").to_owned(), |text, (line, part)| {
        text.replace(line, part)
    });
    let swap = Script::new("swap", swap);
    let rewrite = Script::new("rewrite", include_str!("lua/rewrite.lua").to_owned());
    let steps = [&attempt, &release, &renew, &downgrade, &check_waiters, &inspect, &swap];
    let batch = Script::batch(&steps);
    Scripts { attempt, release, renew, downgrade, check_waiters, inspect, swap, rewrite, batch }
});

/// The names and texts of the scripts, for tests that call them without the rest of this crate.
#[doc(hidden)]
#[must_use]
pub fn scripts() -> Vec<(&'static str, &'static str)> {
    texts(&SCRIPTS.all())
}

pub(crate) fn texts(scripts: &[&'static Script]) -> Vec<(&'static str, &'static str)> {
    scripts.iter().map(|script| (script.name, script.text.as_str())).collect()
}
