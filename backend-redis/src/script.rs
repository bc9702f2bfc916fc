//! The atomic steps, each a Lua file of its own beside this one.
//!
//! A script is called by its digest; a server that does not know it, after a restart or
//! `SCRIPT FLUSH`, is sent the text. Texts are constant: values travel in ARGV only.

use std::sync::LazyLock;

/// One script and its digest.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) name: &'static str,
    pub(crate) text: String,
    pub(crate) digest: String,
}

const KEYS: &str = include_str!("scripts/keys.lua");

/// What steps share, by the lines that ask for it; a part may ask for one behind it.
const PARTS: [(&str, &str); 7] = [
    ("--<alive.lua>\n", include_str!("scripts/alive.lua")),
    ("--<mint.lua>\n", include_str!("scripts/mint.lua")),
    ("--<queue.lua>\n", include_str!("scripts/queue.lua")),
    ("--<fencing_token.lua>\n", include_str!("scripts/redlock/fencing_token.lua")),
    ("--<hint.lua>\n", include_str!("scripts/redlock/hint.lua")),
    ("--<lock.lua>\n", include_str!("scripts/lock.lua")),
    ("--<foreign.lua>\n", include_str!("scripts/foreign.lua")),
];

impl Script {
    fn new(name: &'static str, text: String) -> Script {
        let digest = redis::Script::new(&text).get_hash().to_owned();
        Script { name, text, digest }
    }

    /// `body` behind the keys. What steps share stands where a body asks for it, so that an
    /// uncontended step ends before it is even run.
    fn step(name: &'static str, body: &str) -> Script {
        let text =
            PARTS.iter().fold(body.to_owned(), |text, (line, part)| text.replace(line, part));
        Script::new(name, format!("{KEYS}{text}"))
    }

    /// Any number of `steps` in one call.
    fn batch(steps: &[&Script]) -> Script {
        let function = |step: &&Script| {
            let text = step.text.replace("redis.call('TIME')", "TIME");
            format!("{} = function(KEYS, ARGV)\n{text}end,\n", step.name)
        };
        let functions: String = steps.iter().map(function).collect();
        let text = include_str!("scripts/batch.lua").replace("--<steps>\n", &functions);
        Script::new("batch", text)
    }
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) attempt: Script,
    pub(crate) release: Script,
    pub(crate) renew: Script,
    pub(crate) look: Script,
    pub(crate) inspect: Script,
    pub(crate) batch: Script,
}

impl Scripts {
    pub(crate) fn all(&self) -> [&Script; 6] {
        [&self.attempt, &self.release, &self.renew, &self.look, &self.inspect, &self.batch]
    }
}

pub(crate) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| {
    let attempt = Script::step("attempt", include_str!("scripts/attempt.lua"));
    let release = Script::step("release", include_str!("scripts/release.lua"));
    let renew = Script::step("renew", include_str!("scripts/renew.lua"));
    let look = Script::step("look", include_str!("scripts/look.lua"));
    let inspect = Script::step("inspect", include_str!("scripts/inspect.lua"));
    let batch = Script::batch(&[&attempt, &release, &renew, &look, &inspect]);
    Scripts { attempt, release, renew, look, inspect, batch }
});

/// Those of a quorum's nodes: each does its part of what one server would do alone.
#[derive(Debug)]
pub(crate) struct QuorumScripts {
    pub(crate) vote: Script,
    pub(crate) raise: Script,
    pub(crate) extend: Script,
    pub(crate) free: Script,
    pub(crate) look: Script,
    pub(crate) batch: Script,
}

impl QuorumScripts {
    pub(crate) fn all(&self) -> [&Script; 7] {
        let QuorumScripts { vote, raise, extend, free, look, batch } = self;
        [vote, raise, extend, free, look, batch, &SCRIPTS.inspect]
    }
}

pub(crate) static QUORUM: LazyLock<QuorumScripts> = LazyLock::new(|| {
    let vote = Script::step("vote", include_str!("scripts/redlock/vote.lua"));
    let raise = Script::step("raise", include_str!("scripts/redlock/raise.lua"));
    let extend = Script::step("extend", include_str!("scripts/redlock/extend.lua"));
    let free = Script::step("free", include_str!("scripts/redlock/free.lua"));
    let look = Script::step("look", include_str!("scripts/redlock/look.lua"));
    let batch = Script::batch(&[&vote, &raise, &extend, &free, &look, &SCRIPTS.inspect]);
    QuorumScripts { vote, raise, extend, free, look, batch }
});

/// The scripts' names and texts, for tests that drive them without the rest of this crate.
#[doc(hidden)]
#[must_use]
pub fn scripts() -> Vec<(&'static str, &'static str)> {
    texts(&SCRIPTS.all())
}

/// The same of a quorum's.
#[doc(hidden)]
#[must_use]
pub fn quorum_scripts() -> Vec<(&'static str, &'static str)> {
    texts(&QUORUM.all())
}

fn texts(scripts: &[&'static Script]) -> Vec<(&'static str, &'static str)> {
    scripts.iter().map(|script| (script.name, script.text.as_str())).collect()
}
