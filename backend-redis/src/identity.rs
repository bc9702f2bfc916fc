//! What a claim is called in the store: one text that is the value at the lock's key, the member
//! of a group and the member of the queue, so that nothing else has to be looked up, or can go
//! stale when somebody deletes a key.
//!
//! `<mode> <ttl in ms> <process> <owner> <label>`, mode `x`, `s` or `p<n>/<limit>`. Any other text
//! at a lock's key was written by another program.

use std::fmt;

use fencelock_core::{Claim, Label, Mode, Permits};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use uuid::Uuid;

/// One connected store among all: the channel that its claims are told on, and its name in the
/// queues. It begins with the prefix of the keys, so that one ACL pattern covers both.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process(String);

impl Process {
    pub(crate) fn fresh(prefix: &str) -> Process {
        // Lua's %S ends at white space, which a prefix may have.
        const SPACES: &AsciiSet = &CONTROLS.add(b' ').add(b'%');
        let prefix = utf8_percent_encode(prefix, SPACES);
        let random = Uuid::new_v4().simple().to_string();
        Process(format!("{prefix}@{}", &random[..16]))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// Writes down `claim` of `process`.
pub(crate) fn identity(claim: &Claim, process: &Process) -> String {
    struct Word(Mode);
    impl fmt::Display for Word {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            match self.0 {
                Mode::Exclusive => f.write_str("x"),
                Mode::Shared => f.write_str("s"),
                Mode::Permits(permits) => write!(f, "p{}/{}", permits.n(), permits.limit()),
            }
        }
    }
    let (mode, ttl) = (Word(claim.mode()), claim.ttl().as_millis());
    let (owner, label) = (claim.owner().reveal(), claim.label().as_str());
    format!("{mode} {ttl} {} {} {label}", process.as_str(), owner.simple())
}

/// An identity that was read from the store.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) mode: Mode,
    pub(crate) owner: Uuid,
    pub(crate) label: Label,
}

impl Identity {
    /// `None` for a text of another program.
    pub(crate) fn parse(text: &[u8]) -> Option<Identity> {
        let text = std::str::from_utf8(text).ok()?;
        let mut words = text.splitn(5, ' ');
        let mode = match words.next()? {
            "x" => Mode::Exclusive,
            "s" => Mode::Shared,
            permits => {
                let (n, limit) = permits.strip_prefix('p')?.split_once('/')?;
                Mode::Permits(Permits::new(n.parse().ok()?, limit.parse().ok()?).ok()?)
            }
        };
        let _ttl: u64 = words.next()?.parse().ok()?;
        let _process = words.next()?;
        let owner = Uuid::try_parse(words.next()?).ok()?;
        let label = Label::new(words.next()?);
        Some(Identity { mode, owner, label })
    }
}

/// The keys of one lock, in one slot of a cluster.
///
/// The lock's own key is the prefix and the name, so that clients in other languages share it.
/// Braces would choose a slot and are percent-encoded, and so is the percent sign.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    pub(crate) lock: String,
    pub(crate) queue: String,
    pub(crate) fence: String,
}

impl Keys {
    pub(crate) fn of(key: &str) -> Keys {
        let lock = match key.contains(['{', '}', '%']) {
            true => key.replace('%', "%25").replace('{', "%7B").replace('}', "%7D"),
            false => key.to_owned(),
        };
        let queue = format!("{{{lock}}}:q");
        let fence = format!("{{{lock}}}:f");
        Keys { lock, queue, fence }
    }

    pub(crate) fn all(&self) -> [&str; 3] {
        [&self.lock, &self.queue, &self.fence]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_other_programs_write_is_no_identity() {
        for foreign in [
            "",
            "x",
            "deadbeef",
            "0123456789abcdef0123456789abcdef",
            "x 30000 p 0123 label",
            "q 30000 p 67e55044-10b1-426f-9247-bb680e5fe0c8 l",
            "p0/2 30000 p 67e5504410b1426f9247bb680e5fe0c8 l",
        ] {
            assert_eq!(Identity::parse(foreign.as_bytes()), None, "{foreign:?}");
        }
        let own = "p2/3 30000 lock:@1 67e5504410b1426f9247bb680e5fe0c8 host pid 7";
        let own = Identity::parse(own.as_bytes()).expect("our own");
        assert_eq!(own.mode, Mode::Permits(Permits::new(2, 3).unwrap()));
        assert_eq!(own.label.as_str(), "host pid 7");
    }

    #[test]
    fn a_process_is_one_word_with_the_prefix_in_front() {
        let process = Process::fresh("my locks:\t");
        assert!(process.as_str().starts_with("my%20locks:%09@"), "{process:?}");
        assert_ne!(process, Process::fresh("my locks:\t"));
    }

    proptest! {
        #[test]
        fn keys_are_injective_and_choose_no_slot(a in "[{}%a7BD:]{1,9}", b in "[{}%a7BD:]{1,9}") {
            let (one, two) = (Keys::of(&a), Keys::of(&b));
            prop_assert_eq!(a == b, one.lock == two.lock);
            let chooses_a_slot = one.lock.contains(['{', '}']);
            prop_assert!(!chooses_a_slot);
            prop_assert!(one.queue != two.lock && one.fence != two.lock);
        }
    }
}
