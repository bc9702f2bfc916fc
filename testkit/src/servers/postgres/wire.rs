//! Questions to a server, or to pgbouncer's console, in the simple protocol, through a Unix socket in a
//! directory that only these tests can use: so there is no login, and no client library's behaviour gets
//! into a test's set-up.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Runs statements and returns the rows of the last ones as `psql -At` prints them: columns separated by
/// `|`, one row per line.
pub(in crate::servers) async fn ask(
    socket: &Path,
    user: &str,
    database: &str,
    statements: &str,
    within: Duration,
) -> io::Result<String> {
    let conversation = async {
        let mut server = UnixStream::connect(socket).await?;
        server.write_all(&startup(user, database)).await?;
        replies(&mut server).await?;
        server.write_all(&message(b'Q', &[statements.as_bytes(), b"\0"].concat())).await?;
        let rows = replies(&mut server).await?;
        // It ends the session sooner than the end of the connection does.
        server.write_all(&message(b'X', &[])).await?;
        Ok(rows)
    };
    let asked = timeout(within, conversation).await;
    asked.map_err(|_| {
        io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {within:?}"))
    })?
}

/// Where a server, or pgbouncer, on this port has its Unix socket.
pub(in crate::servers) fn socket_in(directory: &Path, port: u16) -> std::path::PathBuf {
    directory.join(format!(".s.PGSQL.{port}"))
}

fn startup(user: &str, database: &str) -> Vec<u8> {
    const VERSION_3: u32 = 3 << 16;
    let params = format!("user\0{user}\0database\0{database}\0client_encoding\0UTF8\0\0");
    [&length(4 + params.len()), &VERSION_3.to_be_bytes(), params.as_bytes()].concat()
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &length(body.len()), body].concat()
}

/// It counts itself.
fn length(body: usize) -> [u8; 4] {
    u32::try_from(4 + body).unwrap_or(u32::MAX).to_be_bytes()
}

/// Reads until the server is ready for a query; the rows, or the first error.
async fn replies(server: &mut UnixStream) -> io::Result<String> {
    let (mut rows, mut error) = (Vec::new(), None);
    loop {
        let kind = match server.read_u8().await {
            Err(ended) if ended.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(error.unwrap_or(ended));
            }
            kind => kind?,
        };
        let length = server.read_u32().await?;
        let length = usize::try_from(length).ok().and_then(|length| length.checked_sub(4));
        let mut body = vec![0; length.ok_or(io::ErrorKind::InvalidData)?];
        server.read_exact(&mut body).await?;
        match kind {
            b'D' => rows.push(row(&body).ok_or(io::ErrorKind::InvalidData)?),
            b'E' => error = error.or_else(|| Some(refusal(&body))),
            b'Z' => return error.map_or_else(|| Ok(rows.join("\n")), Err),
            // A demand for a password, where there must be none.
            b'R' if body.get(..4) != Some(&[0; 4]) => {
                return Err(io::Error::other("the server demands a login"));
            }
            _ => {}
        }
    }
}

/// Its columns; a NULL is empty.
fn row(body: &[u8]) -> Option<String> {
    let (count, mut rest) = body.split_first_chunk::<2>()?;
    let mut columns = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk::<4>()?;
        // -1 is a NULL's.
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
        let (column, after) = after.split_at_checked(length)?;
        columns.push(String::from_utf8_lossy(column));
        rest = after;
    }
    Some(columns.join("|"))
}

/// `SQLSTATE: message`.
fn refusal(body: &[u8]) -> io::Error {
    let field = |wanted: u8| {
        let fields = body.split(|byte| *byte == 0).filter_map(|field| field.split_first());
        let found = fields.filter(|(kind, _)| **kind == wanted).map(|(_, text)| text).next();
        String::from_utf8_lossy(found.unwrap_or_default()).into_owned()
    };
    io::Error::other(format!("{}: {}", field(b'C'), field(b'M')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_its_columns_and_empty_nulls() {
        let body = [&[0, 3][..], &[0, 0, 0, 1, b'a'], &[255; 4], &[0, 0, 0, 2, b'b', b'c']];
        assert_eq!(row(&body.concat()).unwrap(), "a||bc");
        assert_eq!(row(&[0, 1, 0, 0, 0, 9, b'a']), None);
    }

    #[test]
    fn a_refusal_shows_its_class() {
        let error = refusal(b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0");
        assert_eq!(error.to_string(), "57P03: the database system is starting up");
    }
}
