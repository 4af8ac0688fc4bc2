//! A simulated NBD server with a volatile cache, in the same thread as the device, over pairs of sockets.
//!
//! It takes parts of what arrives, answers in any order and sends in parts, all by a seed; so a run repeats. A connection that the
//! device closed is executed or dropped at once, and always before a new one is accepted: that is the server for which the device
//! promises its order of writes. It refuses changes and flushes as [`Refusals`] says. Structured reads come in chunks, in any order, and
//! some of them overlap and leave a gap.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use headworks_core::prng::Prng;

use crate::client::{ClientError, Export, Socket};
use crate::device::{Attempt, Dial, Opened};
use crate::wire::{self, CommandFlags, NbdError, REQUEST_BYTES, RequestHeader};
use crate::{Replies, TransmissionFlags};

/// Bytes of a block, which is written or lost as a whole.
pub const BLOCK: usize = 512;
/// Size of the export in bytes.
pub const SIZE: usize = 64 << 10;

/// A request that the remote has received whole.
struct Received {
    header: RequestHeader,
    data: Vec<u8>,
}

/// One connection, as the remote has it.
pub struct Stream {
    /// The remote's end of it.
    pub socket: UnixStream,
    input: Vec<u8>,
    /// Bytes that wait to be sent.
    pub output: Vec<u8>,
    pending: Vec<Received>,
    is_closed: bool,
    /// One in so many turns executes a request, and one in so many sends.
    slowness: u64,
}

/// Which changes and flushes the remote answers with an error, of its disk or for lack of space.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refusals {
    /// One change (write, zeroes or discard) in so many is refused; 0: none.
    pub changes_one_in: u64,
    /// One flush in so many is refused; 0: none.
    pub flushes_one_in: u64,
    /// The next changes, all of which are refused.
    pub next_changes: u32,
    /// The next flushes, all of which are refused.
    pub next_flushes: u32,
    /// Changes that were refused so far.
    pub changes: u64,
    /// Flushes that were refused so far.
    pub flushes: u64,
}

impl Refusals {
    /// Whether the remote refuses a command that it has taken out.
    fn strike(&mut self, command: wire::Command, prng: &mut Prng) -> bool {
        let mut one_in = |count: u64| count > 0 && prng.below(count) == 0;
        match command {
            wire::Command::Write | wire::Command::WriteZeroes | wire::Command::Trim => {
                let is_refused = self.next_changes > 0 || one_in(self.changes_one_in);
                self.next_changes = self.next_changes.saturating_sub(1);
                self.changes += u64::from(is_refused);
                is_refused
            }
            wire::Command::Flush => {
                let is_refused = self.next_flushes > 0 || one_in(self.flushes_one_in);
                self.next_flushes = self.next_flushes.saturating_sub(1);
                self.flushes += u64::from(is_refused);
                is_refused
            }
            _ => false,
        }
    }
}

/// The simulated server of an export.
pub struct Remote {
    /// What survives its end.
    pub stable: Vec<u8>,
    /// What a read returns.
    pub current: Vec<u8>,
    /// The export as it is told to those that connect.
    pub export: Export,
    /// Connections that an attempt opens.
    pub connections: usize,
    /// Its connections, in the order of their opening.
    pub streams: Vec<Stream>,
    /// Whether attempts to connect succeed.
    pub is_there: bool,
    /// It does nothing, and lets those that connect wait.
    pub is_stalled: bool,
    /// Changes and flushes that are refused.
    pub refusals: Refusals,
    /// One structured read in so many is answered with chunks that overlap; 0: none.
    pub gaps_one_in: u64,
    /// Reads that were answered so.
    pub gaps: u64,
    attempt_waits: bool,
    results: VecDeque<Attempt>,
    bell: UnixStream,
    /// Attempts so far, those in progress included.
    pub attempts: u32,
    /// Bytes that are sent before every stream is closed; none for no cut.
    pub cut_after: Option<usize>,
    /// Bytes that were sent so far.
    pub sent: usize,
    prng: Prng,
}

/// A remote that a device and its world share.
pub type Shared = Arc<Mutex<Remote>>;

/// Connects a device to a [`Remote`].
pub struct TestDial(Shared, UnixStream);

impl Dial for TestDial {
    fn start(&mut self) {
        lock(&self.0).begin_attempt();
    }

    fn fd(&self) -> RawFd {
        self.1.as_raw_fd()
    }

    fn take(&mut self) -> Option<Attempt> {
        let _ = self.1.read(&mut [0; 8]);
        lock(&self.0).results.pop_front()
    }
}

/// Locks a remote; a panic of another test is none of this one.
pub fn lock(remote: &Shared) -> MutexGuard<'_, Remote> {
    remote.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The flags of a server that has everything.
#[must_use]
pub fn all_flags() -> TransmissionFlags {
    TransmissionFlags::SEND_FLUSH
        .with(TransmissionFlags::SEND_FUA)
        .with(TransmissionFlags::SEND_TRIM)
        .with(TransmissionFlags::SEND_WRITE_ZEROES)
        .with(TransmissionFlags::CAN_MULTI_CONN)
}

fn pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("the system has descriptors");
    ours.set_nonblocking(true).expect("a socket can be nonblocking");
    (ours, theirs)
}

impl Remote {
    /// A server with zeros, and what connects to it.
    #[must_use]
    pub fn new(seed: u64, flags: TransmissionFlags, structured: bool) -> (Shared, TestDial) {
        let (ear, bell) = pair();
        let allocation = structured.then_some(7);
        let size = SIZE as u64;
        let export = Export { size, flags, structured, allocation, ..Export::default() };
        let remote = Self {
            stable: vec![0; SIZE],
            current: vec![0; SIZE],
            export,
            connections: 1,
            streams: Vec::new(),
            is_there: true,
            is_stalled: false,
            refusals: Refusals::default(),
            gaps_one_in: 0,
            gaps: 0,
            attempt_waits: false,
            results: VecDeque::new(),
            bell,
            attempts: 0,
            cut_after: None,
            sent: 0,
            prng: Prng::new(seed),
        };
        let remote = Arc::new(Mutex::new(remote));
        (Arc::clone(&remote), TestDial(remote, ear))
    }

    fn begin_attempt(&mut self) {
        self.attempts += 1;
        assert!(self.results.is_empty() && !self.attempt_waits, "one attempt at a time");
        self.attempt_waits = true;
        if !self.is_stalled {
            self.end_attempt();
        }
    }

    fn end_attempt(&mut self) {
        self.attempt_waits = false;
        let attempt = if self.is_there { Ok(self.open()) } else { Err(ClientError::Closed) };
        self.results.push_back(attempt);
        // The device may have ended.
        let _ = (&self.bell).write_all(&[0]);
    }

    /// Goes on after a stall: first with what has arrived, then with an attempt that waits.
    pub fn resume(&mut self) {
        self.is_stalled = false;
        if self.attempt_waits {
            self.end_attempt();
        }
    }

    /// Accepts connections. What is left of closed ones is executed before.
    pub fn open(&mut self) -> Vec<Opened> {
        for index in 0..self.streams.len() {
            while self.receive(index) {}
        }
        self.end_closed();
        let one = |_| {
            let (ours, theirs) = pair();
            let (input, output, pending) = (Vec::new(), Vec::new(), Vec::new());
            let (is_closed, slowness) = (false, [1, 1, 2, 8][self.prng.below(4) as usize]);
            let stream = Stream { socket: ours, input, output, pending, is_closed, slowness };
            self.streams.push(stream);
            (Socket::from(theirs), self.export.clone())
        };
        (0..self.connections).map(one).collect()
    }

    /// The process ends: of what no flush covers any block may be gone.
    pub fn restart(&mut self) {
        self.streams.clear();
        let blocks = self.stable.chunks_exact_mut(BLOCK).zip(self.current.chunks_exact_mut(BLOCK));
        for (stable, current) in blocks {
            if self.prng.below(2) == 0 {
                stable.copy_from_slice(current);
            }
            current.copy_from_slice(stable);
        }
    }

    /// The process ends, and everything that it has acknowledged survives.
    pub fn restart_stable(&mut self) {
        self.stable.copy_from_slice(&self.current);
        self.streams.clear();
    }

    /// Closes every connection. Of what is in flight any part is executed.
    pub fn disconnect(&mut self) {
        self.streams.iter_mut().for_each(|stream| stream.is_closed = true);
        self.end_closed();
    }

    /// Executes or drops what closed connections have left.
    fn end_closed(&mut self) {
        for index in 0..self.streams.len() {
            if !self.streams[index].is_closed {
                continue;
            }
            for request in std::mem::take(&mut self.streams[index].pending) {
                if self.prng.below(2) == 0 {
                    self.execute(index, &request);
                }
            }
        }
        self.streams.retain(|stream| !stream.is_closed);
    }

    /// Receives a part; returns whether anything came.
    fn receive(&mut self, index: usize) -> bool {
        let part = self.prng.between(1, 3000) as usize;
        let stream = &mut self.streams[index];
        let mut bytes = vec![0; part];
        let moved = match stream.socket.read(&mut bytes) {
            Ok(0) => {
                stream.is_closed = true;
                false
            }
            Ok(count) => {
                stream.input.extend_from_slice(&bytes[..count]);
                true
            }
            Err(error) => {
                stream.is_closed |= error.kind() != ErrorKind::WouldBlock;
                false
            }
        };
        while let Some(received) = take_request(&mut stream.input) {
            stream.pending.push(received);
        }
        moved
    }

    /// Receives a part of each stream, answers some requests in any order, and sends a part; returns whether anything moved.
    pub fn pump(&mut self) -> bool {
        if self.is_stalled {
            return false;
        }
        let mut moved = false;
        for index in 0..self.streams.len() {
            moved |= self.receive(index);
        }
        self.end_closed();
        for index in 0..self.streams.len() {
            let waiting = self.streams[index].pending.len() as u64;
            moved |= waiting > 0;
            if waiting > 0 && self.prng.below(self.streams[index].slowness) == 0 {
                let next = self.prng.below(waiting) as usize;
                let request = self.streams[index].pending.swap_remove(next);
                self.execute(index, &request);
            }
        }
        moved | self.send()
    }

    fn send(&mut self) -> bool {
        let mut moved = false;
        for stream in &mut self.streams {
            moved |= !stream.output.is_empty();
            if self.prng.below(stream.slowness) > 0 {
                continue;
            }
            let most = match self.cut_after {
                Some(cut) => cut - self.sent,
                None => self.prng.between(1, 5000) as usize,
            };
            let count = stream.output.len().min(most);
            if count > 0 {
                // The device may have closed it.
                let _ = stream.socket.write_all(&stream.output[..count]);
                stream.output.drain(..count);
                self.sent += count;
            }
        }
        if self.cut_after == Some(self.sent) {
            self.cut_after = None;
            self.restart();
            return true;
        }
        moved
    }

    fn execute(&mut self, index: usize, request: &Received) {
        let RequestHeader { flags, command, cookie, offset, len } = request.header;
        let range = offset as usize..offset as usize + len as usize;
        let replies = Replies { structured: self.export.structured };
        let fua = CommandFlags(flags).contains(CommandFlags::FUA);
        let command = wire::Command::from_code(command).expect("a known command");
        if self.refusals.strike(command, &mut self.prng) {
            let error = [NbdError::Io, NbdError::NoSpace][self.prng.below(2) as usize];
            self.execute_in_part(command, range, &request.data, fua);
            return replies.done(&mut self.streams[index].output, cookie, Err(error));
        }
        let in_chunks = replies.structured && len >= 8 && self.prng.below(2) == 0;
        if command == wire::Command::Read && in_chunks {
            return self.read_in_chunks(index, request.header);
        }
        let out = &mut self.streams[index].output;
        match command {
            wire::Command::Read => {
                let data = &self.current[range];
                let zeros = data.iter().all(|&byte| byte == 0);
                if zeros && replies.read_hole(out, cookie, offset, len) {
                    return;
                }
                if !zeros {
                    replies.read_data(out, cookie, offset, len);
                }
                out.extend_from_slice(data);
                return;
            }
            wire::Command::Write => {
                self.current[range.clone()].copy_from_slice(&request.data);
                if fua {
                    self.stable[range].copy_from_slice(&request.data);
                }
            }
            wire::Command::WriteZeroes | wire::Command::Trim => {
                self.current[range.clone()].fill(0);
                if fua {
                    self.stable[range].fill(0);
                }
            }
            wire::Command::Flush => self.stable.copy_from_slice(&self.current),
            wire::Command::BlockStatus => {
                let half = len / 2;
                out.extend(wire::STRUCTURED_REPLY_MAGIC.to_be_bytes());
                out.extend([0, 1, 0, 5]);
                out.extend(cookie.to_be_bytes());
                for word in [20_u32, 7, half, 3, len - half, 0] {
                    out.extend(word.to_be_bytes());
                }
                return;
            }
            wire::Command::Disconnect | wire::Command::Cache => return,
        }
        replies.done(out, cookie, Ok(()));
    }

    /// Answers a read with up to four chunks in any order; with a gap, one of them comes twice and the next one is left out.
    fn read_in_chunks(&mut self, index: usize, header: RequestHeader) {
        let RequestHeader { cookie, offset, len, .. } = header;
        let quarter = u64::from(len / 4);
        let end = |number: u64| if number == 3 { u64::from(len) } else { (number + 1) * quarter };
        let mut chunks: Vec<_> =
            (0..4).map(|at| (offset + at * quarter, offset + end(at))).collect();
        for at in (1..4).rev() {
            chunks.swap(at, self.prng.below(at as u64 + 1) as usize);
        }
        if self.gaps_one_in > 0 && self.prng.below(self.gaps_one_in) == 0 {
            self.gaps += 1;
            chunks[1] = chunks[0];
        }
        for (number, (from, to)) in (1..=4).zip(chunks) {
            let data = &self.current[from as usize..to as usize];
            let is_hole = data.iter().all(|&byte| byte == 0);
            let own = if is_hole { 12 } else { 8 + data.len() as u32 };
            let out = &mut self.streams[index].output;
            out.extend(wire::STRUCTURED_REPLY_MAGIC.to_be_bytes());
            out.extend([0, u8::from(number == 4), 0, if is_hole { 2 } else { 1 }]);
            out.extend(cookie.to_be_bytes());
            out.extend(own.to_be_bytes());
            out.extend(from.to_be_bytes());
            match is_hole {
                true => out.extend((data.len() as u32).to_be_bytes()),
                false => out.extend(data),
            }
        }
    }

    /// What a refused command leaves: of a change nothing, all or some of its bytes; of a flush some of the blocks are stable.
    fn execute_in_part(
        &mut self,
        command: wire::Command,
        range: Range<usize>,
        data: &[u8],
        fua: bool,
    ) {
        if command == wire::Command::Flush {
            let blocks = self.stable.chunks_exact_mut(BLOCK).zip(self.current.chunks_exact(BLOCK));
            for (stable, current) in blocks {
                if self.prng.below(2) == 0 {
                    stable.copy_from_slice(current);
                }
            }
            return;
        }
        let part = match self.prng.below(3) {
            0 => 0..0,
            1 => 0..range.len(),
            _ => {
                let from = self.prng.below(range.len() as u64);
                from as usize..self.prng.between(from, range.len() as u64) as usize
            }
        };
        let there = range.start + part.start..range.start + part.end;
        match command {
            wire::Command::Write => self.current[there.clone()].copy_from_slice(&data[part]),
            _ => self.current[there.clone()].fill(0),
        }
        if fua && self.prng.below(2) == 0 {
            self.stable[there.clone()].copy_from_slice(&self.current[there]);
        }
    }
}

fn take_request(input: &mut Vec<u8>) -> Option<Received> {
    let header = RequestHeader::decode(input.first_chunk::<REQUEST_BYTES>()?).ok()?;
    let is_write = header.command == wire::Command::Write as u16;
    let len = REQUEST_BYTES + if is_write { header.len as usize } else { 0 };
    if input.len() < len {
        return None;
    }
    let data = input[REQUEST_BYTES..len].to_vec();
    input.drain(..len);
    Some(Received { header, data })
}
