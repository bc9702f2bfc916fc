//! Bounds what a server may send: messages of a limited size, and answers of a limited size in all.
//!
//! The client crate keeps a message until it has come whole, and an answer until its last row has.
//! <https://www.postgresql.org/docs/current/protocol-message-formats.html>

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use fencelock_net::Frames;

/// The largest answer before the login has succeeded: the parameters of a server, or its error. Always the largest
/// notification, whose payload is at most 8,000 bytes.
const SMALL: u64 = 64 << 10;
/// The largest answer afterwards, as with Redis. The thousand waiters that `inspect` shows take less than 1 MiB.
const LARGE: u64 = 64 << 20;
/// What a message costs besides its bytes: about the memory that a row takes.
const MESSAGE: u64 = 64;

/// The position in the stream of messages.
#[derive(Debug)]
pub(super) struct Messages {
    /// The type of the current message and its length, as far as they have come.
    header: [u8; 5],
    header_len: usize,
    /// Missing bytes of the current message.
    content: u64,
    /// The cost of the current answer, as far as it is announced.
    cost: u64,
    login: Arc<LoginState>,
}

/// What the messages of a login tell, which the client crate does not.
#[derive(Debug, Default)]
pub(super) struct LoginState {
    pub(super) is_done: AtomicBool,
    /// The process ID of the server's backend, by which, and a secret, a statement is cancelled. A pooler tells one of
    /// its own.
    pub(super) backend: AtomicU32,
}

impl Messages {
    pub(super) fn new(login: Arc<LoginState>) -> Messages {
        Messages { header: [0; 5], header_len: 0, content: 0, cost: 0, login }
    }

    /// Adds the message that begins to the cost.
    fn begin(&mut self) -> io::Result<()> {
        let [kind, length @ ..] = self.header;
        // A length below 4, which the client crate refuses, is none; the same as a negative one is too large.
        let length = u64::from(u32::from_be_bytes(length));
        self.content = length.saturating_sub(4);
        let is_logged_in = self.login.is_done.load(Ordering::Relaxed);
        let largest = if is_logged_in { LARGE } else { SMALL };
        let (cost, largest) = match kind {
            // It belongs to no answer, and is not kept; nor is a notice, once the login has succeeded.
            b'A' => (length, SMALL),
            b'N' if is_logged_in => (length, largest),
            // The end of an answer.
            b'Z' => {
                self.cost = 0;
                (length, SMALL)
            }
            _ => {
                self.cost = self.cost.saturating_add(length + MESSAGE);
                (self.cost, largest)
            }
        };
        if cost <= largest {
            return Ok(());
        }
        let message = format!("the server sent more than {} KiB at once", largest >> 10);
        Err(io::Error::new(io::ErrorKind::InvalidData, message))
    }
}

impl Frames for Messages {
    fn follow(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.content > 0 {
                let length = bytes.len().min(usize::try_from(self.content).unwrap_or(usize::MAX));
                if self.header[0] == b'K' {
                    // Before the four bytes of the secret.
                    let known = self.login.backend.load(Ordering::Relaxed);
                    let more = (self.content.saturating_sub(4) as usize).min(length);
                    let id =
                        bytes[..more].iter().fold(known, |id, byte| id << 8 | u32::from(*byte));
                    self.login.backend.store(id, Ordering::Relaxed);
                }
                bytes = &bytes[length..];
                self.content -= length as u64;
                continue;
            }
            let length = bytes.len().min(self.header.len() - self.header_len);
            self.header[self.header_len..][..length].copy_from_slice(&bytes[..length]);
            self.header_len += length;
            bytes = &bytes[length..];
            if self.header_len == self.header.len() {
                self.header_len = 0;
                self.begin()?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, length: u32) -> Vec<u8> {
        let mut message = vec![kind];
        message.extend((length + 4).to_be_bytes());
        message.resize(5 + length as usize, 0);
        message
    }

    fn messages(is_logged_in: bool) -> Messages {
        Messages::new(Arc::new(LoginState { is_done: is_logged_in.into(), ..Default::default() }))
    }

    /// However TCP cuts them.
    #[test]
    fn an_answer_is_bounded_and_not_the_sum_of_all() {
        let row = message(b'D', 40_000);
        for piece in [1, 4, 5, 7, 60_000] {
            let mut messages = messages(false);
            let mut send =
                |bytes: &[u8]| bytes.chunks(piece).try_for_each(|bytes| messages.follow(bytes));
            for _ in 0..5 {
                // None of these belongs to an answer.
                let others = [message(b'A', 40_000), message(b'A', 0), message(b'A', 40_000)];
                send(&others.concat()).unwrap();
                send(&[&row[..], &message(b'C', 9), &message(b'Z', 1)].concat()).unwrap();
            }
            send(&row).unwrap();
            let error = send(&row).unwrap_err();
            assert!(error.to_string().contains("more than 64 KiB"), "{error}");
        }
        let mut messages = messages(true);
        (0..1_000).try_for_each(|_| messages.follow(&row)).unwrap();
        assert!((0..1_000).try_for_each(|_| messages.follow(&row)).is_err());
    }

    #[test]
    fn a_message_counts_when_it_is_announced() {
        for (kind, is_logged_in) in [(b'R', false), (b'E', false), (b'A', true), (b'Z', true)] {
            let announced = [&[kind][..], &70_000u32.to_be_bytes()].concat();
            assert!(messages(is_logged_in).follow(&announced).is_err(), "{}", kind as char);
        }
        assert!(messages(true).follow(b"D\xff\xff\xff\xff").is_err());
        // What is kept until the login has succeeded, or for ever.
        for kind in [b'S', b'N'] {
            let mut messages = messages(false);
            assert!((0..100).try_for_each(|_| messages.follow(&message(kind, 1_000))).is_err());
        }
    }
}
