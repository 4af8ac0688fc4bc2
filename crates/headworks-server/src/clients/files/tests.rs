//! A file behind a device that is a pair of sockets: what the kernel would send and get.

use std::sync::mpsc::channel;

use headworks_core::{Bio, BioFlags, ExtentState, Input};

use super::kernel::*;
use super::*;
use crate::clients::nbd::connection::ReceiveOutcome;
use crate::clients::nbd::connection::bench::Bench;
use headworks_nbd::export::BlockSizes;

mod random;

const SIZE: u64 = 1 << 20;

/// A file, the kernel that has it, and the shard's part.
struct Rig {
    info: ExportInfo,
    client: FuseClient,
    kernel: Kernel,
    bench: Bench,
}

impl Rig {
    fn new(changed: impl FnOnce(&mut ExportInfo)) -> Self {
        let (ours, kernel) = Kernel::with_device();
        let limits = crate::ServerOptions::default().connection_limits();
        let place = FilePlace { directory: "/mnt".into(), name: "a".to_owned() };
        let names = (place, "l".into());
        let mut client = FuseClient::new(ours, names, limits, channel().0).unwrap();
        let mut info = ExportInfo { size: SIZE, ..ExportInfo::default() };
        changed(&mut info);
        client.begin(ExportBinding::default(), &info);
        Self { info, client, kernel, bench: Bench::new(4 << 20, 64) }
    }

    /// The file goes on in another process.
    fn replace(&mut self) {
        let handed = self.client.hand_over().unwrap();
        let limits = crate::ServerOptions::default().connection_limits();
        self.client = FuseClient::adopt(handed, "l".into(), limits, channel().0).unwrap();
        self.client.begin(ExportBinding::default(), &self.info);
    }

    fn receive(&mut self) -> ReceiveOutcome {
        self.bench.room = 64;
        self.bench.lend(1, None, |shares| self.client.receive(shares))
    }

    /// The bios that came of what the kernel has asked.
    fn bios(&mut self) -> Vec<Bio> {
        while self.receive() == ReceiveOutcome::Worked {}
        self.taken()
    }

    /// The bios that came.
    fn taken(&mut self) -> Vec<Bio> {
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

fn idle() -> headworks_core::Ioprio {
    headworks_core::Ioprio::new(headworks_core::IoClass::Idle, 0)
}

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
fn readers_and_those_who_look_pass_writes_that_wait_for_a_thaw() {
    let mut rig = Rig::new(|_| ());
    rig.bench.frozen = true;
    for write in 1..=3 {
        rig.kernel.ask(WRITE, write, &write_of(4096 * write, &[7; 4096], 0));
    }
    rig.kernel.ask(ALLOCATE, 4, &allocate_of(0, 4096, libc::FALLOC_FL_PUNCH_HOLE | 1));
    assert_eq!(rig.bios(), []);
    rig.kernel.ask(READ, 5, &read_of(0, 4096));
    let bios = rig.bios();
    assert_eq!(bios.iter().map(|bio| bio.op).collect::<Vec<_>>(), [Op::Read]);
    rig.reply(&bios[0], Ok(()));
    assert_eq!(rig.kernel.answer().unwrap().1, 5);
    assert_eq!(rig.asked(3, &[0; 16]).0, 0, "attributes");
    assert!(rig.client.waits_for(WaitsFor::Freeze) && rig.kernel.answer().is_none());
    rig.bench.frozen = false;
    let bios = rig.bios();
    let order: Vec<(Op, u64)> = bios.iter().map(|bio| (bio.op, bio.offset)).collect();
    let writes = [1, 2, 3].map(|write| (Op::Write, 4096 * write));
    assert_eq!((&order[..3], order[3]), (&writes[..], (Op::WriteZeroes, 0)));
    bios.iter().for_each(|bio| rig.reply(bio, Ok(())));
    assert_eq!(rig.rest(), (0, 0));
}

#[test]
fn writes_that_wait_for_a_thaw_keep_little_of_the_pool() {
    let mut rig = Rig::new(|_| ());
    rig.bench.frozen = true;
    let data = vec![7; WRITE_MAX as usize];
    let mut last = ReceiveOutcome::Idle;
    for write in 0..9 {
        rig.kernel.ask(WRITE, write, &write_of(0, &data, 0));
        last = rig.receive();
        while last == ReceiveOutcome::Worked {
            last = rig.receive();
        }
    }
    assert_eq!((last, rig.rest().0), (ReceiveOutcome::Waits(WaitsFor::Freeze), 1 << 20));
    rig.bench.frozen = false;
    let bios = rig.bios();
    assert_eq!(bios.len(), 9);
    bios.iter().for_each(|bio| rig.reply(bio, Ok(())));
    assert_eq!((0..9).filter(|_| rig.kernel.answer().is_some()).count(), 9);
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

#[test]
fn file_goes_on_in_another_process_with_what_it_knows() {
    let mut rig = Rig::new(|_| ());
    let ask = |rig: &mut Rig| rig.asked(26, &[7, 0, 0, 0, 40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(rig.client.hand_over().unwrap().terms, None, "the kernel has asked nothing");
    ask(&mut rig);
    assert_eq!(rig.asked(14, &words(&[libc::O_RDWR as u64])).0, 0);
    let before = rig.asked(3, &[0; 16]);
    rig.client.set_ioprio(idle());
    rig.replace();
    let handed = rig.client.hand_over().unwrap();
    let AgreedTerms { minor, write_max, .. } = handed.terms.unwrap();
    assert_eq!((minor, write_max, handed.opens), (40, WRITE_MAX, 1));
    assert_eq!(handed.ioprio, Some(idle()));
    assert_eq!((handed.place.shown(), rig.client.peer()), ("/mnt/a".to_owned(), "/mnt/a"));
    assert_eq!(rig.asked(3, &[0; 16]), before, "the time of change stays");
    assert!(!rig.client.is_unused());
    rig.kernel.ask(READ, 5, &read_of(0, 4096));
    let bios = rig.bios();
    assert!(!rig.client.is_at_rest());
    rig.reply(&bios[0], Ok(()));
    assert_eq!(rig.kernel.answer().unwrap().1, 5);
    rig.client.leave(&mut rig.bench.pool);
    assert!(rig.client.hand_over().is_none(), "it takes no requests any more");
}

#[test]
fn long_requests_go_on_in_another_process_where_they_were() {
    const GIB: u64 = 1 << 30;
    let mut rig = Rig::new(|info| info.size = 8 * GIB);
    rig.kernel.ask(ALLOCATE, 1, &allocate_of(4096, 5 * GIB, libc::FALLOC_FL_PUNCH_HOLE | 1));
    // There is a slot for one piece, and the next one waits.
    rig.bench.room = 1;
    for expected in [ReceiveOutcome::Worked, ReceiveOutcome::Waits(WaitsFor::Room)] {
        let received = rig.bench.lend(1, None, |shares| rig.client.receive(shares));
        assert_eq!(received, expected);
    }
    let first = rig.taken();
    rig.reply(&first[0], Ok(()));
    assert!(!rig.client.is_at_rest(), "what waits ends here");
    rig.bench.room = 64;
    assert!(rig.bench.lend(1, None, |shares| rig.client.resubmit_waiting(shares)));
    let second = rig.taken();
    assert_eq!((first.len(), second.len()), (1, 1), "no piece is given that was not");
    rig.reply(&second[0], Ok(()));
    rig.replace();
    let rest = rig.bios();
    let all: Vec<u64> = first.iter().chain(&second).chain(&rest).map(|bio| bio.offset).collect();
    assert_eq!(all, [0, 1, 2, 3, 4].map(|piece| 4096 + piece * GIB));
    assert!(rest.iter().all(|bio| !bio.flags.contains(BioFlags::NO_UNMAP)));
    for bio in &rest {
        assert!(rig.kernel.answer().is_none(), "a piece is in flight");
        rig.reply(bio, Ok(()));
    }
    assert_eq!(rig.kernel.answer().unwrap(), (0, 1, vec![]));

    rig.kernel.ask(SEEK, 2, &words(&[0, 8192, libc::SEEK_HOLE as u64]));
    for found in [8192 + GIB, 8192 + GIB] {
        let bio = rig.bios().pop().unwrap();
        assert!(rig.kernel.answer().is_none());
        let span = rig.client.buffer(bio.id.sequence).unwrap();
        // SAFETY: the block is the test's until it replies.
        let list = unsafe { std::slice::from_raw_parts_mut(span.base(), EXTENTS_BYTES as usize) };
        let mut writer = headworks_core::extent::ExtentWriter::new(list, bio.len, 128);
        let is_first = bio.offset == 8192;
        writer.push(GIB, if is_first { ExtentState::DATA } else { ExtentState::HOLE_ZERO });
        writer.finish();
        rig.reply(&bio, Ok(()));
        if is_first {
            rig.replace();
            continue;
        }
        assert_eq!(bio.offset, found);
        assert_eq!(rig.kernel.answer().unwrap(), (0, 2, words(&[found])));
    }
    assert_eq!(rig.rest(), (0, 0));
}
