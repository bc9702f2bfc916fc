//! Cuts a stream into the messages of a [`Framing`].
//!
//! A message is held until it is whole, since only then it is known to be one and can be counted,
//! matched, dropped or mangled. What is held is bounded: a longer message is judged by its first
//! part and the rest follows as it comes. A stream that turns out to be something else is never
//! held again.

use super::framing::{Frame, Framing};
use super::kinds::{Direction, WINDOW};

pub(super) struct Splitter {
    framing: Framing,
    direction: Direction,
    index: u64,
    held: Vec<u8>,
    /// What is still to come of a message that is longer than what may be held.
    rest: usize,
    garbled: bool,
}

pub(super) enum Piece {
    Message(Vec<u8>),
    Plain(Vec<u8>),
    /// The first bytes that are not the protocol's; everything after them is plain.
    Garbled(Vec<u8>),
}

impl Splitter {
    pub(super) fn new(framing: Framing, direction: Direction) -> Self {
        Self { framing, direction, index: 0, held: Vec::new(), rest: 0, garbled: false }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    pub(super) fn flush(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// The next piece that may leave.
    pub(super) fn next(&mut self) -> Option<Piece> {
        if self.held.is_empty() {
            return None;
        }
        if self.garbled {
            return Some(Piece::Plain(self.flush()));
        }
        if self.rest > 0 {
            let take = self.rest.min(self.held.len());
            self.rest -= take;
            return Some(Piece::Plain(self.held.drain(..take).collect()));
        }
        match (self.framing)(self.direction, self.index, &self.held) {
            Frame::Message(len) if len > 0 => self.cut(len).map(Piece::Message),
            Frame::Aside(len) if len > 0 => self.cut(len).map(Piece::Plain),
            Frame::Incomplete if self.held.len() < WINDOW => None,
            // A message without bytes would be found again and again.
            Frame::Message(_) | Frame::Aside(_) | Frame::Incomplete | Frame::Garbled => {
                self.garbled = true;
                Some(Piece::Garbled(self.flush()))
            }
        }
    }

    fn cut(&mut self, len: usize) -> Option<Vec<u8>> {
        if len > self.held.len() && self.held.len() < WINDOW {
            return None;
        }
        let take = len.min(self.held.len());
        self.rest = len - take;
        self.index += 1;
        Some(self.held.drain(..take).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proxy::framing;

    #[test]
    fn messages_come_whole_however_they_are_torn() {
        let stream = [&4_i32.to_be_bytes()[..], b"four", &1_i32.to_be_bytes(), b"1"].concat();
        for chunk in 1..stream.len() {
            let mut splitter = Splitter::new(framing::length_prefixed, Direction::ToServer);
            let mut messages = Vec::new();
            for bytes in stream.chunks(chunk) {
                splitter.push(bytes);
                while let Some(piece) = splitter.next() {
                    let Piece::Message(message) = piece else { panic!("not a message") };
                    messages.push(message);
                }
            }
            assert_eq!(messages, [&stream[..8], &stream[8..]], "chunks of {chunk}");
        }
    }

    #[test]
    fn what_is_held_is_bounded() {
        let mut splitter = Splitter::new(framing::length_prefixed, Direction::ToServer);
        let len = i32::try_from(3 * WINDOW).unwrap();
        let stream = [&len.to_be_bytes()[..], &vec![7; 3 * WINDOW], &1_i32.to_be_bytes(), b"1"];
        let mut passed = 0;
        let mut messages = 0;
        for bytes in stream.concat().chunks(10_000) {
            splitter.push(bytes);
            while let Some(piece) = splitter.next() {
                let (Piece::Message(bytes) | Piece::Plain(bytes) | Piece::Garbled(bytes)) = &piece;
                passed += bytes.len();
                messages += usize::from(matches!(piece, Piece::Message(_)));
            }
            assert!(splitter.held.len() <= WINDOW + 10_000);
        }
        assert_eq!((passed, messages), (3 * WINDOW + 9, 2));
    }

    #[test]
    fn an_endless_line_passes_unframed() {
        let mut splitter = Splitter::new(framing::lines, Direction::ToServer);
        splitter.push(&vec![b'x'; WINDOW]);
        assert!(matches!(splitter.next(), Some(Piece::Garbled(bytes)) if bytes.len() == WINDOW));
    }
}
