//! The protocol of PostgreSQL, version 3.
//!
//! A request is all that the client sends up to a Sync, or a simple query; its reply is all that the server
//! sends up to ReadyForQuery, since a client that lost only that would have had its answer. So a reply is
//! held until it is whole. A client that asks for a part of one by a Flush, without a Sync, would wait for
//! ever: of the clients that are tested here none does.

use super::{Frame, Garbled};
use crate::proxy::Direction;

/// More than any reply that tests count. What is longer passes in parts, and is dropped from there on.
const LONGEST: usize = 256 * 1024;

/// PostgreSQL's protocol, of servers and of pgbouncer, without encryption.
///
/// The start of a session is no request, and notifications outside of replies are asides.
pub fn postgres(direction: Direction, index: u64, head: &[u8]) -> Frame {
    let found = match direction {
        Direction::ToServer => request(head),
        Direction::ToClient => reply(index, head),
    };
    found.unwrap_or(Frame::Garbled)
}

fn request(head: &[u8]) -> Result<Frame, Garbled> {
    let mut at = 0;
    loop {
        let Some(kind) = head.get(at) else { return Ok(partial(at)) };
        if *kind == 0 {
            // The first message has a length and no kind; so do the offer of encryption and a cancellation.
            let Some(length) = head[at..].first_chunk::<4>() else { return Ok(Frame::Incomplete) };
            return match usize::try_from(u32::from_be_bytes(*length)) {
                Ok(length @ 8..=LONGEST) if at == 0 => Ok(Frame::Aside(length)),
                _ => Err(Garbled),
            };
        }
        let Some(end) = end_of_message(head, at)? else { return Ok(partial(at)) };
        match kind {
            // Query, a function's call, Sync.
            b'Q' | b'F' | b'S' => return Ok(Frame::Message(end)),
            // A login, the end, parts of a COPY.
            b'p' | b'X' | b'd' | b'c' | b'f' if at == 0 => return Ok(Frame::Aside(end)),
            // Parse, Bind, Describe, Execute, Close, Flush.
            b'P' | b'B' | b'D' | b'E' | b'C' | b'H' => at = end,
            // What was before belongs to no request; whatever it was meant for.
            b'p' | b'X' | b'd' | b'c' | b'f' => return Ok(Frame::Aside(at)),
            _ => return Err(Garbled),
        }
    }
}

fn reply(index: u64, head: &[u8]) -> Result<Frame, Garbled> {
    // The answer to an offer of encryption has no length.
    if index == 0 && matches!(head.first(), Some(b'N' | b'S' | b'G')) {
        return Ok(Frame::Aside(1));
    }
    let mut at = 0;
    loop {
        let Some(kind) = head.get(at) else { return Ok(partial(at)) };
        let Some(end) = end_of_message(head, at)? else { return Ok(partial(at)) };
        match kind {
            // The login, and what may come at any time: settings, notices, notifications. A COPY goes on for
            // as long as the client likes.
            b'R' | b'S' | b'N' | b'A' | b'd' | b'v' if at == 0 => return Ok(Frame::Aside(end)),
            // The start of a COPY: the client's turn, or without an end.
            b'G' | b'W' => return Ok(Frame::Aside(end)),
            b'Z' => {
                // After the login there is ReadyForQuery, too.
                let ends_login = head.first() == Some(&b'K');
                return Ok(if ends_login { Frame::Aside(end) } else { Frame::Message(end) });
            }
            kind if kind.is_ascii_alphanumeric() => at = end,
            _ => return Err(Garbled),
        }
    }
}

/// What is known when the head ends within a run of messages, after the first `whole` bytes.
fn partial(whole: usize) -> Frame {
    if whole > LONGEST { Frame::Aside(whole) } else { Frame::Incomplete }
}

/// Where the message ends that begins at this place, if its length and all before it are there. It may end
/// after the head; then nothing is known about what follows.
fn end_of_message(head: &[u8], at: usize) -> Result<Option<usize>, Garbled> {
    const LONGEST_MESSAGE: usize = 1 << 30;
    let Some(length) = head.get(at + 1..).and_then(|rest| rest.first_chunk::<4>()) else {
        return Ok(None);
    };
    match usize::try_from(u32::from_be_bytes(*length)) {
        Ok(length @ 4..=LONGEST_MESSAGE) => Ok(Some(at + 1 + length)),
        _ => Err(Garbled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(4 + body.len()).unwrap();
        [&[kind][..], &length.to_be_bytes(), body].concat()
    }

    fn run(kinds: &[u8]) -> Vec<u8> {
        kinds.iter().flat_map(|kind| message(*kind, b"body")).collect()
    }

    fn startup() -> Vec<u8> {
        [&[0, 0, 0, 13, 0, 3, 0, 0][..], b"user\0"].concat()
    }

    #[test]
    fn a_request_ends_with_a_sync_or_is_a_query() {
        let ask = |bytes: &[u8]| postgres(Direction::ToServer, 1, bytes);
        for request in [&b"PBDES"[..], b"S", b"Q", b"BE", b"BEHS"] {
            let bytes = run(request);
            let whole = request.iter().any(|kind| b"SQ".contains(kind));
            let expected = if whole { Frame::Message(bytes.len()) } else { Frame::Incomplete };
            assert_eq!(ask(&bytes), expected, "{request:?}");
            let more = [bytes.clone(), run(b"S")].concat();
            let expected = if whole { bytes.len() } else { more.len() };
            assert_eq!(ask(&more), Frame::Message(expected), "{request:?}");
        }
        assert_eq!(ask(&startup()), Frame::Aside(13));
        assert_eq!(ask(&run(b"p")), Frame::Aside(9));
        assert_eq!(ask(&run(b"X")), Frame::Aside(9));
        assert_eq!(ask(b"\x16\x03\x01\x02\x00\x01"), Frame::Garbled);
        assert_eq!(ask(b"GET / HTTP/1.1\r\n"), Frame::Garbled);
    }

    #[test]
    fn a_reply_is_all_up_to_ready_for_query() {
        let ask = |bytes: &[u8]| postgres(Direction::ToClient, 1, bytes);
        for reply in [&b"TDDCZ"[..], b"12DCAZ", b"EZ", b"Z", b"tnZ"] {
            let bytes = run(reply);
            assert_eq!(ask(&bytes), Frame::Message(bytes.len()), "{reply:?}");
            for cut in 0..bytes.len() {
                match ask(&bytes[..cut]) {
                    Frame::Incomplete => {}
                    Frame::Message(len) | Frame::Aside(len) => assert!(len > cut, "{cut}"),
                    Frame::Garbled => panic!("{reply:?} cut at {cut} is garbled"),
                }
            }
        }
    }

    #[test]
    fn logins_and_pushes_are_no_replies() {
        let ask = |index, bytes: &[u8]| postgres(Direction::ToClient, index, bytes);
        assert_eq!(ask(0, b"N"), Frame::Aside(1));
        assert_eq!(ask(0, &run(b"RRSSKZ")), Frame::Aside(9));
        assert_eq!(ask(4, &run(b"KZ")), Frame::Aside(18));
        assert_eq!(ask(4, &run(b"K")), Frame::Incomplete);
        assert_eq!(ask(9, &run(b"A")), Frame::Aside(9));
        assert_eq!(ask(9, &run(b"ADCZ")), Frame::Aside(9));
        assert_eq!(ask(9, b"HTTP/1.1 200 OK\r\n"), Frame::Garbled);
    }

    #[test]
    fn a_copy_is_not_held_back() {
        let ask = |bytes: &[u8]| postgres(Direction::ToClient, 1, bytes);
        assert_eq!(ask(&run(b"G")), Frame::Aside(9));
        assert_eq!(ask(&run(b"2W")), Frame::Aside(18));
        assert_eq!(ask(&run(b"d")), Frame::Aside(9));
        assert_eq!(ask(&run(b"CZ")), Frame::Message(18));
    }

    #[test]
    fn a_long_reply_passes_in_parts() {
        let row = message(b'D', &[7; 1000]);
        let rows = row.repeat(LONGEST / row.len() + 1);
        assert_eq!(postgres(Direction::ToClient, 1, &rows), Frame::Aside(rows.len()));
        assert_eq!(postgres(Direction::ToClient, 1, &run(b"CZ")), Frame::Message(18));
    }
}
