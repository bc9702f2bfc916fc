//! Names for one run of a tool or a test on a store that others use, so that the run can remove
//! all that it made there, fencing tokens included, and nothing else.

use uuid::Uuid;

/// A prefix for lock names that has never been used before.
///
/// It can only be made fresh, with 122 random bits, and not from a text. So what is
/// [cleared](crate::DistributedLock::clear) by it can be nobody's but this run's, and no fencing
/// token that anything else relies on can begin anew.
#[derive(Clone, Debug)]
pub struct Scratch {
    prefix: String,
    /// Where the random part begins; a colon follows it.
    random_at: usize,
}

impl Scratch {
    /// `stem`, which access rights may depend on, `word`, for people, and a fresh random part.
    #[must_use]
    pub fn fresh(stem: &str, word: &str) -> Scratch {
        let random = Uuid::new_v4();
        let prefix = format!("{stem}{word}-{}:", random.simple());
        let random_at = stem.len() + word.len() + 1;
        Scratch { prefix, random_at }
    }

    /// What the names begin with, as the URL parameter `prefix` or a part of one.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The random part: hexadecimal digits, which no store encodes.
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
