//! How a byte stream is cut into requests and replies.
//!
//! A proxy that only sees chunks cannot say which reply it swallows, as TCP joins and splits
//! writes at will. A framing says where each message ends and whether it takes part in the pairing
//! of requests with replies. It is a plain function, so that a test for another protocol brings
//! its own.

use super::kinds::Direction;

mod postgres;

pub use postgres::postgres;

/// Says what begins at the start of `head`: the bytes of one direction of one connection from a
/// message boundary on. `index` counts the messages of that direction, from 0.
///
/// It is asked again with more bytes after [`Frame::Incomplete`], and must depend on its arguments
/// only. The proxy pairs the first counted request of a connection with its first counted reply
/// and so on, which holds for protocols that answer in order.
pub type Framing = fn(direction: Direction, index: u64, head: &[u8]) -> Frame;

/// What a [`Framing`] found at the start of the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// More bytes are needed to say.
    Incomplete,
    /// A request (towards the server) or a reply (towards the client) of this many bytes.
    Message(usize),
    /// A message of this many bytes that is neither: a heartbeat, a pushed notification, a
    /// handshake.
    Aside(usize),
    /// Not this protocol. The rest of the stream passes unchanged and uncounted.
    Garbled,
}

/// One message per line, ended by `\n`.
pub fn lines(_: Direction, _: u64, head: &[u8]) -> Frame {
    line_end(head, 0).map_or(Frame::Incomplete, Frame::Message)
}

/// Messages after a length of four bytes, big endian, which does not count itself.
pub fn length_prefixed(_: Direction, _: u64, head: &[u8]) -> Frame {
    match prefixed_len(head) {
        Ok(Some(len)) => Frame::Message(len),
        Ok(None) => Frame::Incomplete,
        Err(Garbled) => Frame::Garbled,
    }
}

/// ZooKeeper's client protocol: length-prefixed, without the session handshake, the pings and the
/// watch events, so that counting does not depend on when a heartbeat happens to be sent.
pub fn zookeeper(_: Direction, index: u64, head: &[u8]) -> Frame {
    const WATCH_EVENT: i32 = -1;
    const PING: i32 = -2;
    let len = match prefixed_len(head) {
        Ok(Some(len)) => len,
        Ok(None) => return Frame::Incomplete,
        Err(Garbled) => return Frame::Garbled,
    };
    if index == 0 {
        return Frame::Aside(len);
    }
    match head.get(4..8).and_then(|xid| xid.try_into().ok()).map(i32::from_be_bytes) {
        None if len < 8 => Frame::Garbled,
        None => Frame::Incomplete,
        Some(WATCH_EVENT | PING) => Frame::Aside(len),
        Some(_) => Frame::Message(len),
    }
}

/// Redis, RESP2 and RESP3, with commands as arrays or inline.
///
/// Subscribing and unsubscribing, their confirmations and the published messages are asides:
/// Redis answers them with any number of frames. A plain reply that is an array whose first
/// element is the word `message` (or one of its kin) is taken for a published message too; a
/// refused `SUBSCRIBE` is taken for the reply of the next request.
pub fn resp(direction: Direction, _: u64, head: &[u8]) -> Frame {
    let Some(&kind) = head.first() else { return Frame::Incomplete };
    if direction == Direction::ToServer && kind != b'*' {
        return line_end(head, 0).map_or(Frame::Incomplete, Frame::Message);
    }
    let len = match resp_len(head) {
        Ok(Some(len)) => len,
        Ok(None) => return Frame::Incomplete,
        Err(Garbled) => return Frame::Garbled,
    };
    let is_aside = kind == b'>' || (kind == b'*' && first_word(head).is_some_and(is_pubsub));
    if is_aside { Frame::Aside(len) } else { Frame::Message(len) }
}

struct Garbled;

/// The length of the message with its prefix, once the prefix is there.
fn prefixed_len(head: &[u8]) -> Result<Option<usize>, Garbled> {
    // ZooKeeper refuses more than 1 MB by default. A four-letter word read as a length is far
    // above: such connections are recognised as something else.
    const LONGEST: usize = 64 * 1024 * 1024;
    let Some(prefix) = head.first_chunk::<4>() else { return Ok(None) };
    match usize::try_from(i32::from_be_bytes(*prefix)) {
        Ok(len) if len <= LONGEST => Ok(Some(4 + len)),
        _ => Err(Garbled),
    }
}

/// The length of the RESP value at the start. Counts the values still to come instead of calling
/// itself, so that deep nesting costs no stack.
fn resp_len(head: &[u8]) -> Result<Option<usize>, Garbled> {
    let mut at = 0;
    let mut to_come: usize = 1;
    while to_come > 0 {
        to_come -= 1;
        let (Some(&kind), Some(end)) = (head.get(at), line_end(head, at)) else { return Ok(None) };
        let number = || parse_len(&head[at + 1..end]);
        at = match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => end,
            b'$' | b'!' | b'=' => match number()? {
                Some(len) => end + len + 2,
                None => end,
            },
            b'*' | b'~' | b'>' => {
                to_come += number()?.unwrap_or(0);
                end
            }
            b'%' => {
                to_come += 2 * number()?.unwrap_or(0);
                end
            }
            // Attributes are a map before the value they belong to.
            b'|' => {
                to_come += 2 * number()?.unwrap_or(0) + 1;
                end
            }
            _ => return Err(Garbled),
        };
    }
    // The last bulk string may end beyond what is there; the proxy waits for it by itself.
    Ok(Some(at))
}

/// A length or count in a RESP header line; `None` is the null of RESP2.
fn parse_len(line: &[u8]) -> Result<Option<usize>, Garbled> {
    const LONGEST: i64 = 512 * 1024 * 1024;
    let text = str::from_utf8(line).map_err(|_| Garbled)?.trim_end();
    match text.parse::<i64>() {
        Ok(-1) => Ok(None),
        Ok(len @ 0..=LONGEST) => usize::try_from(len).map(Some).map_err(|_| Garbled),
        _ => Err(Garbled),
    }
}

fn line_end(bytes: &[u8], from: usize) -> Option<usize> {
    bytes.get(from..)?.iter().position(|&byte| byte == b'\n').map(|at| from + at + 1)
}

/// The first element of an array, if it is a string.
fn first_word(head: &[u8]) -> Option<&[u8]> {
    let start = line_end(head, 0)?;
    let end = line_end(head, start)?;
    match head.get(start)? {
        b'$' => {
            let len = parse_len(&head[start + 1..end]).ok()??;
            head.get(end..end + len)
        }
        b'+' => head.get(start + 1..end - 2),
        _ => None,
    }
}

fn is_pubsub(word: &[u8]) -> bool {
    const WORDS: [&[u8]; 9] = [
        b"subscribe",
        b"unsubscribe",
        b"psubscribe",
        b"punsubscribe",
        b"ssubscribe",
        b"sunsubscribe",
        b"message",
        b"pmessage",
        b"smessage",
    ];
    WORDS.iter().any(|known| word.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPLETE: &[(&[u8], Frame)] = &[
        (b"+OK\r\n", Frame::Message(5)),
        (b"$-1\r\n", Frame::Message(5)),
        (b"$5\r\nhe\r\nl\r\n", Frame::Message(11)),
        (b"*2\r\n:1\r\n*1\r\n$1\r\na\r\n", Frame::Message(19)),
        (b"%1\r\n+a\r\n+b\r\n", Frame::Message(12)),
        (b"|1\r\n+a\r\n+b\r\n:7\r\n", Frame::Message(16)),
        (b">2\r\n+invalidate\r\n*0\r\n", Frame::Aside(21)),
        (b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", Frame::Aside(31)),
    ];

    #[test]
    fn resp_replies_are_measured_and_every_prefix_is_incomplete() {
        for (reply, expected) in COMPLETE {
            assert_eq!(resp(Direction::ToClient, 0, reply), *expected, "{reply:?}");
            let followed = [*reply, b"+MORE\r\n"].concat();
            assert_eq!(resp(Direction::ToClient, 0, &followed), *expected, "{reply:?}");
            for cut in 0..reply.len() {
                match resp(Direction::ToClient, 0, &reply[..cut]) {
                    Frame::Incomplete => {}
                    Frame::Message(len) | Frame::Aside(len) if len > cut => {}
                    wrong => panic!("{reply:?} cut at {cut} is {wrong:?}"),
                }
            }
        }
    }

    #[test]
    fn resp_requests_are_arrays_or_lines() {
        let ask = |bytes: &[u8]| resp(Direction::ToServer, 0, bytes);
        assert_eq!(ask(b"*1\r\n$4\r\nPING\r\n"), Frame::Message(14));
        assert_eq!(ask(b"PING\r\n"), Frame::Message(6));
        assert_eq!(ask(b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n"), Frame::Aside(26));
    }

    #[test]
    fn zookeeper_does_not_count_handshake_pings_and_events() {
        let frame = |xid: i32| [&8_i32.to_be_bytes()[..], &xid.to_be_bytes(), &[0; 4]].concat();
        assert_eq!(zookeeper(Direction::ToServer, 0, &frame(1)), Frame::Aside(12));
        assert_eq!(zookeeper(Direction::ToServer, 1, &frame(1)), Frame::Message(12));
        assert_eq!(zookeeper(Direction::ToServer, 1, &frame(-2)), Frame::Aside(12));
        assert_eq!(zookeeper(Direction::ToClient, 1, &frame(-1)), Frame::Aside(12));
        assert_eq!(zookeeper(Direction::ToServer, 1, &frame(1)[..6]), Frame::Incomplete);
        assert_eq!(zookeeper(Direction::ToServer, 0, b"ruok"), Frame::Garbled);
    }

    #[test]
    fn what_is_not_the_protocol_is_garbled() {
        assert_eq!(resp(Direction::ToClient, 0, b"HTTP/1.1 200 OK\r\n"), Frame::Garbled);
        assert_eq!(resp(Direction::ToClient, 0, b"$abc\r\n"), Frame::Garbled);
        assert_eq!(length_prefixed(Direction::ToServer, 0, &[255; 4]), Frame::Garbled);
    }
}
