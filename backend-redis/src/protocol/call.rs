//! Calls of scripts, as commands.

use redis::Cmd;

use super::script::Script;

/// One call of a script, with its keys and values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScriptCall<'a> {
    pub(crate) script: &'static Script,
    /// All in one slot; the first one is the lock's.
    pub(crate) keys: &'a [&'a str],
    pub(crate) values: &'a [&'a [u8]],
}

impl ScriptCall<'_> {
    /// The command: by digest, or with the text for a server that does not know the digest.
    pub(crate) fn command(&self, by: EvalBy) -> Cmd {
        command(self.script, by, self.keys.len(), self.words())
    }

    /// The keys and the values.
    pub(crate) fn words(&self) -> impl Iterator<Item = &[u8]> + Clone {
        self.keys.iter().map(|key| key.as_bytes()).chain(self.values.iter().copied())
    }
}

/// The command that calls `script` with `words`, the first `keys` of which are keys.
pub(crate) fn command<'a>(
    script: &Script,
    by: EvalBy,
    keys: usize,
    words: impl Iterator<Item = &'a [u8]> + Clone,
) -> Cmd {
    let (name, script) = match by {
        EvalBy::Digest => ("EVALSHA", &script.digest),
        EvalBy::Text => ("EVAL", &script.text),
    };
    let (count, room) =
        words.clone().fold((0, 0), |(count, room), word| (count + 1, room + word.len()));
    let mut command = Cmd::with_capacity(3 + count, script.len() + room + 8);
    command.arg(name).arg(script).arg(keys);
    for word in words {
        command.arg(word);
    }
    command
}

/// How a call identifies its script.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EvalBy {
    Digest,
    Text,
}

/// The error code of a server that does not know a script's digest.
pub(crate) const UNKNOWN_SCRIPT: &str = "NOSCRIPT";
