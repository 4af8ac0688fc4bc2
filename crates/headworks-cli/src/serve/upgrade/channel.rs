//! What the old and the new process of an upgrade say to each other.
//!
//! ```text
//!   new: Hello        --> old: version
//!   old: Standing     --> new: opens everything while the old one serves
//!   new: Prepared     --> old: pauses
//!   old: Live         --> new: adopts connections and contents of caches
//!   new: Adopted      --> old: Go
//!   new: Serving      --> old: exits
//!   either: Failed, with a sentence
//! ```
//!
//! A hand-over is a record in a memfd and descriptors in packets of at most 200. The receiver acknowledges each of these packets:
//! the kernel limits the descriptors in flight of a user, and a full packet stays far below the limit.
//! Invariants: records and descriptors are bounded; every wait has a deadline.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use headworks::house::memory_file;
use headworks_server::Handover;

use super::packet::{DESCRIPTORS_MAX, Packet, PacketError, PacketSocket};

/// Version of the messages; records have versions of their own.
pub(super) const VERSION: u32 = 1;
/// Most bytes of a record: contents of a cache take about 16 bytes a block.
const RECORD_MAX: u64 = 1 << 30;
/// Most descriptors of a hand-over.
const HANDED_MAX: usize = 16 << 10;
/// Most bytes of a sentence.
const SENTENCE_MAX: usize = 4 << 10;

/// A message between the processes.
#[derive(Debug)]
pub(super) enum Message {
    /// The new process has started, and speaks this version.
    Hello { version: u32 },
    /// State that does not change while the old process serves.
    Standing(Handover),
    /// The new process has opened everything.
    Prepared,
    /// State of the paused server.
    Live(Handover),
    /// The new process has adopted everything.
    Adopted,
    /// The new process is to serve from now on.
    Go,
    /// The new process serves, and has said so everywhere.
    Serving,
    /// A step has failed for this reason.
    Failed(String),
}

/// Kinds of packets, in their first byte.
const HELLO: u8 = 1;
const STANDING: u8 = 2;
const PREPARED: u8 = 3;
const LIVE: u8 = 4;
const ADOPTED: u8 = 5;
const GO: u8 = 6;
const FAILED: u8 = 7;
const SERVING: u8 = 10;
/// Further descriptors of a hand-over, and their acknowledgement.
const DESCRIPTORS: u8 = 8;
const RECEIVED: u8 = 9;

impl Message {
    /// The name of the message, for errors.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "Hello",
            Self::Standing(_) => "Standing",
            Self::Prepared => "Prepared",
            Self::Live(_) => "Live",
            Self::Adopted => "Adopted",
            Self::Go => "Go",
            Self::Serving => "Serving",
            Self::Failed(_) => "Failed",
        }
    }

    /// The error of a message that came in place of another one.
    pub fn unexpected(self, wanted: &str) -> PacketError {
        PacketError::Invalid(match self {
            Self::Failed(reason) => reason,
            other => format!("the message {} came in place of {wanted}", other.name()),
        })
    }
}

fn invalid<T>(message: impl Into<String>) -> Result<T, PacketError> {
    Err(PacketError::Invalid(message.into()))
}

/// One end of the channel.
#[derive(Debug)]
pub(super) struct Channel(PacketSocket);

impl Channel {
    /// A channel over one end of a socket pair.
    pub fn new(socket: PacketSocket) -> Self {
        Self(socket)
    }

    /// Ends the traffic of both ends.
    pub fn shut_down(&self) {
        self.0.shut_down();
    }

    /// Sends a message; of a hand-over, the peer has received all when this returns.
    pub fn send(&self, message: Message, until: Instant) -> Result<(), PacketError> {
        let plain = |bytes: &[u8]| self.0.send(bytes, &[], until);
        match message {
            Message::Hello { version } => {
                let [a, b, c, d] = version.to_le_bytes();
                plain(&[HELLO, a, b, c, d])
            }
            Message::Standing(handover) => self.send_handover(STANDING, &handover, until),
            Message::Live(handover) => self.send_handover(LIVE, &handover, until),
            Message::Prepared => plain(&[PREPARED]),
            Message::Adopted => plain(&[ADOPTED]),
            Message::Go => plain(&[GO]),
            Message::Serving => plain(&[SERVING]),
            Message::Failed(reason) => {
                let reason = reason.as_bytes();
                let reason = &reason[..reason.len().min(SENTENCE_MAX)];
                plain(&[&[FAILED], reason].concat())
            }
        }
    }

    fn send_handover(
        &self,
        kind: u8,
        handover: &Handover,
        until: Instant,
    ) -> Result<(), PacketError> {
        let Handover { record, descriptors } = handover;
        check_bounds(record.len() as u64, descriptors.len())?;
        let memory = memory_with(record).map_err(PacketError::Io)?;
        let mut head = vec![kind];
        head.extend((record.len() as u64).to_le_bytes());
        head.extend((descriptors.len() as u32).to_le_bytes());
        self.0.send(&head, &[memory.as_fd()], until)?;
        self.expect_receipt(until)?;
        for chunk in descriptors.chunks(DESCRIPTORS_MAX) {
            let chunk: Vec<_> = chunk.iter().map(AsFd::as_fd).collect();
            self.0.send(&[DESCRIPTORS], &chunk, until)?;
            self.expect_receipt(until)?;
        }
        Ok(())
    }

    fn expect_receipt(&self, until: Instant) -> Result<(), PacketError> {
        let packet = self.0.receive(Some(until))?;
        match packet.bytes[0] {
            RECEIVED => Ok(()),
            _ => Err(self.decode(packet, until)?.unexpected("the receipt of a hand-over")),
        }
    }

    /// Receives the next message.
    pub fn receive(&self, until: Instant) -> Result<Message, PacketError> {
        let packet = self.0.receive(Some(until))?;
        self.decode(packet, until)
    }

    fn decode(&self, packet: Packet, until: Instant) -> Result<Message, PacketError> {
        let (kind, rest) = (packet.bytes[0], &packet.bytes[1..]);
        let message = match (kind, rest.len()) {
            (HELLO, 4) => {
                let version = rest.try_into().map(u32::from_le_bytes).unwrap_or_default();
                Message::Hello { version }
            }
            (STANDING, 12) => return self.receive_handover(packet, until).map(Message::Standing),
            (LIVE, 12) => return self.receive_handover(packet, until).map(Message::Live),
            (PREPARED, 0) => Message::Prepared,
            (ADOPTED, 0) => Message::Adopted,
            (GO, 0) => Message::Go,
            (SERVING, 0) => Message::Serving,
            (FAILED, _) => Message::Failed(String::from_utf8_lossy(rest).into_owned()),
            (kind, length) => {
                return invalid(format!("a packet of kind {kind} with {length} bytes is unknown"));
            }
        };
        match packet.descriptors.is_empty() {
            true => Ok(message),
            false => invalid(format!("the message {} came with descriptors", message.name())),
        }
    }

    fn receive_handover(&self, packet: Packet, until: Instant) -> Result<Handover, PacketError> {
        let Packet { bytes, descriptors: memory } = packet;
        let length = u64::from_le_bytes(bytes[1..9].try_into().unwrap_or_default());
        let count = u32::from_le_bytes(bytes[9..13].try_into().unwrap_or_default()) as usize;
        check_bounds(length, count)?;
        let Ok([memory]) = <[OwnedFd; 1]>::try_from(memory) else {
            return invalid("a hand-over came without the memory of its record");
        };
        let record = read_memory(File::from(memory), length)?;
        self.0.send(&[RECEIVED], &[], until)?;
        let mut descriptors = Vec::new();
        while descriptors.len() < count {
            let packet = self.0.receive(Some(until))?;
            let more = packet.descriptors.len();
            let fits = more > 0 && descriptors.len() + more <= count;
            if packet.bytes != [DESCRIPTORS] || !fits {
                let what = format!("{more} descriptors came after {}", descriptors.len());
                return invalid(format!("{what} of {count}"));
            }
            descriptors.extend(packet.descriptors);
            self.0.send(&[RECEIVED], &[], until)?;
        }
        Ok(Handover { record, descriptors })
    }
}

fn check_bounds(length: u64, count: usize) -> Result<(), PacketError> {
    if length > RECORD_MAX {
        return invalid(format!("a record has {length} bytes, more than {RECORD_MAX}"));
    }
    if count > HANDED_MAX {
        return invalid(format!("a hand-over has {count} descriptors, more than {HANDED_MAX}"));
    }
    Ok(())
}

/// Anonymous memory with these bytes.
pub(super) fn memory_with(bytes: &[u8]) -> io::Result<File> {
    let mut file = memory_file(c"headworks-upgrade")?;
    file.write_all(bytes)?;
    Ok(file)
}

fn read_memory(file: File, length: u64) -> Result<Vec<u8>, PacketError> {
    let metadata = file.metadata().map_err(PacketError::Io)?;
    if !metadata.is_file() || metadata.len() != length {
        return invalid("the memory of a record does not have the size of the record");
    }
    let mut bytes = vec![0; length as usize];
    file.read_exact_at(&mut bytes, 0).map_err(PacketError::Io)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn pair() -> (Channel, Channel) {
        let (one, other) = PacketSocket::pair().unwrap();
        (Channel::new(one), Channel::new(other))
    }

    fn inode(fd: &OwnedFd) -> u64 {
        File::from(fd.try_clone().unwrap()).metadata().unwrap().ino()
    }

    #[test]
    fn thousand_descriptors_and_long_record_arrive_in_order() {
        let (old, new) = pair();
        let record: Vec<u8> = (0..10_u32 << 20).map(|index| (index % 251) as u8).collect();
        // Two kinds of descriptors, so that an exchanged order is seen.
        let files = [memory_with(b"a").unwrap(), memory_with(b"b").unwrap()];
        let clone = |index: usize| {
            OwnedFd::from(files[usize::from(index.is_multiple_of(7))].try_clone().unwrap())
        };
        let descriptors: Vec<OwnedFd> = (0..1000).map(clone).collect();
        let inodes: Vec<u64> = descriptors.iter().map(inode).collect();
        let handover = Handover { record: record.clone(), descriptors };
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| old.send(Message::Live(handover), soon()));
            let Message::Live(received) = new.receive(soon()).unwrap() else {
                panic!("another message")
            };
            sent.join().unwrap().unwrap();
            assert!(received.record == record);
            assert_eq!(received.descriptors.iter().map(inode).collect::<Vec<_>>(), inodes);
            for fd in &received.descriptors {
                // SAFETY: asks for the flags of an open descriptor.
                let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFD) };
                assert_eq!(flags, libc::FD_CLOEXEC);
            }
        });
    }

    #[test]
    fn plain_messages_arrive_as_sent() {
        let (old, new) = pair();
        let empty = || Handover::default();
        new.send(Message::Hello { version: 70_000 }, soon()).unwrap();
        assert!(matches!(old.receive(soon()), Ok(Message::Hello { version: 70_000 })));
        for message in [Message::Prepared, Message::Adopted, Message::Go, Message::Serving] {
            let name = message.name();
            new.send(message, soon()).unwrap();
            assert_eq!(old.receive(soon()).unwrap().name(), name);
        }
        new.send(Message::Failed("x".repeat(1 << 20)), soon()).unwrap();
        let Ok(Message::Failed(reason)) = old.receive(soon()) else { panic!("another message") };
        assert_eq!(reason, "x".repeat(SENTENCE_MAX));
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| old.send(Message::Standing(empty()), soon()));
            assert_eq!(new.receive(soon()).unwrap().name(), "Standing");
            sent.join().unwrap().unwrap();
        });
    }

    #[test]
    fn peer_that_ends_within_a_handover_ends_it() {
        let (old, new) = pair();
        let (kept, mut watched) = UnixStream::pair().unwrap();
        let descriptors = (0..500).map(|_| kept.try_clone().unwrap().into()).collect();
        drop(kept);
        let handover = Handover { record: vec![1; 100], descriptors };
        std::thread::scope(|scope| {
            let sent = scope.spawn(|| old.send(Message::Live(handover), soon()));
            // The head and the first descriptors are taken, then the process is gone.
            let head = new.0.receive(Some(soon())).unwrap();
            new.0.send(&[RECEIVED], &[], soon()).unwrap();
            let first = new.0.receive(Some(soon())).unwrap();
            assert_eq!((head.bytes[0], first.descriptors.len()), (LIVE, DESCRIPTORS_MAX));
            drop((first, new));
            assert!(matches!(sent.join().unwrap(), Err(PacketError::Closed)));
        });
        // No descriptor is left anywhere.
        assert_eq!(watched.read(&mut [0]).unwrap(), 0);

        let (old, new) = pair();
        let head = [&[LIVE][..], &100_u64.to_le_bytes(), &500_u32.to_le_bytes()].concat();
        let memory = memory_with(&[1; 100]).unwrap();
        old.0.send(&head, &[memory.as_fd()], soon()).unwrap();
        drop(old);
        assert!(matches!(new.receive(soon()), Err(PacketError::Closed)));
    }

    /// The error of a receiver that gets this packet.
    fn refused(bytes: &[u8], memory: Option<&File>) -> String {
        let (old, new) = pair();
        let memory: Vec<_> = memory.iter().map(|file| file.as_fd()).collect();
        old.0.send(bytes, &memory, soon()).unwrap();
        new.receive(soon()).unwrap_err().to_string()
    }

    #[test]
    fn wrong_packets_are_refused_with_the_reason() {
        let head = |length: u64, count: u32| {
            [&[STANDING][..], &length.to_le_bytes(), &count.to_le_bytes()].concat()
        };
        let memory = memory_with(b"four").unwrap();
        assert!(refused(&[99], None).contains("kind 99 with 0 bytes is unknown"));
        assert!(refused(&[GO, 1], None).contains("kind 6 with 1 bytes is unknown"));
        assert!(refused(&[GO], Some(&memory)).contains("Go came with descriptors"));
        assert!(refused(&head(4, 0), None).contains("without the memory"));
        assert!(refused(&head(5, 0), Some(&memory)).contains("size of the record"));
        assert!(refused(&head(u64::MAX, 0), Some(&memory)).contains("more than 1073741824"));
        assert!(refused(&head(4, 20_000), Some(&memory)).contains("more than 16384"));
        let (reader, _writer) = UnixStream::pair().unwrap();
        let socket = File::from(OwnedFd::from(reader));
        assert!(refused(&head(0, 0), Some(&socket)).contains("size of the record"));
    }

    #[test]
    fn descriptors_beyond_the_announced_count_are_refused() {
        let (old, new) = pair();
        let memory = memory_with(b"").unwrap();
        let head = [&[LIVE][..], &0_u64.to_le_bytes(), &1_u32.to_le_bytes()].concat();
        old.0.send(&head, &[memory.as_fd()], soon()).unwrap();
        old.0.send(&[DESCRIPTORS], &[memory.as_fd(), memory.as_fd()], soon()).unwrap();
        let error = new.receive(soon()).unwrap_err().to_string();
        assert!(error.contains("2 descriptors came after 0 of 1"), "{error}");
    }

    #[test]
    fn failure_of_the_peer_ends_a_handover_with_its_sentence() {
        let (old, new) = pair();
        new.send(Message::Failed("no memory is left".into()), soon()).unwrap();
        let error = old.send(Message::Live(Handover::default()), soon()).unwrap_err();
        assert_eq!(error.to_string(), "no memory is left");
        let other = Message::Go.unexpected("Prepared").to_string();
        assert_eq!(other, "the message Go came in place of Prepared");
    }

    #[test]
    fn silent_peer_times_out() {
        let (old, _new) = pair();
        let now = Instant::now();
        assert!(matches!(old.receive(now), Err(PacketError::TimedOut)));
        let sent = old.send(Message::Live(Handover::default()), now);
        assert!(matches!(sent, Err(PacketError::TimedOut)));
    }
}
