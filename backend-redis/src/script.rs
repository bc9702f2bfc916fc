//! The atomic steps, each a Lua file of its own beside this one.
//!
//! A script is called by its digest; a server that does not know it, after a restart or
//! `SCRIPT FLUSH`, is sent the text. Texts are constant: values travel in ARGV only.

use std::sync::LazyLock;

/// One script and its digest.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    pub(crate) digest: String,
}

const MINT: &str = include_str!("scripts/mint.lua");
const QUEUE: &str = include_str!("scripts/queue.lua");

impl Script {
    /// `body` behind the beginning of all scripts. What they share about queues stands in the
    /// middle, where a body asks for it, so that an uncontended step ends before it is even run.
    fn of(body: &str) -> Script {
        let text = format!("{MINT}{}", body.replace("--<queue.lua>\n", QUEUE));
        let digest = redis::Script::new(&text).get_hash().to_owned();
        Script { text, digest }
    }
}

/// All steps.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) attempt: Script,
    pub(crate) release: Script,
    pub(crate) renew: Script,
    pub(crate) look: Script,
    pub(crate) inspect: Script,
}

impl Scripts {
    pub(crate) fn all(&self) -> [(&'static str, &Script); 5] {
        [
            ("attempt", &self.attempt),
            ("release", &self.release),
            ("renew", &self.renew),
            ("look", &self.look),
            ("inspect", &self.inspect),
        ]
    }
}

pub(crate) static SCRIPTS: LazyLock<Scripts> = LazyLock::new(|| Scripts {
    attempt: Script::of(include_str!("scripts/attempt.lua")),
    release: Script::of(include_str!("scripts/release.lua")),
    renew: Script::of(include_str!("scripts/renew.lua")),
    look: Script::of(include_str!("scripts/look.lua")),
    inspect: Script::of(include_str!("scripts/inspect.lua")),
});

/// The scripts' names and texts, for tests that drive them without the rest of this crate.
#[doc(hidden)]
#[must_use]
pub fn scripts() -> Vec<(&'static str, &'static str)> {
    SCRIPTS.all().into_iter().map(|(name, script)| (name, script.text.as_str())).collect()
}
