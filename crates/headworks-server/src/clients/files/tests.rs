//! A file behind a device that is a pair of sockets: what the kernel would send and get.

use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::mpsc::channel;

use headworks_core::{Bio, BioFlags, ExtentState, Input};

use super::*;
use crate::clients::nbd::connection::ReceiveOutcome;
use crate::clients::nbd::connection::bench::Bench;
use headworks_nbd::export::BlockSizes;

const SIZE: u64 = 1 << 20;

/// The kernel's end of a device, which has packets as `/dev/fuse` has requests.
struct Kernel(std::fs::File);

impl Kernel {
    /// A request: its operation, number and body.
    fn ask(&mut self, operation: u32, unique: u64, body: &[u8]) {
        let mut bytes = ((40 + body.len()) as u32).to_le_bytes().to_vec();
        bytes.extend(operation.to_le_bytes());
        bytes.extend(unique.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
        bytes.extend([0; 16]);
        bytes.extend(body);
        assert_eq!(self.0.write(&bytes).unwrap(), bytes.len());
    }

    /// The next answer: its errno, number and body; none if there is none.
    fn answer(&mut self) -> Option<(i32, u64, Vec<u8>)> {
        let mut bytes = vec![0; 2 << 20];
        let length = self.0.read(&mut bytes).ok()?;
        let word = |at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(word(0) as usize, length, "an answer says its length");
        let unique = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        Some((-word(4), unique, bytes[16..length].to_vec()))
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn read_of(offset: u64, size: u32) -> Vec<u8> {
    words(&[0, offset, size.into(), 0, 0])
}

fn write_of(offset: u64, data: &[u8], flags: u32) -> Vec<u8> {
    let mut body = words(&[0, offset, data.len() as u64, 0, flags.into()]);
    body.extend(data);
    body
}

fn allocate_of(offset: u64, length: u64, mode: i32) -> Vec<u8> {
    words(&[0, offset, length, mode as u64])
}

/// A file, the kernel that has it, and the shard's part.
struct Rig {
    client: FuseClient,
    kernel: Kernel,
    bench: Bench,
}

impl Rig {
    fn new(changed: impl FnOnce(&mut ExportInfo)) -> Self {
        let mut fds = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: room for two descriptors, which are new.
        let [ours, theirs] = unsafe {
            assert_eq!(libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()), 0);
            fds.map(|fd| OwnedFd::from_raw_fd(fd))
        };
        let limits = crate::ServerOptions::default().connection_limits();
        let names = ("/mnt/a".to_owned(), "l".into());
        let mut client = FuseClient::new(ours, names, limits, channel().0).unwrap();
        let mut info = ExportInfo { size: SIZE, ..ExportInfo::default() };
        changed(&mut info);
        client.begin(ExportBinding::default(), &info);
        Self { client, kernel: Kernel(theirs.into()), bench: Bench::new(4 << 20, 64) }
    }

    fn receive(&mut self) -> ReceiveOutcome {
        self.bench.room = 64;
        self.bench.lend(1, None, |shares| self.client.receive(shares))
    }

    /// The bios that came of what the kernel has asked.
    fn bios(&mut self) -> Vec<Bio> {
        while self.receive() == ReceiveOutcome::Worked {}
        let bio = |input: Input| match input {
            Input::Bio(bio) => bio,
            other => panic!("{other:?} is no bio"),
        };
        self.bench.inputs.drain(..).map(bio).collect()
    }

    fn reply(&mut self, bio: &Bio, status: Status) {
        let answer = (status, false, ReplyStage::Final);
        self.client.reply(Instant(2), bio.id.sequence, answer, &mut self.bench.pool).unwrap();
    }

    /// Asks something that comes to no bio.
    fn asked(&mut self, operation: u32, body: &[u8]) -> (i32, Vec<u8>) {
        self.kernel.ask(operation, 77, body);
        assert_eq!(self.bios(), []);
        let (errno, unique, body) = self.kernel.answer().unwrap();
        assert_eq!(unique, 77);
        (errno, body)
    }

    fn memory(&mut self, bio: &Bio) -> &mut [u8] {
        let span = self.client.buffer(bio.id.sequence).unwrap();
        // SAFETY: the block is the test's until it replies.
        unsafe { std::slice::from_raw_parts_mut(span.base(), bio.len as usize) }
    }

    fn rest(&self) -> (usize, usize) {
        (self.client.held(), self.bench.pool.taken())
    }
}

const READ: u32 = 15;
const WRITE: u32 = 16;
const FSYNC: u32 = 20;
const ALLOCATE: u32 = 43;
const SEEK: u32 = 46;

#[test]
fn data_of_reads_and_writes_pass_by_blocks_that_come_back() {
    let mut rig = Rig::new(|_| ());
    rig.kernel.ask(WRITE, 1, &write_of(4096, &[7; 5000], 0));
    rig.kernel.ask(READ, 2, &read_of(1, 8192));
    let bios = rig.bios();
    let [write, read] = &bios[..] else { panic!("{bios:?}") };
    assert_eq!((write.op, write.offset, write.len), (Op::Write, 4096, 5000));
    assert_eq!((read.op, read.offset, read.len), (Op::Read, 1, 8192));
    assert_eq!(rig.memory(write), [7; 5000]);
    rig.memory(read).fill(9);
    rig.reply(read, Ok(()));
    assert_eq!(rig.kernel.answer().unwrap(), (0, 2, vec![9; 8192]));
    rig.reply(write, Ok(()));
    let (errno, unique, body) = rig.kernel.answer().unwrap();
    assert_eq!((errno, unique, &body[..4]), (0, 1, &5000u32.to_le_bytes()[..]));
    assert_eq!(rig.rest(), (0, 0));
}

#[test]
fn end_of_the_file_is_the_end_of_the_export() {
    let mut rig = Rig::new(|_| ());
    assert_eq!(rig.asked(READ, &read_of(SIZE, 4096)), (0, vec![]));
    assert_eq!(rig.asked(WRITE, &write_of(SIZE, &[1; 512], 0)).0, libc::ENOSPC);
    rig.kernel.ask(READ, 1, &read_of(SIZE - 512, 4096));
    rig.kernel.ask(WRITE, 2, &write_of(SIZE - 512, &[1; 4096], 0));
    let bios = rig.bios();
    assert_eq!([bios[0].len, bios[1].len], [512, 512]);
    rig.client.resize(2 * SIZE);
    rig.kernel.ask(READ, 3, &read_of(SIZE, 4096));
    assert_eq!(rig.bios()[0].len, 4096);
    let (errno, body) = rig.asked(3, &[0; 16]);
    let size = u64::from_le_bytes(body[24..32].try_into().unwrap());
    assert_eq!((errno, size), (0, 2 * SIZE));
    assert_eq!(body[..12], [0; 12], "the kernel keeps no attributes");
}

#[test]
fn durable_writes_are_those_of_files_that_ask_for_it() {
    let mut rig = Rig::new(|_| ());
    rig.kernel.ask(WRITE, 1, &write_of(0, &[1; 512], libc::O_DSYNC as u32));
    rig.kernel.ask(WRITE, 2, &write_of(0, &[1; 512], libc::O_DIRECT as u32));
    rig.kernel.ask(FSYNC, 3, &words(&[0, 1]));
    let bios = rig.bios();
    let is_durable = |bio: &Bio| bio.flags.contains(BioFlags::FUA);
    assert!(is_durable(&bios[0]) && !is_durable(&bios[1]));
    assert_eq!(bios[2].op, Op::Flush);
    rig.reply(&bios[2], Err(IoError::Medium));
    assert_eq!(rig.kernel.answer().unwrap(), (libc::EIO, 3, vec![]));
}

#[test]
fn punched_holes_read_as_zeros_and_may_free_space() {
    let mut rig = Rig::new(|info| info.size = 4 << 30);
    let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    rig.kernel.ask(ALLOCATE, 1, &allocate_of(4096, 3 << 30, punch));
    rig.kernel.ask(ALLOCATE, 2, &allocate_of(0, 4096, libc::FALLOC_FL_ZERO_RANGE));
    let bios = rig.bios();
    assert!(bios.iter().all(|bio| bio.op == Op::WriteZeroes));
    let keeps: Vec<bool> = bios.iter().map(|bio| bio.flags.contains(BioFlags::NO_UNMAP)).collect();
    assert_eq!(keeps, [false, false, false, true]);
    rig.reply(&bios[1], Ok(()));
    rig.reply(&bios[0], Ok(()));
    assert!(rig.kernel.answer().is_none(), "a piece is in flight");
    rig.reply(&bios[2], Ok(()));
    assert_eq!(rig.kernel.answer().unwrap(), (0, 1, vec![]));
    let grows = allocate_of(4 << 30, 4096, libc::FALLOC_FL_ZERO_RANGE);
    assert_eq!(rig.asked(ALLOCATE, &grows).0, libc::EFBIG);
    assert_eq!(rig.asked(ALLOCATE, &allocate_of(0, 4096, 0)).0, libc::EOPNOTSUPP);
}

#[test]
fn holes_are_found_by_block_status() {
    let mut rig = Rig::new(|_| ());
    rig.kernel.ask(SEEK, 1, &words(&[0, 0, libc::SEEK_DATA as u64]));
    let bios = rig.bios();
    assert_eq!((bios[0].op, bios[0].len), (Op::BlockStatus, SIZE as u32));
    let span = rig.client.buffer(bios[0].id.sequence).unwrap();
    // SAFETY: the block is the test's until it replies.
    let list = unsafe { std::slice::from_raw_parts_mut(span.base(), EXTENTS_BYTES as usize) };
    let mut writer = headworks_core::extent::ExtentWriter::new(list, SIZE as u32, 128);
    writer.push(65536, ExtentState::HOLE_ZERO);
    writer.push(SIZE, ExtentState::DATA);
    writer.finish();
    rig.reply(&bios[0], Ok(()));
    assert_eq!(rig.kernel.answer().unwrap(), (0, 1, words(&[65536])));
    assert_eq!(rig.asked(SEEK, &words(&[0, SIZE, 3])).0, libc::ENXIO);
    assert_eq!(rig.rest(), (0, 0));
}

#[test]
fn read_only_export_takes_no_writer() {
    let mut rig = Rig::new(|info| info.flags = TransmissionFlags::READ_ONLY);
    let open = |flags: i32| words(&[flags as u64]);
    assert_eq!(rig.asked(14, &open(libc::O_RDWR)).0, libc::EROFS);
    assert!(rig.client.is_unused());
    assert_eq!(rig.asked(14, &open(libc::O_RDONLY)).0, 0);
    assert!(!rig.client.is_unused());
    assert_eq!(rig.asked(18, &[0; 24]).0, 0);
    assert!(rig.client.is_unused(), "it is closed");
    assert_eq!(rig.asked(WRITE, &write_of(0, &[1; 512], 0)).0, libc::EROFS);
    let (_, body) = rig.asked(3, &[0; 16]);
    assert_eq!(u32::from_le_bytes(body[76..80].try_into().unwrap()), libc::S_IFREG | 0o444);
}

#[test]
fn size_cannot_be_set_and_times_are_ignored() {
    let mut rig = Rig::new(|_| ());
    let set = |mask: u64, size: u64| {
        let mut body = words(&[mask, 0, size]);
        body.resize(88, 0);
        body
    };
    for (mask, size, errno) in [
        (8, 0, libc::EPERM),
        (8, SIZE + 1, libc::EFBIG),
        (8, SIZE, 0),
        (1, 0, libc::EPERM),
        (1 << 5, 0, 0),
    ] {
        assert_eq!(rig.asked(4, &set(mask, size)).0, errno, "{mask} {size}");
    }
}

#[test]
fn blocks_of_the_export_bound_ranges() {
    let mut rig = Rig::new(|info| info.block_sizes = BlockSizes { min: 512, ..info.block_sizes });
    assert_eq!(rig.asked(READ, &read_of(1, 512)).0, libc::EINVAL);
    assert_eq!(rig.asked(WRITE, &write_of(0, &[1; 100], 0)).0, libc::EINVAL);
    rig.kernel.ask(READ, 1, &read_of(512, 1024));
    assert_eq!(rig.bios().len(), 1);
}

#[test]
fn write_without_a_block_waits_with_its_data_and_nothing_is_read_behind_it() {
    let mut rig = Rig::new(|_| ());
    let all: Vec<Buffer> =
        std::iter::from_fn(|| rig.bench.pool.try_take(4096)).take(1024).collect();
    rig.kernel.ask(WRITE, 1, &write_of(0, &[7; 4096], 0));
    rig.kernel.ask(READ, 2, &read_of(0, 4096));
    assert_eq!(rig.receive(), ReceiveOutcome::Waits(WaitsFor::Buffer));
    assert_eq!(rig.receive(), ReceiveOutcome::Waits(WaitsFor::Buffer));
    assert!(rig.bench.inputs.is_empty());
    all.into_iter().for_each(|block| rig.bench.pool.put(block));
    let bios = rig.bios();
    assert_eq!([bios[0].op, bios[1].op], [Op::Write, Op::Read]);
    assert_eq!(rig.memory(&bios[0]), [7; 4096]);
    bios.iter().for_each(|bio| rig.reply(bio, Ok(())));
    assert_eq!(rig.rest(), (0, 0));
}

#[test]
fn late_request_is_answered_once_and_its_block_comes_back_later() {
    let mut rig = Rig::new(|_| ());
    rig.kernel.ask(READ, 1, &read_of(0, 4096));
    let bios = rig.bios();
    let id = bios[0].id.sequence;
    let late = (Err(IoError::TimedOut), false, ReplyStage::Early);
    assert!(rig.client.reply(Instant(2), id, late, &mut rig.bench.pool).is_some());
    assert_eq!(rig.kernel.answer().unwrap(), (libc::ETIMEDOUT, 1, vec![]));
    assert!(rig.rest().1 > 0, "the device may still use it");
    let released = (Ok(()), false, ReplyStage::Released);
    assert!(rig.client.reply(Instant(3), id, released, &mut rig.bench.pool).is_none());
    assert!(rig.kernel.answer().is_none());
    assert_eq!(rig.rest(), (0, 0));
}

#[test]
fn kernel_that_closes_the_device_ends_the_client() {
    let mut rig = Rig::new(|_| ());
    rig.kernel.ask(WRITE, 1, &write_of(0, &[7; 4096], 0));
    let bios = rig.bios();
    rig.client.leave(&mut rig.bench.pool);
    rig.kernel.ask(READ, 2, &read_of(0, 4096));
    assert_eq!(rig.bios(), [], "nothing more is read");
    assert!(!rig.client.is_finished());
    rig.reply(&bios[0], Ok(()));
    assert!(rig.client.is_finished());
    rig.client.close(&mut rig.bench.pool);
    assert_eq!((rig.client.socket(), rig.rest()), (None, (0, 0)));
}

#[test]
fn requests_of_any_bytes_end_nothing() {
    let mut rig = Rig::new(|info| info.block_sizes = BlockSizes { min: 512, ..info.block_sizes });
    let mut prng = headworks_core::prng::Prng::new(7);
    for round in 0..20_000u32 {
        let length = prng.below(120) as usize;
        let body: Vec<u8> = (0..length).map(|_| (prng.below(4) * 85) as u8).collect();
        rig.kernel.ask(round % 56, round.into(), &body);
        for bio in rig.bios() {
            rig.reply(&bio, Ok(()));
        }
        while rig.kernel.answer().is_some() {}
    }
    while rig.client.has_left_over() {
        for bio in rig.bios() {
            rig.reply(&bio, Ok(()));
        }
    }
    assert_eq!(rig.rest(), (0, 0));
}
