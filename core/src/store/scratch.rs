//! Lock names for one run of a tool or a test on a shared store, so that the run can remove
//! everything it made there, fencing tokens included, and nothing else.

use uuid::Uuid;

/// A prefix for lock names that has never been used before.
///
/// It is always fresh, with 122 random bits, and is never made from a text. So
/// [clearing](crate::DistributedLock::clear) it can only remove what this run has made, and no
/// fencing token that another client relies on can start again.
#[derive(Clone, Debug)]
pub struct Scratch {
    prefix: String,
    /// Where the random part begins; a colon follows it.
    random_at: usize,
}

impl Scratch {
    /// A prefix of `stem`, on which access rights may depend, the human-readable `word`, and a fresh
    /// random part.
    #[must_use]
    pub fn fresh(stem: &str, word: &str) -> Scratch {
        let random = Uuid::new_v4();
        let prefix = format!("{stem}{word}-{}:", random.simple());
        let random_at = stem.len() + word.len() + 1;
        Scratch { prefix, random_at }
    }

    /// The prefix of the names, for the URL parameter `prefix` or a part of one.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The random part: hexadecimal digits, which every store writes as they are.
    #[must_use]
    pub fn random(&self) -> &str {
        &self.prefix[self.random_at..self.prefix.len() - 1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_used_once() {
        let one = Scratch::fresh("app:{ü}*", "conformance");
        let two = Scratch::fresh("app:{ü}*", "conformance");
        assert_ne!(one.prefix(), two.prefix());
        assert_eq!(one.prefix(), format!("app:{{ü}}*conformance-{}:", one.random()));
        assert_eq!(one.random().len(), 32);
        assert!(one.random().bytes().all(|byte| byte.is_ascii_hexdigit()));
    }
}
