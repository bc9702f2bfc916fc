//! The little of Redis's protocol that a test's set-up needs: one question, its answer as text.

use std::io;

use crate::proxy::{Direction, Frame, framing};

pub(super) fn encode(command: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
    for word in command {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
    bytes
}

/// The whole replies at the start of the bytes.
pub(super) fn replies(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || match framing::resp(Direction::ToClient, 0, bytes) {
        Frame::Message(len) | Frame::Aside(len) if len <= bytes.len() => {
            let (reply, rest) = bytes.split_at(len);
            bytes = rest;
            Some(reply)
        }
        _ => None,
    })
}

/// Appends a reply in the protocol's first version as text, each value on a line.
pub(super) fn render(reply: &[u8], text: &mut String) -> io::Result<()> {
    let mut rest = reply;
    while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
        let line = String::from_utf8_lossy(&rest[1..end]).trim_end().to_owned();
        let kind = rest[0];
        rest = &rest[end + 1..];
        match kind {
            b'-' => return Err(io::Error::other(line)),
            b'*' => continue,
            b'$' => {
                // A nil has the length -1.
                let len = line.parse().unwrap_or(0).min(rest.len());
                text.push_str(&String::from_utf8_lossy(&rest[..len]));
                rest = &rest[(len + 2 * usize::from(line != "-1")).min(rest.len())..];
            }
            _ => text.push_str(&line),
        }
        text.push('\n');
    }
    Ok(())
}
