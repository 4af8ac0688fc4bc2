//! Here bits: which blocks are ours, for the processes of one boot.
//!
//! Bits of first writes reach the bitmap with a flush. Until then they would be in memory alone, and a kill -9 would take back writes
//! that were acknowledged and that the kernel has. So they are in the file twice:
//!
//! ```text
//!   head | bitmap | pad | data | pad to 1 MiB | tag 4 KiB: boot id, number of the head, CRC | here bits, as many as the bitmap has
//! ```
//!
//! **The rule: a change is answered only when its bits are in the bitmap on the disk, or in the here bits of the file under a tag of this
//! boot.** They are written after the data, without a sync, so a process that is killed leaves both in the kernel's pages. They are
//! believed only in the boot that the tag names: after a power cut they are nothing, and the rule of [`super::flush`] is untouched, as here
//! bits are not that bitmap. A tag counts only with the number of the head, so what empties an overlay (commit, reset) or gives it another
//! base ends its here bits, too, whatever version of Headworks does it. Bits that were found here are not on the disk: the next round of
//! flushes writes them, and what makes an overlay a base makes them durable first ([`super::OpenOverlay::settle`]), so that here bits of a
//! base are never looked at.
//!
//! ```text
//!   Foreign --(the first change)--> stale pages cleared, one after the other --> tag written --> Ours
//!   Ours     a round: each page with new bits is written once; the changes that waited when it began are answered
//! ```
//!
//! Nothing is written before the first change, as an overlay's time of modification says whether it is the base that it was. All is
//! buffered I/O, whatever the data use, and no page of it is ever accessed by direct I/O for writing. Without a boot id nothing is believed
//! and nothing written. Not covered: a file system that loses data, is unmounted by force and mounted again in the same boot
//! ([`super::OpenOverlay::forget_here`]).
//!
//! Bounded: [`SLOTS`] writes in flight; as many waiters as commands.

use std::io;
use std::ops::Range;
use std::sync::OnceLock;

use headworks_core::{Completion, IoError};

use super::bitmap::{LiveBits, PAGE_BLOCKS, PAGE_BYTES};
use super::checksum::crc32c;
use super::head::here_start;
use headworks::driver::Span;
use headworks::house::Mapping;

/// Most pages of here bits in flight.
pub(super) const SLOTS: usize = 8;
/// Most bytes that one operation clears.
const CLEAR_MAX: u64 = 1 << 20;
/// Bytes of the tag's page; the bits follow.
pub(super) const TAG_PAGE: u64 = PAGE_BYTES as u64;
/// Bytes of a tag.
pub(super) const TAG_BYTES: usize = 64;
const MAGIC: [u8; 8] = *b"\x89HWH\r\n\x1a\n";

/// `live` has bits of the page that are not in the file.
const DIRTY: u8 = 1;
/// The current round writes the page.
const WRITING: u8 = 2;
/// The current round could not write it.
const FAILED: u8 = 4;

/// Whose the here bits of a file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tag {
    pub boot: [u8; 16],
    /// Number of the head.
    pub number: u64,
}

impl Tag {
    /// The tag of this boot for a head; none where the boot has no id that can be read.
    pub fn of_this_boot(number: u64) -> Option<Self> {
        boot_id().map(|boot| Self { boot, number })
    }

    pub fn encode(&self) -> [u8; TAG_BYTES] {
        let mut bytes = [0; TAG_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.boot);
        bytes[24..32].copy_from_slice(&self.number.to_le_bytes());
        let checksum = crc32c(&bytes[..TAG_BYTES - 4]);
        bytes[TAG_BYTES - 4..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }
}

/// The id of this boot. It is asked for once, before a sandbox could hide it.
fn boot_id() -> Option<[u8; 16]> {
    static BOOT: OnceLock<Option<[u8; 16]>> = OnceLock::new();
    *BOOT.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        parse_id(text.trim())
    })
}

fn parse_id(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|&digit| digit != '-').collect();
    let is_id = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    let bytes = is_id.then(|| u128::from_str_radix(&digits, 16).ok()).flatten()?.to_be_bytes();
    (bytes != [0; 16]).then_some(bytes)
}

/// What a file has of here bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HereFound {
    /// The tag is that of this boot and head.
    pub is_ours: bool,
    /// Bytes to be cleared before a tag is written: bits of another boot or head.
    pub stale: Vec<Range<u64>>,
    /// Pages of the bitmap in which bits are missing that were found here, ascending.
    pub pending: Vec<u32>,
}

/// An operation on the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HereStep {
    /// Zeros, where bits of another boot are.
    Clear { at: u64, len: u32 },
    /// A write of the tag.
    Tag,
    /// A write of the page whose copy is in a slot.
    Bits { page: u32, slot: u8 },
}

/// A change whose data are complete.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    row: u32,
    first_page: u32,
    last_page: u32,
}

/// The here bits of an overlay that is open.
#[derive(Debug)]
pub(super) struct Here {
    /// None if nothing is written here: a layer that is only read, or a boot without an id.
    tag: Option<Tag>,
    /// Offset of the tag's page.
    start: u64,
    is_ours: bool,
    stale: Vec<Range<u64>>,
    /// `DIRTY`, `WRITING` and `FAILED`, by page.
    pages: Vec<u8>,
    dirty: Vec<u32>,
    writing: Vec<u32>,
    /// Pages of the round that were started.
    started: usize,
    in_flight: usize,
    /// Why the tag could not be written.
    failure: Option<IoError>,
    /// Copies of pages, and the page of the tag.
    memory: Option<Mapping>,
    free: Vec<u8>,
    served: Vec<Waiter>,
    waiting: Vec<Waiter>,
}

impl Here {
    /// The here bits of a volume of `size` bytes, in whose file `found` is.
    ///
    /// # Errors
    /// The kernel has no address space for copies of pages.
    pub fn new(tag: Option<Tag>, size: u64, found: &HereFound) -> io::Result<Self> {
        let Some(tag) = tag else { return Ok(Self::none()) };
        let memory = Mapping::new((SLOTS + 1) * PAGE_BYTES)?;
        // SAFETY: the last page of our own mapping, which nothing uses yet.
        unsafe {
            memory.at(SLOTS * PAGE_BYTES, TAG_BYTES).cast::<[u8; TAG_BYTES]>().write(tag.encode())
        };
        let mut here = Self {
            tag: Some(tag),
            start: here_start(size),
            pages: vec![0; size.div_ceil(PAGE_BLOCKS * super::BLOCK) as usize],
            memory: Some(memory),
            free: (0..SLOTS as u8).collect(),
            ..Self::none()
        };
        here.found(found);
        Ok(here)
    }

    /// Here bits of a file to which nothing is written.
    pub fn none() -> Self {
        Self {
            tag: None,
            start: 0,
            is_ours: false,
            stale: Vec::new(),
            pages: Vec::new(),
            dirty: Vec::new(),
            writing: Vec::new(),
            started: 0,
            in_flight: 0,
            failure: None,
            memory: None,
            free: Vec::new(),
            served: Vec::new(),
            waiting: Vec::new(),
        }
    }

    /// The file has this now; nothing was written yet.
    pub fn found(&mut self, found: &HereFound) {
        self.is_ours = found.is_ours;
        self.stale.clone_from(&found.stale);
    }

    pub fn tag(&self) -> Option<Tag> {
        self.tag
    }

    /// Whether no write is under way and no change waits for one.
    pub fn is_idle(&self) -> bool {
        self.served.is_empty() && self.waiting.is_empty()
    }

    /// Bits of a page are new in `live`.
    pub fn mark(&mut self, page: u32) {
        if self.tag.is_some() && self.pages[page as usize] & DIRTY == 0 {
            self.pages[page as usize] |= DIRTY;
            self.dirty.push(page);
        }
    }

    /// Whether a change of these blocks, whose bits are set in `live`, has to wait for a write. `is_safe` says whether it is answered only
    /// when they are on the disk. The first change waits in any case: after it the bits of another boot are worth nothing.
    pub fn must_wait(&self, first: u64, count: u64, is_safe: impl FnOnce() -> bool) -> bool {
        let (from, to) = (page_of(first) as usize, page_of(first + count - 1) as usize);
        match () {
            () if self.tag.is_none() => false,
            () if !self.is_ours => true,
            () => self.pages[from..=to].iter().any(|&page| page != 0) && !is_safe(),
        }
    }

    /// The change of a row waits for its bits. Its pages are written by the next round even if the current one writes them, so every round has
    /// an operation that ends it.
    pub fn wait(&mut self, row: u32, first: u64, count: u64) {
        let (first_page, last_page) = (page_of(first), page_of(first + count - 1));
        (first_page..=last_page).for_each(|page| self.mark(page));
        self.waiting.push(Waiter { row, first_page, last_page });
    }

    /// The next operation that may start now; begins a round if changes wait for one.
    pub fn next_step(&mut self, live: &LiveBits) -> Option<HereStep> {
        if self.served.is_empty() && !self.waiting.is_empty() {
            self.begin_round();
        }
        let step = match self.is_ours {
            true => self.next_page(live)?,
            false if self.served.is_empty() || self.in_flight > 0 || self.failure.is_some() => {
                return None;
            }
            false => self.stale.last().map_or(HereStep::Tag, |range| {
                let len = (range.end - range.start).min(CLEAR_MAX) as u32;
                HereStep::Clear { at: range.start, len }
            }),
        };
        self.in_flight += 1;
        Some(step)
    }

    fn begin_round(&mut self) {
        std::mem::swap(&mut self.served, &mut self.waiting);
        std::mem::swap(&mut self.dirty, &mut self.writing);
        self.writing.iter().for_each(|&page| self.pages[page as usize] = WRITING);
        (self.started, self.failure) = (0, None);
    }

    fn next_page(&mut self, live: &LiveBits) -> Option<HereStep> {
        let page = *self.writing.get(self.started)?;
        let (slot, memory) = (self.free.pop()?, self.memory.as_ref()?);
        self.started += 1;
        let words = PAGE_BYTES / 8;
        for word in 0..words {
            let stored = live.stored_word((page as usize * words + word) as u64);
            let at = usize::from(slot) * PAGE_BYTES + word * 8;
            // SAFETY: inside our own mapping, in a slot that no operation uses.
            unsafe { memory.at(at, 8).cast::<[u8; 8]>().write_unaligned(stored) };
        }
        Some(HereStep::Bits { page, slot })
    }

    /// Where the operation goes in the file.
    pub fn offset(&self, step: HereStep) -> u64 {
        match step {
            HereStep::Clear { at, .. } => at,
            HereStep::Tag => self.start,
            HereStep::Bits { page, .. } => {
                self.start + TAG_PAGE + u64::from(page) * PAGE_BYTES as u64
            }
        }
    }

    /// What the operation writes; none for zeros.
    ///
    /// # Safety
    /// The span is only read, and not after the operation has ended or this was dropped.
    pub unsafe fn span(&self, step: HereStep) -> Option<Span> {
        let slot = match step {
            HereStep::Clear { .. } => return None,
            HereStep::Tag => SLOTS,
            HereStep::Bits { slot, .. } => usize::from(slot),
        };
        let memory = self.memory.as_ref()?;
        // SAFETY: inside our mapping, which stays where it is; a slot in use and the tag's page do not change.
        Some(unsafe { Span::new(memory.at(slot * PAGE_BYTES, PAGE_BYTES), PAGE_BYTES) })
    }

    /// An operation has ended. When it was the round's last one, `answer` is called for the row of each of its changes, with what failed.
    pub fn on_end(
        &mut self,
        step: HereStep,
        done: &Completion,
        mut answer: impl FnMut(u32, Option<IoError>),
    ) {
        self.in_flight -= 1;
        let wanted = if let HereStep::Clear { .. } = step { 1 } else { PAGE_BYTES as u32 };
        let short = (done.transferred < wanted).then_some(IoError::NoSpace);
        let failure = done.status.err().or(short);
        match step {
            HereStep::Clear { .. } | HereStep::Tag if failure.is_some() => self.failure = failure,
            HereStep::Clear { .. } => self.cleared(done.transferred.into()),
            HereStep::Tag => self.is_ours = true,
            HereStep::Bits { page, slot } => {
                self.free.push(slot);
                if failure.is_some() {
                    self.failure = failure;
                    self.pages[page as usize] |= FAILED;
                }
            }
        }
        let has_more = match self.is_ours {
            true => self.started < self.writing.len(),
            false => self.failure.is_none(),
        };
        if self.in_flight == 0 && !has_more {
            self.end_round(&mut answer);
        }
    }

    fn cleared(&mut self, bytes: u64) {
        if let Some(range) = self.stale.last_mut() {
            range.start += bytes;
            self.stale.pop_if(|range| range.is_empty());
        }
    }

    fn end_round(&mut self, answer: &mut impl FnMut(u32, Option<IoError>)) {
        let Self { pages, served, failure, is_ours, .. } = self;
        for waiter in served.drain(..) {
            let own = &pages[waiter.first_page as usize..=waiter.last_page as usize];
            let is_written = *is_ours && own.iter().all(|page| page & FAILED == 0);
            answer(waiter.row, failure.filter(|_| !is_written));
        }
        let is_ours = self.is_ours;
        for page in std::mem::take(&mut self.writing) {
            let state = &mut self.pages[page as usize];
            let is_written = is_ours && *state & FAILED == 0;
            *state &= DIRTY;
            if !is_written {
                self.mark(page);
            }
        }
    }
}

fn page_of(block: u64) -> u32 {
    (block / PAGE_BLOCKS) as u32
}

#[cfg(test)]
mod tests {
    use headworks_core::RequestId;

    use super::*;

    const SIZE: u64 = 3 * PAGE_BLOCKS * 4096;
    const TAG: Tag = Tag { boot: [7; 16], number: 3 };

    fn ended(step: HereStep, status: Result<(), IoError>) -> Completion {
        let len = if let HereStep::Clear { len, .. } = step { len } else { 4096 };
        let transferred = if status.is_ok() { len } else { 0 };
        Completion { id: RequestId::default(), transferred, status, hole: false }
    }

    /// Carries out all steps; those whose page is `fails` fail.
    fn run(
        here: &mut Here,
        live: &LiveBits,
        fails: Option<u32>,
    ) -> (Vec<HereStep>, Vec<(u32, bool)>) {
        let (mut steps, mut answers) = (Vec::new(), Vec::new());
        while let Some(step) = here.next_step(live) {
            steps.push(step);
            let fails = matches!(step, HereStep::Bits { page, .. } if Some(page) == fails);
            let status = if fails { Err(IoError::NoSpace) } else { Ok(()) };
            here.on_end(step, &ended(step, status), |row, failure| {
                answers.push((row, failure.is_none()));
            });
        }
        (steps, answers)
    }

    #[test]
    fn first_change_clears_stale_bits_and_then_writes_the_tag() {
        let live = LiveBits::new(SIZE).unwrap();
        let start = here_start(SIZE);
        let stale = std::iter::once(start + 4096..start + 8192).collect();
        let found = HereFound { is_ours: false, stale, pending: Vec::new() };
        let mut here = Here::new(Some(TAG), SIZE, &found).unwrap();
        assert!(here.must_wait(0, 1, || false), "also a change of a block that is ours already");
        assert_eq!(here.next_step(&live), None, "nothing is written before the first change");
        live.set(5, 1, |_| {});
        here.mark(0);
        here.wait(9, 5, 1);
        let (steps, answers) = run(&mut here, &live, None);
        let cleared = HereStep::Clear { at: start + 4096, len: 4096 };
        assert_eq!(steps[..2], [cleared, HereStep::Tag]);
        assert!(matches!(steps[2..], [HereStep::Bits { page: 0, .. }]));
        assert_eq!((answers, here.must_wait(5, 1, || false)), (vec![(9, true)], false));
        // A tag of this boot is taken as it is.
        let found = HereFound { is_ours: true, ..HereFound::default() };
        let here = Here::new(Some(TAG), SIZE, &found).unwrap();
        assert!(!here.must_wait(5, 1, || false));
        assert!(!Here::none().must_wait(5, 1, || false));
    }

    #[test]
    fn changes_of_a_round_write_each_page_once() {
        let live = LiveBits::new(SIZE).unwrap();
        let found = HereFound { is_ours: true, ..HereFound::default() };
        let mut here = Here::new(Some(TAG), SIZE, &found).unwrap();
        for row in 0..100 {
            let block = u64::from(row) + if row < 50 { 0 } else { 2 * PAGE_BLOCKS };
            live.set(block, 1, |_| {});
            here.mark(page_of(block));
            here.wait(row, block, 1);
        }
        let (steps, answers) = run(&mut here, &live, None);
        assert_eq!((steps.len(), answers.len()), (2, 100));
        assert!(answers.iter().all(|(_, written)| *written) && here.is_idle());
    }

    #[test]
    fn failed_page_fails_its_changes_alone_and_is_written_again() {
        let live = LiveBits::new(SIZE).unwrap();
        let found = HereFound { is_ours: true, ..HereFound::default() };
        let mut here = Here::new(Some(TAG), SIZE, &found).unwrap();
        let change = |here: &mut Here, row: u32, block: u64| {
            live.set(block, 1, |_| {});
            here.mark(page_of(block));
            here.wait(row, block, 1);
        };
        change(&mut here, 1, 0);
        change(&mut here, 2, PAGE_BLOCKS);
        here.wait(3, PAGE_BLOCKS - 1, 2);
        let (_, mut answers) = run(&mut here, &live, Some(1));
        answers.sort_unstable();
        assert_eq!(answers, [(1, true), (2, false), (3, false)]);
        assert!(!here.must_wait(0, 1, || false) && here.must_wait(PAGE_BLOCKS, 1, || false));
        here.wait(4, PAGE_BLOCKS, 1);
        assert_eq!(run(&mut here, &live, None).1, [(4, true)]);
        assert!(!here.must_wait(PAGE_BLOCKS, 1, || false));
    }

    #[test]
    fn change_during_a_round_waits_for_the_next() {
        let live = LiveBits::new(SIZE).unwrap();
        let found = HereFound { is_ours: true, ..HereFound::default() };
        let mut here = Here::new(Some(TAG), SIZE, &found).unwrap();
        live.set(0, 1, |_| {});
        here.mark(0);
        here.wait(1, 0, 1);
        let step = here.next_step(&live).unwrap();
        live.set(1, 1, |_| {});
        here.mark(0);
        here.wait(2, 1, 1);
        assert_eq!(here.next_step(&live), None);
        let mut answers = Vec::new();
        here.on_end(step, &ended(step, Ok(())), |row, failure| answers.push((row, failure)));
        assert_eq!(answers, [(1, None)]);
        assert_eq!(run(&mut here, &live, None).1, [(2, true)]);
    }

    #[test]
    fn failed_tag_fails_its_changes_and_is_tried_again() {
        let live = LiveBits::new(SIZE).unwrap();
        let mut here = Here::new(Some(TAG), SIZE, &HereFound::default()).unwrap();
        here.wait(1, 0, 1);
        let step = here.next_step(&live).unwrap();
        assert_eq!(step, HereStep::Tag);
        let mut answers = Vec::new();
        here.on_end(step, &ended(step, Err(IoError::NoSpace)), |row, failure| {
            answers.push((row, failure));
        });
        assert_eq!(answers, [(1, Some(IoError::NoSpace))]);
        assert!(here.is_idle() && here.must_wait(0, 1, || false));
        here.wait(2, 0, 1);
        let (steps, answers) = run(&mut here, &live, None);
        assert_eq!((steps[0], answers), (HereStep::Tag, vec![(2, true)]));
    }

    #[test]
    fn boot_ids_are_read_and_damaged_tags_differ() {
        assert_eq!(parse_id("00000000-0000-0000-0000-0000000000ff").unwrap()[15], 0xff);
        for wrong in [
            "",
            "12",
            "00000000-0000-0000-0000-000000000000",
            "zz000000-0000-0000-0000-0000000000ff",
        ] {
            assert_eq!(parse_id(wrong), None, "{wrong}");
        }
        let other = Tag { number: 4, ..TAG };
        assert_ne!(TAG.encode(), other.encode());
    }
}
