//! Our file with a volatile cache, as a device whose operations end when the test says so, and a base that answers at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use headworks_core::prng::Prng;
use headworks_core::{BioFlags, Completion, DeviceId, Instant, IoError, Op, RequestId};

use crate::overlay::head::BLOCK;
use crate::overlay::load::Stored;
use headworks::driver::{DiskDone, Span};
use headworks::house::Loss;
use headworks::{CommandBatch, Device, DeviceIo};
use headworks_testing::TestDisk;

pub const SECTOR: u64 = 512;
pub type Sector = u64;

/// A file with a volatile cache. A sector is named by its number and holds the word at its start.
#[derive(Default)]
pub struct Disk {
    pub stable: BTreeMap<u64, Vec<u8>>,
    /// Writes in their order, with the number of the event.
    pub cached: Vec<(u64, u64, Vec<u8>)>,
    pub pending: Vec<Pending>,
    pub events: u64,
    pub syncs: u64,
}

pub struct Pending {
    pub id: RequestId,
    pub op: Op,
    pub fua: bool,
    pub offset: u64,
    pub bytes: Vec<u8>,
    pub spans: Vec<Span>,
    pub began: u64,
}

impl Disk {
    pub fn read(&self, sector: u64) -> Vec<u8> {
        let newest = self.cached.iter().rev().find(|write| write.1 == sector);
        let stored = newest.map(|write| &write.2).or_else(|| self.stable.get(&sector));
        stored.cloned().unwrap_or_else(|| vec![0; SECTOR as usize])
    }

    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.events += 1;
        for (index, part) in bytes.chunks(SECTOR as usize).enumerate() {
            self.cached.push((self.events, offset / SECTOR + index as u64, part.to_vec()));
        }
    }

    /// Makes stable what was written before the event.
    pub fn sync(&mut self, began: u64) {
        let (covered, rest): (Vec<_>, _) =
            self.cached.drain(..).partition(|write| write.0 <= began);
        self.cached = rest;
        self.stable.extend(covered.into_iter().map(|(_, sector, bytes)| (sector, bytes)));
    }

    /// Makes the newest version of a range of sectors stable.
    pub fn settle(&mut self, offset: u64, len: usize) {
        for sector in offset / SECTOR..(offset + len as u64) / SECTOR {
            let newest = self.read(sector);
            self.stable.insert(sector, newest);
            self.cached.retain(|write| write.1 != sector);
        }
    }

    /// What is left after a cut; operations that had begun may have written any of their sectors.
    pub fn cut(&mut self, prng: &mut Prng) {
        for pending in std::mem::take(&mut self.pending) {
            if pending.op != Op::Read && pending.op != Op::Flush {
                self.write(pending.offset, &pending.bytes);
            }
        }
        let mut versions: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
        for (_, sector, bytes) in self.cached.drain(..) {
            versions.entry(sector).or_default().push(bytes);
        }
        for (sector, mut versions) in versions {
            let kept = prng.below(versions.len() as u64 + 1) as usize;
            if kept > 0 {
                self.stable.insert(sector, versions.swap_remove(kept - 1));
            }
        }
    }
}

impl Stored for Mutex<Disk> {
    fn next_data(&self, from: u64, end: u64) -> std::io::Result<Option<(u64, u64)>> {
        let disk = self.lock().unwrap();
        let pages = (from..end).step_by(BLOCK as usize);
        let sectors = |page: u64| page / SECTOR..(page + BLOCK) / SECTOR;
        let has_data = |page: u64| {
            disk.stable.range(sectors(page)).next().is_some()
                || disk.cached.iter().any(|write| sectors(page).contains(&write.1))
        };
        Ok(pages.into_iter().find(|&page| has_data(page)).map(|page| (page, page + BLOCK)))
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> std::io::Result<()> {
        let disk = self.lock().unwrap();
        for (sector, part) in (at / SECTOR..).zip(bytes.chunks_mut(SECTOR as usize)) {
            part.copy_from_slice(&disk.read(sector));
        }
        Ok(())
    }

    fn sync(&self) -> std::io::Result<()> {
        self.lock().unwrap().sync(u64::MAX);
        Ok(())
    }
}

/// Our file, as a device whose operations end when the test says so.
pub struct VolatileFile(pub Arc<Mutex<Disk>>);

impl Device for VolatileFile {
    unsafe fn submit(&mut self, _: Instant, batch: CommandBatch<'_>, _: &mut DeviceIo<'_>) {
        let mut disk = self.0.lock().unwrap();
        for command in batch.commands {
            let spans = batch.spans_of(command).to_vec();
            let bytes = match command.op {
                Op::Write if !spans.is_empty() => {
                    // SAFETY: valid until the completion.
                    let parts: Vec<&[u8]> =
                        spans.iter().map(|span| unsafe { span.bytes() }).collect();
                    parts.concat()
                }
                Op::Read | Op::Flush => Vec::new(),
                _ => vec![0; command.len as usize],
            };
            disk.events += 1;
            let began = disk.events;
            let (id, op, offset) = (command.id, command.op, command.offset);
            let fua = command.flags.contains(BioFlags::FUA);
            disk.pending.push(Pending { id, op, fua, offset, bytes, spans, began });
        }
    }

    fn on_disk(&mut self, _: Instant, done: DiskDone, io: &mut DeviceIo<'_>) {
        let status = if done.result < 0 { Err(IoError::from_errno(-done.result)) } else { Ok(()) };
        let transferred = done.result.max(0) as u32;
        io.completions.push(Completion { id: done.id, transferred, status, hole: false });
    }
}

/// The word of a sector of the base.
pub fn base_word(sector: u64) -> Sector {
    1 << 40 | sector
}

/// A base that answers at once, and must not be written.
pub struct Base;

impl Device for Base {
    unsafe fn submit(&mut self, _: Instant, batch: CommandBatch<'_>, io: &mut DeviceIo<'_>) {
        for command in batch.commands {
            assert_eq!(command.op, Op::Read, "the base is only read");
            let mut sector = command.offset / SECTOR;
            for span in batch.spans_of(command) {
                // SAFETY: ours until the completion.
                for part in unsafe { span.bytes_mut() }.chunks_mut(SECTOR as usize) {
                    part.fill(0);
                    part[..8].copy_from_slice(&base_word(sector).to_le_bytes());
                    sector += 1;
                }
            }
            io.completions.push(command.done());
        }
    }
}

pub fn device_io<'a>(
    completions: &'a mut Vec<Completion>,
    disk: &'a mut TestDisk,
    lost: &'a mut Vec<Loss>,
) -> DeviceIo<'a> {
    DeviceIo { device: DeviceId(1), completions, disk, lost }
}
