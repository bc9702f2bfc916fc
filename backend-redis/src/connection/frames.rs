//! Bounds what a server may send: replies in the Redis protocol, of a limited size.
//!
//! The client crate allocates whatever a reply announces, so that a broken server, or one that is
//! not a Redis server, could take all of a program's memory. Here replies are parsed as they
//! arrive, and the connection ends at the first one that is too large or not of the protocol.
//! <https://redis.io/docs/latest/develop/reference/protocol-spec/>

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use fencelock_net::Frames;

/// The largest cost of a reply before the login has succeeded: a `HELLO` with a list of modules.
const BEFORE_LOGIN: u64 = 64 << 10;
/// The largest cost afterwards. `inspect` of a lock with 100,000 waiters costs about 30 MiB.
const AFTER_LOGIN: u64 = 64 << 20;
/// The cost of each value of a reply besides its bytes: about the memory that it takes when parsed.
const VALUE: u64 = 64;

/// What is known of a stream while the client crate has it.
#[derive(Debug, Default)]
pub(crate) struct WireState {
    logged_in: AtomicBool,
    received: AtomicBool,
    invalid: OnceLock<InvalidReply>,
}

/// Why nothing more is read from a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvalidReply {
    TooLarge { largest: u64 },
    Http,
    Tls,
    Garbage,
}

impl WireState {
    /// Raises the limit: the peer has proven to be a Redis server.
    pub(crate) fn logged_in(&self) {
        self.logged_in.store(true, Ordering::Relaxed);
    }

    fn largest(&self) -> u64 {
        if self.logged_in.load(Ordering::Relaxed) { AFTER_LOGIN } else { BEFORE_LOGIN }
    }

    /// Whether any byte was received.
    pub(crate) fn has_received(&self) -> bool {
        self.received.load(Ordering::Relaxed)
    }

    pub(crate) fn invalid_reply(&self) -> Option<InvalidReply> {
        self.invalid.get().copied()
    }
}

impl InvalidReply {
    /// The kind of peer that sends `bytes`, with which no reply begins.
    fn of(bytes: &[u8]) -> InvalidReply {
        match bytes {
            [b'H', b'T', b'T', b'P', ..] => InvalidReply::Http,
            // An alert or a handshake of TLS 1.x.
            [0x15 | 0x16, 3, ..] => InvalidReply::Tls,
            _ => InvalidReply::Garbage,
        }
    }
}

impl fmt::Display for InvalidReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidReply::TooLarge { largest } => {
                write!(f, "the server sent a reply larger than {} KiB; is it Redis?", largest >> 10)
            }
            InvalidReply::Http => f.write_str("the server speaks HTTP; is the port that of Redis?"),
            InvalidReply::Tls => f.write_str("the server speaks TLS; use rediss://"),
            InvalidReply::Garbage => f.write_str(
                "the server does not speak the Redis protocol; is the host and port that of Redis?",
            ),
        }
    }
}

impl std::error::Error for InvalidReply {}

/// Follows the replies of a stream, which ends at an invalid one.
#[derive(Debug)]
pub(crate) struct BoundedReplies {
    replies: Replies,
    wire: Arc<WireState>,
}

impl BoundedReplies {
    pub(crate) fn new(wire: Arc<WireState>) -> BoundedReplies {
        BoundedReplies { replies: Replies::default(), wire }
    }
}

impl Frames for BoundedReplies {
    fn follow(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !bytes.is_empty() {
            self.wire.received.store(true, Ordering::Relaxed);
        }
        self.replies.follow(bytes, self.wire.largest()).map_err(|invalid| {
            let invalid = *self.wire.invalid.get_or_init(|| invalid);
            // The client crate treats this kind as the end of the connection.
            io::Error::new(io::ErrorKind::ConnectionAborted, invalid)
        })
    }
}

/// The parser's position in the stream of replies.
#[derive(Debug, Default)]
struct Replies {
    /// Missing values of the current reply, including the current one; 0 between replies.
    open: u64,
    /// Missing bytes of the current string, with its end of line.
    content: u64,
    line: Option<Line>,
    /// Cost of the current reply, as far as it is announced.
    cost: u64,
}

/// The first line of a value, as far as it was received.
#[derive(Clone, Copy, Debug)]
struct Line {
    kind: u8,
    /// Its number; `None` for a sign or any other text.
    number: Option<u64>,
}

impl Replies {
    fn follow(&mut self, mut bytes: &[u8], largest: u64) -> Result<(), InvalidReply> {
        while let Some((first, rest)) = bytes.split_first() {
            if self.content > 0 {
                let length = bytes.len().min(usize::try_from(self.content).unwrap_or(usize::MAX));
                bytes = &bytes[length..];
                self.content -= length as u64;
                if self.content == 0 {
                    self.open -= 1;
                }
                continue;
            }
            match &mut self.line {
                None => self.begin(*first).ok_or_else(|| InvalidReply::of(bytes))?,
                Some(line) if *first == b'\n' => {
                    let line = *line;
                    self.line = None;
                    self.end(line);
                }
                Some(line) => line.read(*first),
            }
            self.cost = self.cost.saturating_add(1);
            if self.cost > largest {
                return Err(InvalidReply::TooLarge { largest });
            }
            bytes = rest;
        }
        Ok(())
    }

    /// Begins a value.
    fn begin(&mut self, kind: u8) -> Option<()> {
        if self.open == 0 {
            (self.open, self.cost) = (1, 0);
        }
        self.line = b"+-:$*_,#!=(%~>|".contains(&kind).then_some(Line { kind, number: Some(0) });
        self.line.map(drop)
    }

    /// Ends the first line of a value.
    fn end(&mut self, Line { kind, number }: Line) {
        // Without a number it is null, or an error that the client crate reports.
        let null = number.is_none();
        let number = number.unwrap_or(0);
        let values = match kind {
            b'$' | b'!' | b'=' if !null => {
                self.content = number.saturating_add(2);
                self.cost = self.cost.saturating_add(number);
                return;
            }
            b'*' | b'~' | b'>' => number,
            b'%' => number.saturating_mul(2),
            // Attributes precede the value that they belong to.
            b'|' => number.saturating_mul(2).saturating_add(1),
            _ => 0,
        };
        self.cost = self.cost.saturating_add(values.saturating_mul(VALUE));
        self.open = (self.open - 1).saturating_add(values);
    }
}

impl Line {
    fn read(&mut self, byte: u8) {
        let digit = match byte {
            b'0'..=b'9' => u64::from(byte - b'0'),
            b'\r' => return,
            _ => return self.number = None,
        };
        self.number = self.number.map(|number| number.saturating_mul(10).saturating_add(digit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// `$0` is followed by an end of line, too.
    const REPLIES: &str = "+OK\r\n:-1\r\n$5\r\nab\r\nc\r\n$-1\r\n*-1\r\n*0\r\n_\r\n,1.5\r\n#t\r\n\
                           *2\r\n%1\r\n+a\r\n*1\r\n:1\r\n$0\r\n\r\n>2\r\n+message\r\n=7\r\ntxt:abc\r\n\
                           |1\r\n+ttl\r\n:3600\r\n*1\r\n!4\r\n-ERR\r\n";

    proptest! {
        /// However they are split.
        #[test]
        fn replies_are_parsed(pieces in prop::collection::vec(1..9usize, 0..200)) {
            let mut replies = Replies::default();
            let mut rest = REPLIES.as_bytes();
            for piece in pieces {
                let (piece, after) = rest.split_at(piece.min(rest.len()));
                replies.follow(piece, 1000).unwrap();
                rest = after;
            }
            replies.follow(rest, 1000).unwrap();
            prop_assert!(replies.open == 0 && replies.line.is_none(), "{replies:?}");
        }

        #[test]
        fn garbage_does_no_harm(bytes: Vec<u8>, largest in 0..1000u64) {
            let _ = Replies::default().follow(&bytes, largest);
        }
    }

    #[test]
    fn an_announced_value_counts_before_it_arrives() {
        for text in [
            "$1001\r\n",
            "$99999999999999999999999\r\n",
            "*16\r\n",
            "%8\r\n",
            "|8\r\n",
            "*9999999999999999999\r\n",
            &format!("+{}", "a".repeat(1001)),
            // Together too large.
            &("*2\r\n$400\r\n".to_owned() + &"a".repeat(400) + "\r\n$600\r\n"),
            &"*1\r\n".repeat(20),
        ] {
            let invalid = Replies::default().follow(text.as_bytes(), 1000);
            assert_eq!(invalid, Err(InvalidReply::TooLarge { largest: 1000 }), "{text:?}");
        }
        // Separate replies are not added up.
        let mut replies = Replies::default();
        for _ in 0..100 {
            replies.follow(b"$100\r\n", 200).unwrap();
            replies.follow(&[b'a'; 100], 200).unwrap();
            replies.follow(b"\r\n", 200).unwrap();
        }
    }
}
