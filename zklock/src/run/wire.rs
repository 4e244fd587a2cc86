//! What the holder, the guardian and the launcher say to each other, over pairs of sockets.
//!
//! Each socket is the standard input of the process that was started with it, and the standard input that the command is
//! to have is passed along. So no descriptor has to be inherited by number.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

use super::leash::{Moment, Term};

/// What the holder tells the guardian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// The command may run as this says, unless it is being ended already.
    Hold(Term),
    /// The launcher is to become the command.
    Launch,
    /// The holder asks the command to end.
    Asked,
    /// The command and everything that descends from it is to be killed.
    Kill,
}

impl Order {
    pub(super) const LENGTH: usize = 24;

    pub(super) fn encode(self) -> [u8; Order::LENGTH] {
        let nanos = |moment: Moment| u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX);
        let words = match self {
            Order::Hold(term) => [0, term.ask_at.map_or(u64::MAX, nanos), nanos(term.kill_at)],
            Order::Launch => [1, 0, 0],
            Order::Asked => [2, 0, 0],
            Order::Kill => [3, 0, 0],
        };
        let mut bytes = [0; Order::LENGTH];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    pub(super) fn decode(bytes: [u8; Order::LENGTH]) -> Option<Order> {
        let word = |index: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[index * 8..][..8]);
            u64::from_le_bytes(word)
        };
        Some(match word(0) {
            0 => Order::Hold(Term {
                ask_at: Some(word(1)).filter(|ask_at| *ask_at != u64::MAX).map(Moment::from_nanos),
                kill_at: Moment::from_nanos(word(2)),
            }),
            1 => Order::Launch,
            2 => Order::Asked,
            3 => Order::Kill,
            _ => return None,
        })
    }
}

/// What the guardian tells the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Report {
    /// The launcher of the command has started, in a process group of this id.
    Started(i32),
    /// The command has not begun, because of this error of the system.
    Failed(i32),
    /// This signal has stopped the command.
    Stopped(i32),
    Continued,
    /// The guardian ends the command, although the holder has not said so.
    Ending,
    /// The command has ended, with this status of wait(2).
    Ended(i32),
    /// The command has ended, and nothing descends from it any more.
    Gone,
    /// The guardian has killed what it can, but something may be left.
    Unsure,
}

impl Report {
    const LENGTH: usize = 8;

    pub(super) fn encode(self) -> [u8; Report::LENGTH] {
        let (kind, value) = match self {
            Report::Started(group) => (0, group),
            Report::Failed(error) => (1, error),
            Report::Stopped(signal) => (2, signal),
            Report::Continued => (3, 0),
            Report::Ending => (4, 0),
            Report::Ended(status) => (5, status),
            Report::Gone => (6, 0),
            Report::Unsure => (7, 0),
        };
        let mut bytes = [0; Report::LENGTH];
        bytes[..4].copy_from_slice(&i32::to_le_bytes(kind));
        bytes[4..].copy_from_slice(&i32::to_le_bytes(value));
        bytes
    }

    pub(super) fn read(mut from: impl Read) -> io::Result<Report> {
        let mut bytes = [0; Report::LENGTH];
        from.read_exact(&mut bytes)?;
        let [kind, value] =
            [0, 4].map(|at| i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]));
        Ok(match kind {
            0 => Report::Started(value),
            1 => Report::Failed(value),
            2 => Report::Stopped(value),
            3 => Report::Continued,
            4 => Report::Ending,
            5 => Report::Ended(value),
            6 => Report::Gone,
            7 => Report::Unsure,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        })
    }
}

/// Sends bytes and a descriptor.
pub(super) fn pass(to: impl AsFd, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(to, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives what [`pass`] sends. Fails if the other side has ended.
pub(super) fn receive<const LENGTH: usize>(from: impl AsFd) -> io::Result<([u8; LENGTH], OwnedFd)> {
    let mut bytes = [0; LENGTH];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
    let received = recvmsg(from, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?;
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    match descriptor {
        Some(descriptor) if received.bytes == LENGTH => Ok((bytes, descriptor)),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        for order in [
            Order::Hold(Term { ask_at: None, kill_at: Moment::from_nanos(7) }),
            Order::Hold(Term { ask_at: Some(Moment::from_secs(9)), kill_at: Moment::from_secs(1 << 32) }),
            Order::Launch,
            Order::Asked,
            Order::Kill,
        ] {
            assert_eq!(Order::decode(order.encode()), Some(order));
        }
        assert_eq!(Order::decode([9; Order::LENGTH]), None);
        for report in [
            Report::Started(4711),
            Report::Failed(-2),
            Report::Stopped(19),
            Report::Continued,
            Report::Ending,
            Report::Ended(0x7f00),
            Report::Gone,
            Report::Unsure,
        ] {
            assert_eq!(Report::read(&report.encode()[..]).unwrap(), report);
        }
        assert!(Report::read(&[9; Report::LENGTH][..]).is_err());
        assert!(Report::read(&[0; Report::LENGTH - 1][..]).is_err());
    }

    #[test]
    fn descriptor_is_passed_along_or_missed() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, b"content").unwrap();
        std::io::Seek::rewind(&mut file).unwrap();
        pass(&one, b"go", file.as_fd()).unwrap();
        let (bytes, passed) = receive::<2>(&other).unwrap();
        let content = io::read_to_string(File::from(passed)).unwrap();
        assert_eq!((&bytes, content.as_str()), (b"go", "content"));
        std::io::Write::write_all(&mut &one, b"go").unwrap();
        assert!(receive::<2>(&other).is_err());
        drop(one);
        assert!(receive::<2>(&other).is_err());
    }
}
