//! The wire between wrapper and watchdog: one socket pair that carries orders, reports, open
//! files, and the news of a death.
//!
//! Only the wrapper has its end, and what it forks has it only until the exec. So the watchdog
//! reads the end of the stream when the wrapper is gone *and* nothing half-born is left of it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use fencelock::Moment;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::Pid;
use tokio::io::Interest;
use tokio::net::UnixStream;

/// A message of the wrapper to the watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Kill the group at this moment of the boot clock, unless a later one is sent.
    KillAt(Moment),
    /// The job is done: end without killing anything.
    Done,
}

/// A message of the watchdog to the wrapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The command runs, as the leader of the group of this number.
    Started(Pid),
    /// It could not be executed, with this `errno`.
    CannotExecute(i32),
    /// It was stopped by this signal.
    Stopped(i32),
    /// It was killed, because the deadline of the last order has passed.
    OutOfTime,
    /// It ended.
    Ended(End),
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With this exit code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

type Words = [u64; 2];
const BYTES: usize = size_of::<Words>();

impl Order {
    fn encode(self) -> Words {
        match self {
            Order::KillAt(moment) => [0, moment.as_nanos()],
            Order::Done => [1, 0],
        }
    }

    fn decode(words: Words) -> io::Result<Order> {
        match words {
            [0, nanos] => Ok(Order::KillAt(Moment::from_nanos(nanos))),
            [1, _] => Ok(Order::Done),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

impl Report {
    fn encode(self) -> Words {
        let (tag, number) = match self {
            Report::Started(pid) => (0, pid.as_raw_pid()),
            Report::CannotExecute(errno) => (1, errno),
            Report::Stopped(signal) => (2, signal),
            Report::OutOfTime => (3, 0),
            Report::Ended(End::Exited(code)) => (4, code),
            Report::Ended(End::Killed(signal)) => (5, signal),
        };
        [tag, u64::from(number.cast_unsigned())]
    }

    fn decode([tag, number]: Words) -> io::Result<Report> {
        let number = i32::try_from(number).map_err(|_| io::ErrorKind::InvalidData)?;
        match (tag, Pid::from_raw(number)) {
            (0, Some(pid)) => Ok(Report::Started(pid)),
            (1, _) => Ok(Report::CannotExecute(number)),
            (2, _) => Ok(Report::Stopped(number)),
            (3, _) => Ok(Report::OutOfTime),
            (4, _) => Ok(Report::Ended(End::Exited(number))),
            (5, _) => Ok(Report::Ended(End::Killed(number))),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

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

    /// Never waits: a watchdog that does not read holds an older order, which is the safe side.
    pub(crate) fn order(&self, order: Order) {
        self.send(order.encode());
    }

    pub(crate) fn report(&self, report: Report) {
        self.send(report.encode());
    }

    fn send(&self, words: Words) {
        let bytes = [words[0].to_ne_bytes(), words[1].to_ne_bytes()].concat();
        // The end of the peer is noticed when its next message is awaited.
        let _ = rustix::net::send(&self.socket, &bytes, SendFlags::NOSIGNAL);
    }

    /// The next order; `None` when the wrapper is gone. Cancel safe.
    pub(crate) async fn next_order(&self) -> io::Result<Option<Order>> {
        self.receive().await?.map(Order::decode).transpose()
    }

    /// The next report; `None` when the watchdog is gone. Cancel safe.
    pub(crate) async fn next_report(&self) -> io::Result<Option<Report>> {
        self.receive().await?.map(Report::decode).transpose()
    }

    async fn receive(&self) -> io::Result<Option<Words>> {
        let receive = || {
            let mut bytes = [0; BYTES];
            let (length, _) = loop {
                match rustix::net::recv(&self.socket, &mut bytes, RecvFlags::empty()) {
                    // It died with unread messages of ours. The kernel reports that once, and before
                    // it delivers the peer's last messages.
                    Err(Errno::CONNRESET) => {}
                    received => break received?,
                }
            };
            Ok((bytes, length))
        };
        match self.socket.async_io(Interest::READABLE, receive).await? {
            (_, 0) => Ok(None),
            (bytes, BYTES) => {
                let word = |index: usize| std::array::from_fn(|byte| bytes[8 * index + byte]);
                Ok(Some([u64::from_ne_bytes(word(0)), u64::from_ne_bytes(word(1))]))
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Standard input, output and error, and perhaps the descriptor that keeps the lock.
const MOST_FILES: usize = 4;

/// Hands open files over `end`; the other side gets copies of its own.
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
    async fn words_and_files_arrive_and_a_death_is_the_end() {
        let (ours, theirs) = pair().unwrap();
        send_files(&ours, &[std::io::stdin().as_fd(), ours.as_fd()]).unwrap();
        let (ours, theirs) = (Channel::new(ours).unwrap(), Channel::new(theirs).unwrap());
        let files = receive_files(&theirs).await.unwrap();
        assert_eq!(files.len(), 2);
        drop(files);
        for order in
            [Order::KillAt(Moment::NEVER), Order::KillAt(Moment::from_nanos(7)), Order::Done]
        {
            ours.order(order);
            assert_eq!(theirs.next_order().await.unwrap(), Some(order));
        }
        for report in [
            Report::Started(Pid::INIT),
            Report::CannotExecute(2),
            Report::Stopped(20),
            Report::OutOfTime,
            Report::Ended(End::Exited(255)),
            Report::Ended(End::Killed(9)),
        ] {
            theirs.report(report);
            assert_eq!(ours.next_report().await.unwrap(), Some(report));
        }
        ours.order(Order::Done);
        theirs.report(Report::OutOfTime);
        drop(theirs);
        assert_eq!(ours.next_report().await.unwrap(), Some(Report::OutOfTime), "its last words");
        assert_eq!(ours.next_report().await.unwrap(), None);
    }
}
