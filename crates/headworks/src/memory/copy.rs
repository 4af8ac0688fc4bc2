//! Copies between a buffer and the pool, the pool's next lines asked for ahead.
//!
//! A pool is larger than the processor's caches, and the processor's own read-ahead ends at each 4 KiB of addresses: the first
//! lines of every page are waited for. So while a page is copied, the first lines of what comes 4 KiB later are fetched: of the
//! same copy, or of the copy after it.
//!
//! ```text
//!   pool:    [page: copied now ......][page: its first lines prefetched ....]     .. [page of the next copy]
//!   buffer:  [................]
//! ```
//!
//! Random pieces of 1 GiB in huge pages, processor time as a part of a plain copy's (medians of 14 runs in turn on a busy machine,
//! each 460-8000 ns):
//!
//! | lines ahead | 4 KiB out of the pool, next copy known | 64 KiB out | 64 KiB in |
//! |---|---|---|---|
//! | 4 | 0.78 | 0.93 | 1.14 |
//! | 8 | **0.76** | **0.90** | 1.13 |
//! | 16 | 0.85 | 0.93 | 1.08 |
//!
//! Large copies into the pool go past the processor's caches: the lines that are overwritten need not be read first, and what is
//! written is next read by a device. 64 KiB take 0.57 of a plain copy's time (2.3 times it if the block is in the second-level cache
//! still, which is rare); 4 KiB would take 0.78, but 4.3 times a plain copy where the same few blocks are written again and
//! again, as journals do. So small copies are plain.

use headworks_core::CopyDirection;

/// Bytes after which the processor's own read-ahead ends.
const PAGE: usize = 4096;
/// A line of its cache.
const LINE: usize = 64;
/// Lines that are fetched ahead: as many as the copy before them gives time for, and after which the processor goes on by itself.
const AHEAD: usize = 8;
/// Writes of this length and more go past the caches. 32 KiB: what is read again soon is mostly written in less.
pub const STREAM: usize = 32 << 10;

/// Copies `len` bytes of a bio that copies `all`, and fetches the first lines of `next`, a place in the pool, or null. That is
/// only a hint.
///
/// # Safety
/// As for `copy_nonoverlapping(from, to, len)`.
#[inline]
pub unsafe fn copy(
    from: *const u8,
    to: *mut u8,
    (len, all): (usize, usize),
    direction: CopyDirection,
    next: *const u8,
) {
    if direction == CopyDirection::ToPool && all >= STREAM {
        // SAFETY: passed on.
        return unsafe { stream(from, to, len) };
    }
    if direction == CopyDirection::ToPool {
        // SAFETY: passed on.
        return unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }
    for done in (0..len).step_by(PAGE) {
        let ahead = done + PAGE;
        if ahead < len {
            fetch(from.wrapping_add(ahead));
        } else if !next.is_null() {
            fetch(next);
        }
        let piece = PAGE.min(len - done);
        // SAFETY: a part of the range that the caller vouches for.
        unsafe { std::ptr::copy_nonoverlapping(from.add(done), to.add(done), piece) };
    }
}

/// Copies past the caches.
///
/// # Safety
/// As for `copy_nonoverlapping(from, to, len)`.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(from: *const u8, to: *mut u8, len: usize) {
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
unsafe fn stream(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: passed on.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
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

    #[test]
    fn copy_writes_every_byte_of_the_range_and_no_other() {
        let from: Vec<u8> = (0..STREAM + 2 * PAGE).map(|n| (n % 251) as u8 + 1).collect();
        let ranges = [(0, 0), (0, 1), (1, PAGE), (PAGE - 1, 2), (77, 3 * PAGE + 5), (0, 4 * PAGE)];
        for (at, len) in ranges {
            for direction in [CopyDirection::ToBuffer, CopyDirection::ToPool] {
                let mut to = vec![0; from.len()];
                let (source, target) = (from[at..].as_ptr(), to[at..].as_mut_ptr());
                // SAFETY: both have `len` bytes from `at` on, and are different vectors.
                unsafe { copy(source, target, (len, len), direction, from.as_ptr()) };
                assert_eq!(to[at..at + len], from[at..at + len], "{at} {len}");
                assert!(to[..at].iter().chain(&to[at + len..]).all(|&byte| byte == 0));
            }
        }
    }
}
