//! One ring of a machine, written by hand from the driver's side: descriptors in any order, direct and indirect, data in any pieces.
//!
//! ```text
//!   descriptors | available ring | used ring                    each on pages of its own
//!   for each slot: header, status, indirect table, segments     one page
//!   for each slot: data
//! ```
//!
//! Invariants: a descriptor is free or of one chain; a slot is free or of one request; a head that is answered was given and not answered.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use headworks_core::Instant;
use headworks_core::prng::Prng;
use headworks_vhost::RequestOp;
use headworks_vhost::notify::{self, NO_NOTIFY, Wish};

use super::content::{SECTOR, WriteId, payload};
use super::machine_memory::MachineMemory;

/// Physical address of the memory's first byte in the machine.
pub const PHYSICAL: u64 = 0x1_0000_0000;
/// Virtual address of the same byte in its front end.
pub const VIRTUAL: u64 = 0x7f12_0000_0000;
/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Bytes of a slot's data beyond the longest request, for the gaps between its pieces.
const GAPS: usize = 2 * PAGE;
/// Most pieces of a request's data.
const PIECES_MAX: u64 = 6;
/// Most segments of a discard.
const SEGMENTS_MAX: u64 = 16;
/// What memory for data holds before the device writes it: no stamp of a sector.
const UNWRITTEN: u8 = 0xa5;
const STATUS_AT: usize = 64;
const TABLE_AT: usize = 128;
const SEGMENTS_AT: usize = 1024;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// What a request asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request of the disk.
    Disk(RequestOp),
    /// The disk's serial.
    Name,
    /// A type that no device knows.
    Unknown,
}

/// A range of the disk, of which one bio comes.
#[derive(Clone, Copy, Debug)]
pub struct AskedPart {
    /// First byte on the disk.
    pub offset: u64,
    /// Bytes on the disk; 0 for a flush.
    pub len: u32,
    /// The process to which a bio of it was given last, by its number; 0: none.
    pub given_to: u64,
    /// A device has done it.
    pub is_done: bool,
}

/// A request that a machine gave and that is not answered.
#[derive(Clone, Debug)]
pub struct MachineRequest {
    pub kind: Kind,
    /// One for a read, write or flush, several for a discard.
    pub parts: Vec<AskedPart>,
    /// The number of a write; 0 otherwise.
    pub id: WriteId,
    pub since: Instant,
    /// The only right answer is an error.
    pub is_bad: bool,
    /// What is written of a segment beside its range.
    pub segment_flags: u32,
    slot: u16,
    descriptors: Vec<u16>,
    /// Where its data are.
    pieces: Vec<(usize, usize)>,
    status_at: usize,
}

impl MachineRequest {
    /// A request without a place in a ring.
    pub fn new(kind: Kind, parts: &[(u64, u32)], since: Instant) -> Self {
        let part =
            |&(offset, len): &(u64, u32)| AskedPart { offset, len, given_to: 0, is_done: false };
        Self {
            kind,
            parts: parts.iter().map(part).collect(),
            id: 0,
            since,
            is_bad: false,
            segment_flags: 0,
            slot: 0,
            descriptors: Vec::new(),
            pieces: Vec::new(),
            status_at: 0,
        }
    }

    fn is_read(&self) -> bool {
        matches!(self.kind, Kind::Disk(RequestOp::Read) | Kind::Name)
    }

    /// Bytes of its data in memory.
    fn len(&self) -> usize {
        match self.kind {
            Kind::Disk(RequestOp::Read | RequestOp::Write) => self.parts[0].len as usize,
            Kind::Disk(RequestOp::Flush) => 0,
            Kind::Disk(RequestOp::Discard | RequestOp::WriteZeroes) => 16 * self.parts.len(),
            Kind::Name => 20,
            Kind::Unknown => SECTOR,
        }
    }

    fn header(&self) -> [u8; 16] {
        let kind: u32 = match self.kind {
            Kind::Disk(RequestOp::Read) => 0,
            Kind::Disk(RequestOp::Write) => 1,
            Kind::Disk(RequestOp::Flush) => 4,
            Kind::Disk(RequestOp::Discard) => 11,
            Kind::Disk(RequestOp::WriteZeroes) => 13,
            Kind::Name => 8,
            Kind::Unknown => 99,
        };
        let is_placed = matches!(self.kind, Kind::Disk(RequestOp::Read | RequestOp::Write));
        let sector = if is_placed { self.parts[0].offset / SECTOR as u64 } else { 0 };
        let mut header = [0; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        header
    }
}

/// An answer as the machine finds it.
#[derive(Debug)]
pub struct MachineAnswer {
    pub asked: MachineRequest,
    pub status: u8,
    /// Bytes that the device says it has written.
    pub written: u32,
    /// Data of a read.
    pub data: Vec<u8>,
}

/// Where the parts of a queue are, in bytes from the memory's beginning.
#[derive(Clone, Copy, Debug, Default)]
pub struct RingPlaces {
    pub descriptors: usize,
    pub available: usize,
    pub used: usize,
    pub slots: usize,
    pub data: usize,
    /// Bytes of a slot's data.
    pub data_bytes: usize,
}

impl RingPlaces {
    /// Bytes of the three parts of a ring.
    pub fn ring_bytes(size: u16) -> [usize; 3] {
        let n = usize::from(size);
        [16 * n, 6 + 2 * n, 6 + 8 * n].map(|bytes| bytes.next_multiple_of(PAGE))
    }

    /// Bytes of a slot's data for requests up to a length.
    pub fn data_bytes(largest: u32) -> usize {
        (largest as usize).next_multiple_of(PAGE) + GAPS
    }
}

/// A ring of a machine.
#[derive(Debug)]
pub struct MachineQueue {
    pub index: u16,
    pub size: u16,
    pub places: RingPlaces,
    pub kick: OwnedFd,
    pub call: OwnedFd,
    wish: Wish,
    allows_indirect: bool,
    /// It looks at the used index without a notification.
    polls: bool,
    available: u16,
    published: u16,
    used: u16,
    free: Vec<u16>,
    slots: Vec<u16>,
    depth: u16,
    pub asked: BTreeMap<u16, MachineRequest>,
}

/// A new event descriptor, which its machine never waits for.
pub fn event() -> std::io::Result<OwnedFd> {
    // SAFETY: no pointers; the descriptor is new and belongs to nothing else.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the same.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl MachineQueue {
    /// A ring that was never used; `wish` and `allows_indirect` are negotiated.
    pub fn new(
        (index, size, depth): (u16, u16, u16),
        places: RingPlaces,
        (wish, allows_indirect, polls): (Wish, bool, bool),
    ) -> std::io::Result<Self> {
        let mut queue = Self {
            index,
            size,
            places,
            kick: event()?,
            call: event()?,
            wish,
            allows_indirect,
            polls,
            available: 0,
            published: 0,
            used: 0,
            free: Vec::new(),
            slots: Vec::new(),
            depth,
            asked: BTreeMap::new(),
        };
        queue.free_all();
        Ok(queue)
    }

    fn free_all(&mut self) {
        self.free = (0..self.size).collect();
        self.slots = (0..self.depth).collect();
    }

    /// The machine starts again: the ring is empty. Returns what is forgotten.
    pub fn reset(&mut self, memory: &MachineMemory) -> Vec<MachineRequest> {
        let [descriptors, available, used] = RingPlaces::ring_bytes(self.size);
        memory.fill(self.places.descriptors, descriptors, 0);
        memory.fill(self.places.available, available, 0);
        memory.fill(self.places.used, used, 0);
        (self.available, self.published, self.used) = (0, 0, 0);
        self.free_all();
        std::mem::take(&mut self.asked).into_values().collect()
    }

    /// The index that the device has published.
    pub fn used_index(&self, memory: &MachineMemory) -> u16 {
        memory.word(self.places.used + 2).load(Ordering::Acquire)
    }

    /// Puts a request into the ring, where `submit` shows it; false if there is no room for it.
    pub fn put(&mut self, prng: &mut Prng, memory: &MachineMemory, asked: &MachineRequest) -> bool {
        if self.slots.is_empty() || self.free.is_empty() {
            return false;
        }
        let mut asked = asked.clone();
        let slot = self.slots[prng.below(self.slots.len() as u64) as usize];
        let control = self.places.slots + PAGE * usize::from(slot);
        asked.slot = slot;
        let mut chain = header_of(prng, control);
        self.place_data(prng, &mut asked, control);
        let is_read = asked.is_read();
        chain.extend(asked.pieces.iter().map(|&(at, len)| (at, len, is_read)));
        let joins = is_read && prng.below(4) == 0;
        match chain.last_mut().filter(|_| joins) {
            Some(last) => {
                asked.status_at = last.0 + last.1;
                last.1 += 1;
            }
            None => {
                asked.status_at = control + STATUS_AT;
                chain.push((asked.status_at, 1, true));
            }
        }
        let is_indirect =
            self.allows_indirect && (prng.below(2) == 0 || chain.len() > self.free.len());
        let needed = if is_indirect { 1 } else { chain.len() };
        if needed > self.free.len() {
            return false;
        }
        self.slots.retain(|free| *free != slot);
        let mut take =
            |free: &mut Vec<u16>| free.swap_remove(prng.below(free.len() as u64) as usize);
        asked.descriptors = std::iter::repeat_with(|| take(&mut self.free)).take(needed).collect();
        memory.write(control, &asked.header());
        self.fill(memory, &asked, control);
        memory.write(asked.status_at, &[UNWRITTEN]);
        self.describe(memory, &asked.descriptors, &chain, (is_indirect, control + TABLE_AT));
        let head = asked.descriptors[0];
        self.offer(memory, head);
        self.asked.insert(head, asked);
        true
    }

    /// Chooses where the data of a request are.
    fn place_data(&self, prng: &mut Prng, asked: &mut MachineRequest, control: usize) {
        let len = asked.len();
        if len == 0 {
            return;
        }
        if !matches!(asked.kind, Kind::Disk(RequestOp::Read | RequestOp::Write)) {
            let cut = if prng.below(3) == 0 { len / 2 } else { len };
            asked.pieces =
                vec![(control + SEGMENTS_AT, cut), (control + SEGMENTS_AT + cut, len - cut)];
            asked.pieces.retain(|piece| piece.1 > 0);
            return;
        }
        // Whole sectors are used where they are, others go by a buffer of the pool.
        let unit = if prng.below(4) == 0 { 1 } else { SECTOR };
        let most = PIECES_MAX.min((len / unit) as u64).min(u64::from(self.size) - 2).max(1);
        let count = if prng.below(2) == 0 { 1 } else { prng.between(1, most) };
        let (mut at, mut left) =
            (self.places.data + self.places.data_bytes * usize::from(asked.slot), len);
        for piece in 1..=count {
            let rest = (count - piece) as usize * unit;
            let longest = (left - rest) / unit;
            let part =
                if piece == count { left } else { prng.between(1, longest as u64) as usize * unit };
            at += prng.below(3) as usize * unit;
            asked.pieces.push((at, part));
            (at, left) = (at + part, left - part);
        }
    }

    /// Writes the data of a write and the segments of a discard; spoils the memory of a read.
    fn fill(&self, memory: &MachineMemory, asked: &MachineRequest, control: usize) {
        for &(at, len) in &asked.pieces {
            memory.fill(at, len, UNWRITTEN);
        }
        match asked.kind {
            Kind::Disk(RequestOp::Write) => {
                let AskedPart { offset, len, .. } = asked.parts[0];
                let (bytes, mut from) = (payload(asked.id, offset, len), 0);
                for &(at, part) in &asked.pieces {
                    memory.write(at, &bytes[from..from + part]);
                    from += part;
                }
            }
            Kind::Disk(RequestOp::Discard | RequestOp::WriteZeroes) => {
                for (number, part) in asked.parts.iter().enumerate() {
                    let mut segment = [0; 16];
                    segment[..8].copy_from_slice(&(part.offset / SECTOR as u64).to_le_bytes());
                    segment[8..12].copy_from_slice(&(part.len / SECTOR as u32).to_le_bytes());
                    segment[12..].copy_from_slice(&asked.segment_flags.to_le_bytes());
                    memory.write(control + SEGMENTS_AT + 16 * number, &segment);
                }
            }
            _ => {}
        }
    }

    /// Writes the descriptors of a chain into the ring's table or into one of its own.
    fn describe(
        &self,
        memory: &MachineMemory,
        descriptors: &[u16],
        chain: &[(usize, usize, bool)],
        (is_indirect, table): (bool, usize),
    ) {
        let own = self.places.descriptors;
        for (number, &(at, len, is_written)) in chain.iter().enumerate() {
            let is_last = number + 1 == chain.len();
            let index =
                |number: usize| if is_indirect { number as u16 } else { descriptors[number] };
            let next = if is_last { 0 } else { index(number + 1) };
            let flags = if is_written { WRITE } else { 0 } | if is_last { 0 } else { NEXT };
            let base = if is_indirect { table } else { own };
            write_descriptor(
                memory,
                base,
                index(number),
                (PHYSICAL + at as u64, len as u32, flags, next),
            );
        }
        if is_indirect {
            let one = (PHYSICAL + table as u64, 16 * chain.len() as u32, INDIRECT, 0);
            write_descriptor(memory, own, descriptors[0], one);
        }
    }

    /// Writes an entry of the available ring.
    fn offer(&mut self, memory: &MachineMemory, head: u16) {
        let entry = usize::from(self.available & (self.size - 1));
        memory.word(self.places.available + 4 + 2 * entry).store(head, Ordering::Relaxed);
        self.available = self.available.wrapping_add(1);
    }

    /// Shows the device what was put, and kicks it if it wants that; returns whether there was something.
    pub fn submit(&mut self, memory: &MachineMemory) -> bool {
        if self.available == self.published {
            return false;
        }
        let (old, new) = (self.published, self.available);
        let index = memory.word(self.places.available + 2);
        let wish = memory.word(match self.wish {
            Wish::EventIndex => self.places.used + 4 + 8 * usize::from(self.size),
            Wish::Flags => self.places.used,
        });
        self.published = new;
        if notify::publish(index, wish, self.wish, old, new) {
            signal(&self.kick);
        }
        true
    }

    /// Takes the answers that it knows of: without polling those of which it was notified.
    ///
    /// # Errors
    /// A head is answered that was not given, or a second time.
    pub fn reap(&mut self, memory: &MachineMemory) -> Result<Vec<MachineAnswer>, String> {
        let mut answers = Vec::new();
        if !take_signals(&self.call) && !self.polls {
            return Ok(answers);
        }
        loop {
            let end = self.used_index(memory);
            while self.used != end {
                answers.push(self.reap_one(memory)?);
            }
            if !self.arm(memory) {
                return Ok(answers);
            }
        }
    }

    /// Asks for a notification of the next answer, unless it polls; true: there is one already.
    fn arm(&self, memory: &MachineMemory) -> bool {
        let wish = memory.word(match self.wish {
            Wish::EventIndex => self.places.available + 4 + 2 * usize::from(self.size),
            Wish::Flags => self.places.available,
        });
        if !self.polls {
            return notify::arm(memory.word(self.places.used + 2), wish, self.wish, self.used);
        }
        let word = match self.wish {
            Wish::EventIndex => self.used.wrapping_add(0x8000),
            Wish::Flags => NO_NOTIFY,
        };
        wish.store(word, Ordering::Relaxed);
        false
    }

    /// Whether it knows of all answers, or polls.
    pub fn is_noticed(&self, memory: &MachineMemory) -> bool {
        self.polls || self.used_index(memory) == self.used
    }

    fn reap_one(&mut self, memory: &MachineMemory) -> Result<MachineAnswer, String> {
        let mut element = [0; 8];
        let entry = usize::from(self.used & (self.size - 1));
        memory.read(self.places.used + 4 + 8 * entry, &mut element);
        let [head, written] =
            [0, 4].map(|at| u32::from_le_bytes(*element[at..].first_chunk().unwrap_or(&[0; 4])));
        self.used = self.used.wrapping_add(1);
        let asked = u16::try_from(head).ok().and_then(|head| self.asked.remove(&head));
        let asked = asked.ok_or_else(|| {
            format!(
                "ring {}: an answer to head {head}, which was not given, or a second one",
                self.index
            )
        })?;
        let mut status = [0];
        memory.read(asked.status_at, &mut status);
        let mut data = Vec::new();
        if asked.is_read() {
            for &(at, len) in &asked.pieces {
                let begin = data.len();
                data.resize(begin + len, 0);
                memory.read(at, &mut data[begin..]);
            }
        }
        self.free.extend(&asked.descriptors);
        self.slots.push(asked.slot);
        Ok(MachineAnswer { asked, status: status[0], written, data })
    }

    /// Forgets notifications that came before the server's process died, and perhaps after.
    pub fn forget_signals(&self) {
        take_signals(&self.call);
    }

    /// Does something that no driver may do; none if it cannot now.
    pub fn break_rules(&mut self, prng: &mut Prng, memory: &MachineMemory) -> Option<&'static str> {
        let size = u64::from(self.size);
        let (at, own) = (PHYSICAL + self.places.slots as u64, self.places.descriptors);
        let what = prng.below(8);
        if what == 0 {
            // A chain that is in flight, or was answered and is not known to be.
            let nth = prng.below(self.asked.len().max(1) as u64) as usize;
            let head = *self.asked.keys().nth(nth)?;
            self.offer(memory, head);
            self.show(memory);
            return Some("a head twice");
        }
        if what == 1 {
            self.offer(memory, (size + prng.below(0xffff - size)) as u16);
            self.show(memory);
            return Some("a head beyond the table");
        }
        if what == 2 {
            self.available = self.available.wrapping_add((size + 1 + prng.below(0x7000)) as u16);
            self.show(memory);
            return Some("a jump of the available index");
        }
        let [first, second] = *self.free.first_chunk()?;
        let (one, two, words) = match what {
            3 => ((at, 16, NEXT, second), (at, 16, NEXT, first), "a chain that is a loop"),
            4 => {
                let far = PHYSICAL + memory.len() as u64 - prng.below(16);
                ((at, 16, NEXT, second), (far, 512, WRITE, 0), "an address beyond the memory")
            }
            5 => (
                (at, 16, WRITE | NEXT, second),
                (at, 16, 0, 0),
                "what is read behind what is written",
            ),
            6 => {
                let len = [0, 8, 16 << 20, 40][prng.below(4) as usize];
                ((at, len, INDIRECT, 0), (at, 16, 0, 0), "a table of no length")
            }
            _ => ((at, 16, 0, 0), (at, 16, 0, 0), "a request without a status"),
        };
        write_descriptor(memory, own, first, one);
        write_descriptor(memory, own, second, two);
        self.offer(memory, first);
        self.show(memory);
        Some(words)
    }

    /// Shows the device what was written, whatever it wants.
    fn show(&mut self, memory: &MachineMemory) {
        memory.word(self.places.available + 2).store(self.available, Ordering::Release);
        self.published = self.available;
        signal(&self.kick);
    }
}

/// The descriptors of a header, in one piece or two.
fn header_of(prng: &mut Prng, control: usize) -> Vec<(usize, usize, bool)> {
    match prng.below(8) {
        0 => vec![(control, 7, false), (control + 7, 9, false)],
        _ => vec![(control, 16, false)],
    }
}

/// The most segments of a discard.
pub fn segments(prng: &mut Prng) -> u64 {
    if prng.below(2) == 0 { 1 } else { prng.between(1, SEGMENTS_MAX) }
}

fn write_descriptor(
    memory: &MachineMemory,
    base: usize,
    index: u16,
    (address, len, flags, next): (u64, u32, u16, u16),
) {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    memory.write(base + 16 * usize::from(index), &bytes);
}

/// Adds one to an event descriptor.
fn signal(fd: &OwnedFd) {
    let one = 1_u64;
    // SAFETY: eight bytes of ours; the descriptor does not block.
    unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
}

/// Takes the count of an event descriptor; false if there is none.
fn take_signals(fd: &OwnedFd) -> bool {
    let mut count = 0_u64;
    // SAFETY: the same.
    unsafe { libc::read(fd.as_raw_fd(), (&raw mut count).cast(), 8) == 8 }
}
