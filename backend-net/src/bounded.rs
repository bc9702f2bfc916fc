//! A stream that ends when the server sends what it may not, before a client crate has kept it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Follows the messages of a server.
pub trait Frames: Unpin {
    /// Takes note of what has come.
    ///
    /// # Errors
    /// The server may not send that: the stream ends with this error.
    fn follow(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// A stream whose messages are followed.
#[derive(Debug)]
pub struct Bounded<S, F> {
    stream: S,
    frames: F,
}

impl<S, F> Bounded<S, F> {
    /// Follows what `stream` receives from here on.
    pub fn new(stream: S, frames: F) -> Bounded<S, F> {
        Bounded { stream, frames }
    }
}

impl<S: AsyncRead + Unpin, F: Frames> AsyncRead for Bounded<S, F> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        Poll::Ready(self.frames.follow(&buffer.filled()[before..]))
    }
}

impl<S: AsyncWrite + Unpin, F: Unpin> AsyncWrite for Bounded<S, F> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
