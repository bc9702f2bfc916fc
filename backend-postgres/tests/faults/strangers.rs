//! Servers that speak the protocol of PostgreSQL and are none, or an older one; and other things that listen
//! at its port.

use fencelock_core::ErrorKind;
use fencelock_testkit::servers::ScriptedServer;

use crate::support::*;

/// A message of the server.
fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(4 + body.len()).expect("short");
    [&[kind][..], &length.to_be_bytes(), body].concat()
}

/// Lets anybody in.
fn login() -> Vec<u8> {
    [message(b'R', &0_u32.to_be_bytes()), message(b'Z', b"I")].concat()
}

const BOOL: (u32, i16) = (16, 1);
const INT4: (u32, i16) = (23, 4);
const TEXT: (u32, i16) = (25, -1);

/// The reply to a statement with arguments, of one row: two booleans, of which the first may have another type,
/// a number and a text.
fn about(first: (u32, i16), number: i32, version: &str) -> Vec<u8> {
    let mut columns = 4_u16.to_be_bytes().to_vec();
    for (oid, size) in [first, BOOL, INT4, TEXT] {
        columns.extend(b"c\0");
        columns.extend([0; 6]);
        columns.extend(oid.to_be_bytes());
        columns.extend(size.to_be_bytes());
        columns.extend((-1_i32).to_be_bytes());
        columns.extend(1_u16.to_be_bytes());
    }
    let mut row = 4_u16.to_be_bytes().to_vec();
    for value in [&[0][..], &[0], &number.to_be_bytes(), version.as_bytes()] {
        row.extend(u32::try_from(value.len()).expect("short").to_be_bytes());
        row.extend(value);
    }
    [
        message(b'1', &[]),
        message(b'2', &[]),
        message(b'T', &columns),
        message(b'D', &row),
        message(b'C', b"SELECT 1\0"),
        message(b'Z', b"I"),
    ]
    .concat()
}

/// A server of this version, to whoever asks.
async fn claiming(first: (u32, i16), number: i32, version: &'static str) -> ScriptedServer {
    let answer = move |heard: &[u8]| match heard[0] {
        // The first message has no kind, but a length.
        0 => login(),
        b'P' => about(first, number, version),
        _ => Vec::new(),
    };
    ScriptedServer::start(answer).await.expect("it listens")
}

/// Fault 60: postgres
#[tokio::test]
async fn servers_that_are_not_postgres_or_too_old_are_refused_with_their_version() {
    for (first, number, version, says) in [
        (BOOL, 130_000, "CockroachDB CCL v24.1.0 (x86_64-linux)", "is not PostgreSQL (CockroachDB"),
        (BOOL, 150_002, "PostgreSQL 15.2-YB-2.25.0.0-b0", "is not PostgreSQL (PostgreSQL 15.2-YB"),
        (TEXT, 150_000, "PostgreSQL 15.0", "describes itself unlike PostgreSQL"),
        (BOOL, 130_014, "PostgreSQL 13.14 on x86_64-linux", "PostgreSQL 14 or newer is needed"),
    ] {
        let server = claiming(first, number, version).await;
        let url = format!("postgres://me@{}/app", server.addr());
        let error = soon("it is refused", try_connect(&url)).await.unwrap_err();
        assert_kind(&error, ErrorKind::Refused);
        assert!(!error.is_retryable() && error_chain(&error).contains(says), "{error}");
    }
}

/// Fault 15: postgres
#[tokio::test]
async fn something_else_at_the_port_is_an_error_in_time() {
    let garbage: [&[u8]; 6] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"-ERR unknown command\r\n",
        b"\0",
        b"",
        b"R\0\0\0\x08\0\0\0\x63",
        b"S\0\0\0\x04",
    ];
    for bytes in garbage {
        let server = ScriptedServer::start(move |_| bytes.to_vec()).await.unwrap();
        let url = format!("postgres://me:secret@{}/app?connect_timeout=500ms", server.addr());
        let error = connect_error(&url).await;
        let shown = format!("{error} {error:?} {}", error_chain(&error));
        assert!(matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Refused), "{shown}");
        assert!(!shown.contains("secret"), "{shown}");
    }
    assert_no_panics();
}

/// Before the login and after it; and what it says is one short line.
/// Fault 15: postgres
#[tokio::test]
async fn a_server_that_sends_too_much_costs_an_error() {
    let announced = |kind: u8| [&[kind][..], &u32::MAX.to_be_bytes()].concat();
    let words = [b"SFATAL\0C28P01\0M", &b"\x1b]0;".repeat(15_000)[..], b"\0\0"].concat();
    for (first, then, says) in [
        (announced(b'R'), Vec::new(), "more than 64 KiB at once"),
        (message(b'S', &[b'a'; 40_000]).repeat(2), Vec::new(), "more than 64 KiB at once"),
        (login(), announced(b'D'), "more than 65536 KiB at once"),
        (login(), message(b'E', &words), "SQLSTATE 28P01"),
        (message(b'E', &words), Vec::new(), "user and password"),
    ] {
        let answer = move |heard: &[u8]| if heard[0] == 0 { first.clone() } else { then.clone() };
        let server = ScriptedServer::start(answer).await.unwrap();
        let error = connect_error(&format!("postgres://me@{}/app", server.addr())).await;
        let shown = error_chain(&error);
        assert!(shown.contains(says), "{shown}");
        assert!(shown.len() < 1_000 && !shown.contains(char::is_control), "{shown:?}");
    }
    assert_no_panics();
}
