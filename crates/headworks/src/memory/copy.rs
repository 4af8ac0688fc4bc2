//! Copies between a buffer and the pool, and zeroing, by the method that suits size, temperature and processor.
//!
//! A pool is larger than the processor's caches. Intel's own read-ahead ends at each 4 KiB of addresses, where the first lines of every
//! page are waited for: so while a page is copied, the first lines of what comes 4 KiB later are fetched. AMD's goes on, and there only
//! the first lines of the next copy are fetched, between the vector loads of the page that is copied.
//!
//! ```text
//!   pool:    [page: copied now ......][page: its first lines prefetched ....]     .. [page of the next copy]
//!   buffer:  [................]
//! ```
//!
//! Random pieces of 1 GiB in huge pages, time as a part of a plain copy's. Intel Xeon, processor time, medians of 14 runs in turn on a busy
//! machine; AMD EPYC (Zen 4), `benches/copy.sh`, which has all methods, medians of 15:
//!
//! | out of the pool | 4 KiB, next copy known | 16 KiB | 64 KiB |
//! |---|---|---|---|
//! | Intel: 8 lines ahead of each page | **0.76** | | **0.90** |
//! | AMD: 8 lines ahead of each page | 0.69 | 0.95 | 1.06 |
//! | AMD: 8 lines of the next copy | 0.69 | **0.88** | **0.97** |
//! | AMD: 16 lines of the next copy between vector loads | **0.64** | **0.88** | **0.97** |
//!
//! Large copies into the pool go past the processor's caches: the lines that are overwritten need not be read first, and what is
//! written is next read by a device. 64 KiB take 0.57 (AMD 0.65) of a plain copy's time, but 2.3 times it on either if the target is in
//! the second-level cache still. So a range that a large copy has just written gets a plain one. 4 KiB would take 0.78 (0.72), but 4.3
//! (5.5) times a plain copy where the same few blocks are written again and again, as journals do, and the next read of the block would
//! wait for the memory. So small copies are plain.
//!
//! Zeroing is the same: 64 KiB past the caches take 0.53 of `memset` in cold memory, and 2.2 in warm.
//!
//! String moves (`rep movsb`) are what the C library's `memcpy` uses where the processor has fast ones: the two are within 4 % of each
//! other, cold and warm, so a plain copy is `memcpy`, and there is no method of our own for it. A loop of vectors with a prefetch beats
//! it in warm memory of up to 16 KiB alone (35 against 45 ns for 4 KiB), and takes 1.05 to 1.4 of its time in cold memory.

use std::fmt;

/// Bytes after which Intel's own read-ahead ends.
const PAGE: usize = 4096;
/// A line of the processor's cache.
const LINE: usize = 64;
/// Lines that are fetched ahead: as many as the copy before them gives time for, and after which the processor goes on by itself.
const AHEAD: usize = 8;
/// Lines that are fetched between vector loads of a page.
const BETWEEN: usize = 16;
/// Writes of this length and more go past the caches. 32 KiB: what is read again soon is mostly written in less.
pub const STREAM: usize = 32 << 10;
/// Large targets that are remembered. 64 of 32 KiB are what a second-level cache holds.
const RECENT: usize = 64;

/// How a processor is helped to read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAhead {
    /// The first lines of each page are fetched while the page before it is copied.
    Pages,
    /// The first lines of the next copy are fetched before this one.
    NextCopy,
    /// They are fetched between vector loads (AVX2) of the last page.
    BetweenLoads,
}

impl ReadAhead {
    /// The measured best of this processor; of an unknown one, that of Intel's.
    fn of_this_processor() -> Self {
        // Processors of AMD, or of its design, alone have SSE4a.
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if std::arch::is_x86_feature_detected!("sse4a") {
            let vectors = std::arch::is_x86_feature_detected!("avx2");
            return if vectors { Self::BetweenLoads } else { Self::NextCopy };
        }
        Self::Pages
    }
}

/// Copies and zeroes memory that is larger than the processor's caches.
pub struct Copier {
    read_ahead: ReadAhead,
    /// Pages at which large writes began, each where its number is hashed to.
    recent: [usize; RECENT],
}

impl fmt::Debug for Copier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copier").field("read_ahead", &self.read_ahead).finish_non_exhaustive()
    }
}

impl Default for Copier {
    fn default() -> Self {
        Self::with(ReadAhead::of_this_processor())
    }
}

impl Copier {
    pub fn with(read_ahead: ReadAhead) -> Self {
        Self { read_ahead, recent: [0; RECENT] }
    }

    /// Copies `len` bytes out of the pool, and fetches the first lines of `next`, the place in the pool of the copy after this one, or
    /// null. That is only a hint.
    ///
    /// # Safety
    /// As for `copy_nonoverlapping(from, to, len)`.
    #[inline]
    pub unsafe fn read(&self, from: *const u8, to: *mut u8, len: usize, next: *const u8) {
        // SAFETY: passed on; vectors were found where they are used.
        unsafe {
            match self.read_ahead {
                ReadAhead::Pages => pages(from, to, len, next),
                ReadAhead::NextCopy => plain(from, to, len, next),
                #[cfg(target_arch = "x86_64")]
                ReadAhead::BetweenLoads if len >= PAGE && !next.is_null() => {
                    let before = len - PAGE;
                    std::ptr::copy_nonoverlapping(from, to, before);
                    page_of_vectors(from.add(before), to.add(before), next);
                }
                ReadAhead::BetweenLoads => plain(from, to, len, next),
            }
        }
    }

    /// Copies `len` bytes of a bio that copies `all` into the pool.
    ///
    /// # Safety
    /// As for `copy_nonoverlapping(from, to, len)`.
    #[inline]
    pub unsafe fn write(&mut self, from: *const u8, to: *mut u8, (len, all): (usize, usize)) {
        // SAFETY: passed on.
        unsafe {
            if all >= STREAM && !self.was_written(to) {
                stream(from, to, len);
            } else {
                std::ptr::copy_nonoverlapping(from, to, len);
            }
        }
    }

    /// Zeroes `len` bytes of the pool.
    ///
    /// # Safety
    /// As for `write_bytes(to, 0, len)`.
    pub unsafe fn zero(&mut self, to: *mut u8, len: usize) {
        // SAFETY: passed on.
        unsafe {
            if len >= STREAM && !self.was_written(to) {
                stream_zeros(to, len);
            } else {
                to.write_bytes(0, len);
            }
        }
    }

    /// Whether one of the last large writes began in the page of `to`; remembers that this one does.
    fn was_written(&mut self, to: *const u8) -> bool {
        let page = to as usize / PAGE;
        let hash = page.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as usize);
        let place = &mut self.recent[hash >> (usize::BITS - RECENT.ilog2())];
        std::mem::replace(place, page) == page
    }
}

/// Copies, and fetches the next copy's first lines before.
///
/// # Safety
/// As for `copy_nonoverlapping(from, to, len)`.
#[inline]
unsafe fn plain(from: *const u8, to: *mut u8, len: usize, next: *const u8) {
    if !next.is_null() {
        fetch(next);
    }
    // SAFETY: passed on.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// Copies page by page, each time with the first lines of the next page fetched before.
///
/// # Safety
/// As for `copy_nonoverlapping(from, to, len)`.
#[inline]
unsafe fn pages(from: *const u8, to: *mut u8, len: usize, next: *const u8) {
    for done in (0..len).step_by(PAGE) {
        let ahead = if done + PAGE < len { from.wrapping_add(done + PAGE) } else { next };
        // SAFETY: a part of the range that the caller vouches for.
        unsafe { plain(from.add(done), to.add(done), PAGE.min(len - done), ahead) };
    }
}

/// Copies a page by vector loads, between which the first lines of `next` are fetched.
///
/// # Safety
/// As for `copy_nonoverlapping(from, to, PAGE)`, and the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn page_of_vectors(from: *const u8, to: *mut u8, next: *const u8) {
    use std::arch::x86_64::{
        __m256i, _MM_HINT_T0, _mm_prefetch, _mm256_loadu_si256, _mm256_setzero_si256,
        _mm256_storeu_si256,
    };
    /// Vectors of a turn: they are loaded before they are stored.
    const TURN: usize = 8;
    const PART: usize = PAGE / BETWEEN;
    const _: () = assert!(PART == TURN * size_of::<__m256i>());
    for line in 0..BETWEEN {
        // SAFETY: a prefetch reads nothing; the vectors are parts of the page that the caller vouches for.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(line * LINE).cast());
            let (from, to) = (from.add(line * PART).cast::<__m256i>(), to.add(line * PART));
            // No closure: one does not become a part of a function with more features than its own.
            let mut vectors = [_mm256_setzero_si256(); TURN];
            for (index, vector) in vectors.iter_mut().enumerate() {
                *vector = _mm256_loadu_si256(from.add(index));
            }
            for (index, vector) in vectors.iter().enumerate() {
                _mm256_storeu_si256(to.cast::<__m256i>().add(index), *vector);
            }
        }
    }
}

/// Copies past the caches.
///
/// # Safety
/// As for `copy_nonoverlapping(from, to, len)`.
#[cfg(target_arch = "x86_64")]
pub unsafe fn stream(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const WORD: usize = size_of::<__m128i>();
    // What comes before the first line's begin and after the last line's end is copied plainly.
    let head = to.align_offset(LINE).min(len);
    let body = (len - head) / LINE * LINE;
    let tail = head + body;
    // SAFETY: parts of the range that the caller vouches for; `to` is aligned for the body.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for line in (head..tail).step_by(LINE) {
            for word in (line..line + LINE).step_by(WORD) {
                let bytes = _mm_loadu_si128(from.add(word).cast());
                _mm_stream_si128(to.add(word).cast(), bytes);
            }
        }
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
        // The bytes are visible on every CPU before the copy is reported.
        _mm_sfence();
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn stream(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: passed on.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// Zeroes past the caches.
///
/// # Safety
/// As for `write_bytes(to, 0, len)`.
#[cfg(target_arch = "x86_64")]
pub unsafe fn stream_zeros(to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_setzero_si128, _mm_sfence, _mm_stream_si128};
    const WORD: usize = size_of::<__m128i>();
    let head = to.align_offset(LINE).min(len);
    let tail = head + (len - head) / LINE * LINE;
    // SAFETY: parts of the range that the caller vouches for; `to` is aligned between `head` and `tail`.
    unsafe {
        to.write_bytes(0, head);
        for word in (head..tail).step_by(WORD) {
            _mm_stream_si128(to.add(word).cast(), _mm_setzero_si128());
        }
        to.add(tail).write_bytes(0, len - tail);
        // The bytes are visible on every CPU before the zeroing is reported.
        _mm_sfence();
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub unsafe fn stream_zeros(to: *mut u8, len: usize) {
    // SAFETY: passed on.
    unsafe { to.write_bytes(0, len) }
}

/// Asks for the first lines from `at` on. That is only a hint.
#[inline]
pub fn fetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..AHEAD {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing and cannot fault, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(line * LINE).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (at, AHEAD, LINE);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copiers() -> Vec<Copier> {
        let mut all = vec![Copier::with(ReadAhead::Pages), Copier::with(ReadAhead::NextCopy)];
        // The processor's own, with vectors if it has any.
        all.push(Copier::default());
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            all.push(Copier::with(ReadAhead::BetweenLoads));
        }
        all
    }

    #[test]
    fn every_method_writes_every_byte_of_the_range_and_no_other() {
        let from: Vec<u8> = (0..STREAM + 2 * PAGE).map(|n| (n % 251) as u8 + 1).collect();
        let ranges = [
            (0, 0),
            (0, 1),
            (1, PAGE),
            (3, PAGE + 1),
            (PAGE - 1, 2),
            (77, 3 * PAGE + 5),
            (0, 4 * PAGE),
            (5, STREAM + PAGE),
        ];
        for (at, len) in ranges {
            for mut copier in copiers() {
                for job in 0..5 {
                    let mut to = vec![0xff; from.len()];
                    let (source, target) = (from[at..].as_ptr(), to[at..].as_mut_ptr());
                    // SAFETY: both have `len` bytes from `at` on, and are different vectors.
                    unsafe {
                        match job {
                            0 => copier.read(source, target, len, from.as_ptr()),
                            1 => copier.read(source, target, len, std::ptr::null()),
                            // The same range twice: past the caches, and plainly.
                            2 | 3 => copier.write(source, target, (len, len)),
                            _ => copier.zero(target, len),
                        }
                    }
                    let whole = &to[at..at + len];
                    let right = if job < 4 {
                        whole == &from[at..at + len]
                    } else {
                        whole.iter().all(|&byte| byte == 0)
                    };
                    assert!(right, "{at} {len} {job} {copier:?}");
                    assert!(to[..at].iter().chain(&to[at + len..]).all(|&byte| byte == 0xff));
                }
            }
        }
    }

    #[test]
    fn range_that_was_written_is_warm() {
        let mut copier = Copier::default();
        let at = |page: usize| std::ptr::without_provenance(page * PAGE);
        assert!(
            !copier.was_written(at(7)) && copier.was_written(at(7)) && !copier.was_written(at(8))
        );
        let distinct = (1000..1000 + 100 * RECENT).filter(|&page| copier.was_written(at(page)));
        assert_eq!(distinct.count(), 0);
        assert!(!copier.was_written(at(7)), "others were written since");
    }
}
