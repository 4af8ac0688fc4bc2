//! Random requests of a kernel, on a disk that answers them in any order and sometimes fails.

use std::collections::HashMap;

use headworks_core::prng::Prng;

use super::*;

const DISK: u64 = 96 << 10;
const EXTENT: u64 = 4096;
/// Blocks of the pool that are left: writes wait for one.
const BLOCKS: usize = 24;

#[derive(Clone, Debug)]
enum Asked {
    Read(u64, u32),
    Write(u64, Vec<u8>),
    Zero(u64, u64),
    Seek(u64, bool),
    Sync,
    /// Any bytes: its answer comes, whatever it is.
    Other,
}

struct Run {
    rig: Rig,
    prng: Prng,
    block: u64,
    disk: Vec<u8>,
    bios: Vec<Bio>,
    asked: HashMap<u64, Asked>,
    last: u64,
    /// Requests of each kind that were fulfilled.
    done: [u32; 5],
}

impl Run {
    fn offset(&mut self) -> u64 {
        let any = match self.prng.below(8) {
            0 => DISK - self.prng.below(9000),
            1 => DISK + self.prng.below(9000),
            2 => u64::MAX - self.prng.below(9000),
            _ => self.prng.below(DISK),
        };
        if self.prng.below(4) == 0 { any } else { any / self.block * self.block }
    }

    fn length(&mut self) -> u64 {
        let any = self.prng.below(12_000);
        if self.prng.below(4) == 0 { any } else { any.next_multiple_of(self.block) }
    }

    fn ask(&mut self) {
        self.last += 1;
        let (offset, length) = (self.offset(), self.length());
        let (operation, body, asked) = match self.prng.below(16) {
            0..6 => (READ, read_of(offset, length as u32), Asked::Read(offset, length as u32)),
            6..11 => {
                let data = vec![self.prng.below(255) as u8 + 1; length as usize];
                (WRITE, write_of(offset, &data, 0), Asked::Write(offset, data))
            }
            11 => {
                let keep = libc::FALLOC_FL_KEEP_SIZE;
                let mode = [libc::FALLOC_FL_PUNCH_HOLE, libc::FALLOC_FL_ZERO_RANGE];
                let mode = mode[self.prng.below(2) as usize] | keep;
                (ALLOCATE, allocate_of(offset, length, mode), Asked::Zero(offset, length))
            }
            12 | 13 => {
                let hole = self.prng.below(2) == 1;
                let whence = if hole { libc::SEEK_HOLE } else { libc::SEEK_DATA };
                (SEEK, words(&[0, offset, whence as u64]), Asked::Seek(offset, hole))
            }
            14 => (FSYNC, words(&[0, 1]), Asked::Sync),
            _ => {
                // Requests that have a body of their own above, and those that have no answer, aside.
                let others = [0, 1, 3, 4, 8, 14, 17, 18, 24, 25, 26, 28, 38, 40, 47, 55, 4096];
                let operation = others[self.prng.below(others.len() as u64) as usize];
                let body = (0..self.prng.below(96)).map(|_| self.prng.below(256) as u8).collect();
                (operation, body, Asked::Other)
            }
        };
        self.rig.kernel.ask(operation, self.last, &body);
        self.asked.insert(self.last, asked);
    }

    /// Bytes of a range that are on the disk, and the errno or nothing with which it is answered at once.
    fn at_once(&self, asked: &Asked) -> (u64, Option<i32>) {
        let within = |offset: u64, len: u64| len.min(DISK.saturating_sub(offset));
        let wrong = |offset: u64, len: u64| {
            (!(offset | len).is_multiple_of(self.block)).then_some(libc::EINVAL)
        };
        match asked {
            Asked::Read(offset, len) => match within(*offset, u64::from(*len)) {
                0 => (0, Some(0)),
                len => (len, wrong(*offset, len)),
            },
            Asked::Write(_, data) if data.is_empty() => (0, Some(0)),
            Asked::Write(offset, data) => match within(*offset, data.len() as u64) {
                0 => (0, Some(libc::ENOSPC)),
                len => (len, wrong(*offset, len)),
            },
            Asked::Zero(offset, len) => match within(*offset, *len) {
                0 => (0, Some(0)),
                len => (len, wrong(*offset, len)),
            },
            Asked::Seek(offset, _) => (0, (*offset >= DISK).then_some(libc::ENXIO)),
            Asked::Sync => (0, None),
            Asked::Other => unreachable!("nothing is known of it"),
        }
    }

    /// Takes the answers that need no disk, then the new bios.
    fn receive(&mut self) {
        let new = self.rig.bios();
        self.bios.extend(new);
        while let Some((errno, unique, body)) = self.rig.kernel.answer() {
            let asked = self.asked.remove(&unique).expect("a request is answered once");
            if matches!(asked, Asked::Other) {
                continue;
            }
            let (_, expected) = self.at_once(&asked);
            assert_eq!(Some(errno), expected, "{asked:?}");
            assert!(body.is_empty() || matches!(asked, Asked::Write(..)), "{asked:?}");
        }
    }

    /// Where a search ends on the disk of now; nothing if it finds no data.
    fn found(&self, from: u64, hole: bool) -> Option<u64> {
        let mut at = from;
        while at < DISK {
            let end = (at / EXTENT + 1) * EXTENT;
            let extent = &self.disk[(end - EXTENT) as usize..end as usize];
            if extent.iter().all(|byte| *byte == 0) == hole {
                return Some(at);
            }
            at = end;
        }
        hole.then_some(DISK)
    }

    /// The disk ends one of its requests.
    fn complete(&mut self) {
        let bio = self.bios.swap_remove(self.prng.below(self.bios.len() as u64) as usize);
        let status = if self.prng.below(16) == 0 { Err(IoError::Medium) } else { Ok(()) };
        assert!(bio.op == Op::Flush || bio.offset + u64::from(bio.len) <= DISK, "{bio:?}");
        let range = bio.offset as usize..bio.offset as usize + bio.len as usize;
        match bio.op {
            Op::Write if status.is_ok() => self.disk[range].copy_from_slice(self.rig.memory(&bio)),
            Op::Read => self.rig.memory(&bio).copy_from_slice(&self.disk[range]),
            Op::WriteZeroes if status.is_ok() => self.disk[range].fill(0),
            Op::BlockStatus => self.tell_extents(&bio),
            _ => {}
        }
        self.rig.reply(&bio, status);
        let (errno, unique, body) = self.rig.kernel.answer().expect("it is answered");
        assert!(self.rig.kernel.answer().is_none(), "and nothing else is");
        let asked = self.asked.remove(&unique).expect("a request is answered once");
        let (len, refused) = self.at_once(&asked);
        assert_eq!(refused, None, "{asked:?} needs no disk");
        if status.is_err() {
            assert_eq!((errno, body.len()), (libc::EIO, 0), "{asked:?}");
            return;
        }
        let kind = match &asked {
            Asked::Read(offset, _) => {
                assert_eq!((errno, bio.offset, body.len() as u64), (0, *offset, len));
                assert_eq!(body, self.disk[*offset as usize..(*offset + len) as usize]);
                0
            }
            Asked::Write(offset, data) => {
                assert_eq!((errno, &body[..4]), (0, &(len as u32).to_le_bytes()[..]));
                let on_disk = &self.disk[*offset as usize..(*offset + len) as usize];
                assert_eq!(on_disk, &data[..len as usize]);
                1
            }
            Asked::Zero(offset, _) => {
                assert_eq!((errno, bio.offset, u64::from(bio.len)), (0, *offset, len));
                2
            }
            Asked::Seek(from, hole) => {
                let expected = self.found(*from, *hole);
                assert_eq!(errno, if expected.is_some() { 0 } else { libc::ENXIO });
                assert_eq!(body, expected.map_or(Vec::new(), |at| words(&[at])));
                3
            }
            Asked::Sync => 4,
            Asked::Other => unreachable!("it has come to no disk"),
        };
        self.done[kind] += 1;
    }

    fn tell_extents(&mut self, bio: &Bio) {
        let span = self.rig.client.buffer(bio.id.sequence).unwrap();
        // SAFETY: the block is the test's until it replies.
        let list = unsafe { std::slice::from_raw_parts_mut(span.base(), EXTENTS_BYTES as usize) };
        let mut writer = headworks_core::extent::ExtentWriter::new(list, bio.len, 128);
        let mut at = bio.offset;
        while at < bio.offset + u64::from(bio.len) {
            let end = (at / EXTENT + 1) * EXTENT;
            let is_hole = self.found(at, true) == Some(at);
            writer.push(end - at, if is_hole { ExtentState::HOLE_ZERO } else { ExtentState::DATA });
            at = end;
        }
        writer.finish();
    }
}

fn run(seed: u64, steps: u32) -> [u32; 5] {
    let mut prng = Prng::new(seed);
    let block = [1, 512, 4096][prng.below(3) as usize];
    let mut rig = Rig::new(|info| {
        info.size = DISK;
        info.block_sizes = BlockSizes { min: block, ..info.block_sizes };
    });
    let taken: Vec<Buffer> =
        std::iter::from_fn(|| rig.bench.pool.try_take(4096)).take(1024 - BLOCKS).collect();
    let mut run = Run {
        rig,
        prng,
        block: block.into(),
        disk: vec![0; DISK as usize],
        bios: Vec::new(),
        asked: HashMap::new(),
        last: 0,
        done: [0; 5],
    };
    for _ in 0..steps {
        let is_full = run.asked.len() >= 8;
        match run.prng.below(8) {
            0..4 if !is_full => run.ask(),
            7 if run.bios.is_empty()
                && run.rig.client.is_at_rest()
                && run.rig.client.hand_over().is_some() =>
            {
                run.rig.replace();
            }
            _ if !run.bios.is_empty() => run.complete(),
            _ => {}
        }
        run.receive();
    }
    while !run.asked.is_empty() {
        run.receive();
        assert!(!run.bios.is_empty() || run.asked.is_empty(), "{:?} waits for nothing", run.asked);
        if !run.bios.is_empty() {
            run.complete();
        }
    }
    taken.into_iter().for_each(|block| run.rig.bench.pool.put(block));
    assert_eq!(run.rig.rest(), (0, 0));
    run.done
}

#[test]
fn random_requests_have_one_answer_that_is_the_disks() {
    let mut done = [0; 5];
    for seed in 0..12 {
        for (all, one) in done.iter_mut().zip(run(seed, 1000)) {
            *all += one;
        }
    }
    assert!(done.iter().all(|count| *count > 50), "each kind is fulfilled: {done:?}");
}
