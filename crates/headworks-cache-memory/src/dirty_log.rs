//! The dirty table and the redo record of a shard, as its executor writes them. See the head of this module's parent.
//!
//! Invariants: an entry is dirty while its frame has bytes that were acknowledged and that no device has; the length of the redo
//! record is not 0 exactly while bytes of the pool change.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

use headworks_core::DirtyEntry;

use super::layout::word;
use headworks::house::{ChangeLog, Mapping};

/// Offset of the length in a redo record, behind target and source.
const LEN: usize = 16;

/// The dirty table of a shard's frames, with the redo record of its executor.
#[derive(Debug)]
pub struct DirtyLog {
    /// The redo record, the words of time and commands in flight, and the table, in `_memory`.
    redo: NonNull<[AtomicU64; 3]>,
    alive: NonNull<[AtomicU64; 2]>,
    table: NonNull<AtomicU64>,
    frames: usize,
    _memory: Arc<Mapping>,
}

// SAFETY: the pointers are into the mapping that the log keeps, and what they point to is atomic.
unsafe impl Send for DirtyLog {}

impl DirtyLog {
    /// A log in `memory`: the redo record at `redo_at`, the words of the last time and of commands in flight at `alive_at`, and an
    /// entry for each of `frames` frames at `table_at`.
    ///
    /// # Panics
    /// If something of it is not inside the memory, or not aligned.
    #[must_use]
    pub fn new(
        memory: Arc<Mapping>,
        redo_at: usize,
        alive_at: usize,
        (table_at, frames): (usize, usize),
    ) -> Self {
        let last = word(&memory, redo_at + LEN);
        let redo = NonNull::from(last).cast::<AtomicU64>();
        // SAFETY: the mapping has bytes from its start on, so the two words before are inside.
        let redo = unsafe { redo.sub(LEN / 8) }.cast();
        let in_flight = NonNull::from(word(&memory, alive_at + 8)).cast::<AtomicU64>();
        // SAFETY: the word before is inside, too.
        let alive = unsafe { in_flight.sub(1) }.cast();
        let bytes = frames.checked_mul(8).expect("the length of a table");
        let table = NonNull::new(memory.at(table_at, bytes)).expect("inside a mapping").cast();
        assert!(table.is_aligned(), "words are aligned");
        Self { redo, alive, table, frames, _memory: memory }
    }

    /// A log in anonymous memory, for tests and simulations.
    ///
    /// # Panics
    /// If there is no memory for it.
    #[must_use]
    pub fn anonymous(frames: u32) -> Self {
        let memory = Mapping::new(64 + frames as usize * 8).expect("memory for a dirty table");
        Self::new(Arc::new(memory), 0, LEN + 8, (64, frames as usize))
    }

    /// The entries of all frames.
    #[inline]
    #[must_use]
    pub fn table(&self) -> &[AtomicU64] {
        // SAFETY: inside the mapping and aligned, as `new` checked; the mapping lives as long as the log.
        unsafe { std::slice::from_raw_parts(self.table.as_ptr(), self.frames) }
    }

    #[inline]
    fn redo(&self) -> &[AtomicU64; 3] {
        // SAFETY: as for the table.
        unsafe { self.redo.as_ref() }
    }

    /// The change that was announced and not ended: target, source (0 for zeros), length.
    #[must_use]
    pub fn change(&self) -> Option<(u64, u64, u64)> {
        let [to, from, len] = self.redo().each_ref().map(|word| word.load(Ordering::Relaxed));
        (len > 0).then_some((to, from, len))
    }

    #[inline]
    fn alive(&self) -> &[AtomicU64; 2] {
        // SAFETY: as for the table.
        unsafe { self.alive.as_ref() }
    }

    #[inline]
    fn stamp_at(&self, now: u64) {
        let [alive, _] = self.alive();
        let last = alive.load(Ordering::Relaxed);
        alive.store(last.max(now), Ordering::Relaxed);
    }
}

impl ChangeLog for DirtyLog {
    /// A time before one that was stored is not: file times of then are ours.
    #[inline]
    fn stamp(&self) {
        self.stamp_at(now());
    }

    /// # Panics
    /// If there are no such frames.
    #[inline]
    fn set(&self, unit: u32, count: u32, entry: DirtyEntry) {
        let run = &self.table()[unit as usize..][..count as usize];
        // Release: the bytes come first.
        for (at, frame) in (0..).zip(run) {
            frame.store(entry.after(at).0, Ordering::Release);
        }
    }

    #[inline]
    fn begin_change(&self, to: *mut u8, from: *const u8, len: usize) {
        let redo = &self.redo();
        redo[0].store(to.expose_provenance() as u64, Ordering::Relaxed);
        redo[1].store(from.expose_provenance() as u64, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        redo[2].store(len as u64, Ordering::Release);
        // No byte changes before.
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    fn end_change(&self) {
        compiler_fence(Ordering::SeqCst);
        self.redo()[2].store(0, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
    }

    #[inline]
    fn begin_commands(&self, count: usize) {
        let [_, in_flight] = self.alive();
        // This thread alone stores it. Release: before anything of the commands.
        let before = in_flight.load(Ordering::Relaxed);
        in_flight.store(before.wrapping_add(count as u64), Ordering::Release);
        compiler_fence(Ordering::SeqCst);
    }

    /// When none is left, the time is stored: later changes of files are not this shard's.
    #[inline]
    fn end_commands(&self, count: usize) {
        let [_, in_flight] = self.alive();
        let left = in_flight.load(Ordering::Relaxed).wrapping_sub(count as u64);
        if left == 0 && count > 0 {
            // File times may be of the fine clock, which a loaded machine's coarse one can be far behind.
            self.stamp_at(exact_now());
        }
        compiler_fence(Ordering::SeqCst);
        in_flight.store(left, Ordering::Release);
    }
}

/// The real time in nanoseconds, by the coarse clock: the one of file times, which takes no system call.
pub(super) fn now() -> u64 {
    time_of(libc::CLOCK_REALTIME_COARSE)
}

/// The real time in nanoseconds, by the fine clock: not before any file time that was set until now.
pub(super) fn exact_now() -> u64 {
    time_of(libc::CLOCK_REALTIME)
}

fn time_of(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel writes a time into `now`.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::VolumeId;

    #[test]
    fn entries_of_a_run_count_up_and_clean_ones_do_not() {
        let log = DirtyLog::anonymous(8);
        log.set(2, 3, DirtyEntry::new(VolumeId(1), 40));
        log.set(3, 1, DirtyEntry::CLEAN);
        let entries: Vec<_> =
            log.table().iter().map(|word| DirtyEntry(word.load(Ordering::Relaxed))).collect();
        let (first, last) = (DirtyEntry::new(VolumeId(1), 40), DirtyEntry::new(VolumeId(1), 42));
        assert_eq!(
            entries[..6],
            [
                DirtyEntry::CLEAN,
                DirtyEntry::CLEAN,
                first,
                DirtyEntry::CLEAN,
                last,
                DirtyEntry::CLEAN
            ]
        );
    }

    #[test]
    fn time_never_goes_back_and_is_stored_when_the_last_command_ends() {
        let log = DirtyLog::anonymous(1);
        let [alive, in_flight] = log.alive();
        log.begin_commands(2);
        log.end_commands(1);
        assert_eq!(alive.load(Ordering::Relaxed), 0, "one is in flight");
        log.end_commands(1);
        assert_eq!(in_flight.load(Ordering::Relaxed), 0);
        assert!(alive.load(Ordering::Relaxed) > 0);
        // As if the clock had been set back since.
        let later = now() + 3_600_000_000_000;
        alive.store(later, Ordering::Relaxed);
        log.stamp();
        assert_eq!(alive.load(Ordering::Relaxed), later);
    }

    #[test]
    fn redo_record_stands_only_during_change() {
        let log = DirtyLog::anonymous(1);
        assert_eq!(log.change(), None);
        let (mut to, from) = ([0_u8; 4], [1_u8; 4]);
        log.begin_change(to.as_mut_ptr(), from.as_ptr(), 4);
        let said = log.change().unwrap();
        assert_eq!(said, (to.as_ptr().addr() as u64, from.as_ptr().addr() as u64, 4));
        log.end_change();
        assert_eq!(log.change(), None);
    }
}
