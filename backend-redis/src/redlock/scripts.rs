//! The atomic steps of one node of a quorum: each does its part of what a single server would do
//! alone.

use std::sync::LazyLock;

use crate::protocol::script::{SCRIPTS, Script, texts};

/// What these steps share, besides what all of the crate's do.
const PARTS: &[(&str, &str)] = &[
    ("--<fencing_token.lua>\n", include_str!("../protocol/lua/redlock/fencing_token.lua")),
    ("--<eviction.lua>\n", include_str!("../protocol/lua/redlock/eviction.lua")),
    ("--<hint.lua>\n", include_str!("../protocol/lua/redlock/hint.lua")),
];

#[derive(Debug)]
pub(crate) struct QuorumScripts {
    pub(crate) vote: Script,
    pub(crate) raise: Script,
    pub(crate) extend: Script,
    pub(crate) free: Script,
    pub(crate) check_waiters: Script,
    pub(crate) batch: Script,
}

impl QuorumScripts {
    pub(crate) fn all(&self) -> [&Script; 7] {
        let QuorumScripts { vote, raise, extend, free, check_waiters, batch } = self;
        [vote, raise, extend, free, check_waiters, batch, &SCRIPTS.inspect]
    }
}

pub(crate) static QUORUM: LazyLock<QuorumScripts> = LazyLock::new(|| {
    let step = |name, text| Script::step(name, text, PARTS);
    let vote = step("vote", include_str!("../protocol/lua/redlock/vote.lua"));
    let raise = step("raise", include_str!("../protocol/lua/redlock/raise.lua"));
    let extend = step("extend", include_str!("../protocol/lua/redlock/extend.lua"));
    let free = step("free", include_str!("../protocol/lua/redlock/free.lua"));
    let check_waiters =
        step("check_waiters", include_str!("../protocol/lua/redlock/check_waiters.lua"));
    let batch = Script::batch(&[&vote, &raise, &extend, &free, &check_waiters, &SCRIPTS.inspect]);
    QuorumScripts { vote, raise, extend, free, check_waiters, batch }
});

/// The scripts' names and texts, for tests that drive them without the rest of this crate.
#[doc(hidden)]
#[must_use]
pub fn quorum_scripts() -> Vec<(&'static str, &'static str)> {
    texts(&QUORUM.all())
}
