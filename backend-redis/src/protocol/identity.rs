//! A claim's identity in the store: one text that is the value at the lock's key, the member of a
//! group and the member of the queue, so that nothing else has to be looked up, or can go stale when
//! a key is deleted.
//!
//! `<mode> <ttl in ms> <client> <owner> <label>`, mode `x`, `s` or `p<n>/<limit>`; `x+<n>` reserves
//! n fencing tokens. Any other text at a lock's key was written by another program. On a quorum each round of a claim has an identity
//! of its own: the number of the round follows the mode, such as `x3`.

use std::borrow::Cow;

use fencelock_core::{Claim, Label, Mode, Permits};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use uuid::Uuid;

/// The ID of a client: the channel that its claims are notified on, and its name in the queues. It
/// begins with the prefix of the keys, so that one ACL pattern covers both.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientId(String);

impl ClientId {
    pub(crate) fn fresh(prefix: &str) -> ClientId {
        // Lua's %S ends at white space, which a prefix may have.
        const SPACES: &AsciiSet = &CONTROLS.add(b' ').add(b'%');
        let prefix = utf8_percent_encode(prefix, SPACES);
        let random = Uuid::new_v4().simple().to_string();
        ClientId(format!("{prefix}@{}", &random[..16]))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it has the form of an ID of this library, which hardly any other channel's name has.
    pub(crate) fn is_well_formed(&self) -> bool {
        let is_hex = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        let number = self.0.rsplit_once('@').map(|(_, number)| number.as_bytes());
        number.is_some_and(|it| it.len() == 16 && it.iter().copied().all(is_hex))
    }
}

/// The identity of `claim`, made by `client`, whose grant reserves so many `tokens`.
pub(crate) fn identity(claim: &Claim, client: &ClientId, tokens: u32) -> String {
    let (client, label) = (client.as_str(), claim.label().as_str());
    let mut buffer = Uuid::encode_buffer();
    let owner = claim.owner().reveal().simple().encode_lower(&mut buffer);
    // Enough for the largest numbers: every acquisition writes one.
    let mut text = String::with_capacity(64 + client.len() + owner.len() + label.len());
    match claim.mode() {
        Mode::Exclusive => {
            text.push('x');
            if tokens > 1 {
                text.push('+');
                text.push_str(&tokens.to_string());
            }
        }
        Mode::Shared => text.push('s'),
        Mode::Permits(permits) => {
            text.push('p');
            text.push_str(&permits.n().to_string());
            text.push('/');
            text.push_str(&permits.limit().to_string());
        }
    }
    text.push(' ');
    text.push_str(&claim.ttl().as_millis().to_string());
    for word in [client, owner, label] {
        text.push(' ');
        text.push_str(word);
    }
    text
}

/// The identity of a round of the waiter's `identity`, whose mode is one letter.
#[cfg(feature = "redlock")]
pub(crate) fn of_round(identity: &str, round: u32) -> String {
    let (mode, rest) = identity.split_at(1);
    format!("{mode}{round}{rest}")
}

/// The TTL in an identity of this library.
pub(crate) fn ttl_of(identity: &str) -> &str {
    identity.split(' ').nth(1).unwrap_or_default()
}

/// An identity that was read from the store.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) mode: Mode,
    pub(crate) client: ClientId,
    pub(crate) owner: Uuid,
    pub(crate) label: Label,
    /// How many tokens its grant reserves.
    pub(crate) tokens: u64,
}

impl Identity {
    /// `None` for a text of another program.
    pub(crate) fn parse(text: &[u8]) -> Option<Identity> {
        let text = std::str::from_utf8(text).ok()?;
        let mut words = text.splitn(5, ' ');
        let (mode, tokens) = match words.next()? {
            reserving if reserving.starts_with("x+") => ("x", reserving[2..].parse().ok()?),
            mode => (mode, 1),
        };
        let mode = match mode {
            exclusive if is_round(exclusive, 'x') => Mode::Exclusive,
            shared if is_round(shared, 's') => Mode::Shared,
            permits => {
                let (n, limit) = permits.strip_prefix('p')?.split_once('/')?;
                Mode::Permits(Permits::new(n.parse().ok()?, limit.parse().ok()?).ok()?)
            }
        };
        let [ttl, client, owner] = [words.next()?, words.next()?, words.next()?];
        let _ttl: u64 = ttl.parse().ok()?;
        // What the scripts do not take for a claim: other white space, and a UUID with hyphens.
        let is_word = !client.is_empty() && !client.contains(char::is_whitespace);
        if ttl.starts_with('+') || !is_word || owner.len() != 32 {
            return None;
        }
        let (client, owner) = (ClientId(client.to_owned()), Uuid::try_parse(owner).ok()?);
        let label = Label::new(words.next()?);
        Some(Identity { mode, client, owner, label, tokens })
    }
}

/// `x`, or `x` and the number of a round.
fn is_round(word: &str, mode: char) -> bool {
    let round = word.strip_prefix(mode);
    round.is_some_and(|round| round.bytes().all(|digit| digit.is_ascii_digit()))
}

/// The keys of one lock, in one slot of a cluster.
///
/// The lock's own key is the prefix and the name, so that clients in other languages share it.
/// Braces would select a slot and are percent-encoded, and so is the percent sign.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// `{lock}:q{lock}:f`: every claim stores its keys, in one allocation.
    text: String,
    /// The length of `lock`.
    length: usize,
}

impl Keys {
    pub(crate) fn of(key: &str) -> Keys {
        let lock = without_braces(key);
        Keys { text: ["{", &lock, "}:q{", &lock, "}:f"].concat(), length: lock.len() }
    }

    pub(crate) fn lock(&self) -> &str {
        &self.text[1..=self.length]
    }

    pub(crate) fn all(&self) -> [&str; 3] {
        let (queue, token) = self.text.split_at(self.text.len() / 2);
        [self.lock(), queue, token]
    }
}

/// The key of a cell, in the slot of the lock of the same name.
pub(crate) fn cell_key(key: &str) -> String {
    ["{", &without_braces(key), "}:c"].concat()
}

fn without_braces(key: &str) -> Cow<'_, str> {
    match key.contains(['{', '}', '%']) {
        true => key.replace('%', "%25").replace('{', "%7B").replace('}', "%7D").into(),
        false => key.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts_of_other_programs_are_not_identities() {
        for foreign in [
            "",
            "x",
            "0123456789abcdef0123456789abcdef",
            "x 30000 p 0123 label",
            "q 30000 p 67e5504410b1426f9247bb680e5fe0c8 l",
            "p0/2 30000 p 67e5504410b1426f9247bb680e5fe0c8 l",
            "x 30000 p 67e55044-10b1-426f-9247-bb680e5fe0c8 l",
            "x +30000 p 67e5504410b1426f9247bb680e5fe0c8 l",
            "x 30000  67e5504410b1426f9247bb680e5fe0c8 l",
            "x 30000 p\tq 67e5504410b1426f9247bb680e5fe0c8 l",
        ] {
            assert_eq!(Identity::parse(foreign.as_bytes()), None, "{foreign:?}");
        }
        let own = "p2/3 30000 lock:@1 67e5504410b1426f9247bb680e5fe0c8 host pid 7";
        let own = Identity::parse(own.as_bytes()).expect("our own");
        assert_eq!(own.mode, Mode::Permits(Permits::new(2, 3).unwrap()));
        assert_eq!(own.label.as_str(), "host pid 7");
    }

    #[cfg(feature = "redlock")]
    #[test]
    fn the_identity_of_a_round_parses_as_its_claim_s() {
        let waiter = "x 30000 lock:@1 67e5504410b1426f9247bb680e5fe0c8 host";
        let round = of_round(waiter, 12);
        assert_eq!(round, "x12 30000 lock:@1 67e5504410b1426f9247bb680e5fe0c8 host");
        assert_eq!(Identity::parse(round.as_bytes()), Identity::parse(waiter.as_bytes()));
        assert_eq!(ttl_of(&round), "30000");
    }

    #[test]
    fn a_client_id_is_one_word_that_begins_with_the_prefix() {
        let client = ClientId::fresh("my locks:\t");
        assert!(client.as_str().starts_with("my%20locks:%09@"), "{client:?}");
        assert_ne!(client, ClientId::fresh("my locks:\t"));
        assert!(client.is_well_formed() && ClientId::fresh("").is_well_formed());
        let others =
            ["payments", "@", "p@0123456789abcde", "p@0123456789abcdeF", "0123456789abcdef"];
        assert!(others.iter().all(|other| !ClientId(other.to_string()).is_well_formed()));
    }

    proptest! {
        #[test]
        fn keys_are_injective_and_select_no_slot(a in "[{}%a7BD:]{1,9}", b in "[{}%a7BD:]{1,9}") {
            let (one, two) = (Keys::of(&a), Keys::of(&b));
            prop_assert_eq!(a == b, one.lock() == two.lock());
            let selects_a_slot = one.lock().contains(['{', '}']);
            prop_assert!(!selects_a_slot);
            let [lock, queue, token] = one.all();
            prop_assert_eq!(queue, format!("{{{lock}}}:q"));
            prop_assert_eq!(token, format!("{{{lock}}}:f"));
            prop_assert_eq!(cell_key(&a), format!("{{{lock}}}:c"));
            prop_assert!(queue != two.lock() && token != two.lock() && cell_key(&a) != two.lock());
        }
    }
}
