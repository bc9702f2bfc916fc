//! The channel between wrapper and watchdog: one socket pair that carries orders, reports and open
//! files, and whose end shows a death.
//!
//! Only the wrapper has its end, and what it forks has it only until the exec. So the watchdog reads
//! the end of the stream when the wrapper is gone *and* no fork of it is left before its exec.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::UnixStream;

/// A message of the wrapper to the watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Start the command, but not at this moment of the boot clock or later. The first order; again while
    /// the wrapper does not know that the command runs, with the lock's new end, or when it is lost.
    StartBefore { nanos: u64 },
    /// Kill the group at this moment of the boot clock, unless a later one is sent. The second order.
    KillAt { nanos: u64 },
    /// The job is done: end without killing anything.
    Done,
}

/// A message of the watchdog to the wrapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The command runs, as the leader of the group of this number.
    Started { group: i32 },
    /// It was not started: it was too late.
    TooLate,
    /// It could not be executed.
    CannotExecute { errno: i32 },
    /// It was stopped by this signal.
    Stopped { signal: i32 },
    /// It was killed, because the deadline of the last order has passed.
    OutOfTime,
    /// It ended.
    Ended(End),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// With this exit code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

/// More than the JSON of any message has.
const BYTES: usize = 64;

/// A pair of connected ends, both closed on exec.
pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// One end of the channel.
#[derive(Debug)]
pub(crate) struct Channel {
    /// Of the kind that keeps messages apart, whatever the type is called.
    socket: UnixStream,
}

impl Channel {
    pub(crate) fn new(end: OwnedFd) -> io::Result<Channel> {
        Ok(Channel { socket: UnixStream::from_std(end.into())? })
    }

    /// Never waits: a watchdog that does not read keeps an older order, which is the safe side.
    pub(crate) fn send(&self, message: &impl Serialize) {
        let json = serde_json::to_vec(message).unwrap_or_default();
        // The end of the peer is noticed when its next message is awaited.
        let _ = rustix::net::send(&self.socket, &json, SendFlags::NOSIGNAL);
    }

    /// Whether the peer is gone, and no message of it is left.
    pub(crate) fn is_closed(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        matches!(rustix::net::recv(&self.socket, &mut [0; BYTES], flags), Ok((0, _)))
    }

    /// The next message, if it is there.
    pub(crate) fn pending<Message: DeserializeOwned>(&self) -> Option<Message> {
        let mut bytes = [0; BYTES];
        let (length, _) = rustix::net::recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT).ok()?;
        serde_json::from_slice(&bytes[..length]).ok()
    }

    /// The next message; `None` when the peer is gone. Cancel safe.
    pub(crate) async fn receive<Message: DeserializeOwned>(&self) -> io::Result<Option<Message>> {
        let mut bytes = [0; BYTES];
        let receive = || loop {
            match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::empty()) {
                // It died with unread messages of ours. The kernel reports that once, and before
                // it delivers the peer's last messages.
                Err(Errno::CONNRESET) => {}
                received => return Ok(received?.0),
            }
        };
        match self.socket.async_io(Interest::READABLE, receive).await? {
            0 => Ok(None),
            length => Ok(Some(serde_json::from_slice(&bytes[..length])?)),
        }
    }
}

/// Standard input, output and error, and perhaps the descriptor that keeps the lock.
const MOST_FILES: usize = 4;

/// Sends open files over `end`; the other side gets copies of its own.
pub(crate) fn send_files(end: &OwnedFd, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let byte = [IoSlice::new(&[0])];
    rustix::net::sendmsg(end, &byte, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Takes what [`send_files`] sent, closed on exec.
pub(crate) async fn receive_files(channel: &Channel) -> io::Result<Vec<OwnedFd>> {
    let receive = || {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FILES))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let mut into = [IoSliceMut::new(&mut byte)];
        rustix::net::recvmsg(&channel.socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        let mut files = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                files.extend(received);
            }
        }
        Ok(files)
    };
    channel.socket.async_io(Interest::READABLE, receive).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[tokio::test]
    async fn messages_and_files_arrive_and_a_death_is_the_end() {
        let (ours, theirs) = pair().unwrap();
        send_files(&ours, &[std::io::stdin().as_fd(), ours.as_fd()]).unwrap();
        let (ours, theirs) = (Channel::new(ours).unwrap(), Channel::new(theirs).unwrap());
        let files = receive_files(&theirs).await.unwrap();
        assert_eq!(files.len(), 2);
        drop(files);
        for order in
            [Order::StartBefore { nanos: u64::MAX }, Order::KillAt { nanos: 7 }, Order::Done]
        {
            ours.send(&order);
            assert_eq!(theirs.receive().await.unwrap(), Some(order));
        }
        for report in [
            Report::Started { group: i32::MAX },
            Report::TooLate,
            Report::CannotExecute { errno: 2 },
            Report::Stopped { signal: 20 },
            Report::OutOfTime,
            Report::Ended(End::Exited(255)),
            Report::Ended(End::Killed(i32::MIN)),
        ] {
            theirs.send(&report);
            assert_eq!(ours.receive().await.unwrap(), Some(report));
        }
        ours.send(&Order::Done);
        theirs.send(&Report::OutOfTime);
        drop(theirs);
        assert_eq!(ours.receive().await.unwrap(), Some(Report::OutOfTime), "its last message");
        assert_eq!(ours.receive::<Report>().await.unwrap(), None);
    }
}
