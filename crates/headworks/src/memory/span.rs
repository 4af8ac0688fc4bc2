//! A range of memory that a command reads or writes.

/// A range of memory, laid out as `struct iovec`.
///
/// A span is a raw pointer with a length: it borrows nothing, and copies of it name the same bytes. Safe code can pass spans on
/// and cut them, but only unsafe code can make one ([`Span::new`]) or use its bytes. The shard's contract says when the
/// bytes may be used: a bio's buffer belongs to the path from its submission until its reply says `Final` or `Released`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Span {
    base: *mut u8,
    len: usize,
}

// SAFETY: a span only names memory. The bytes are used in unsafe code only, under the contract of `Span::new`.
unsafe impl Send for Span {}

const _: () = assert!(size_of::<Span>() == size_of::<libc::iovec>());
const _: () = assert!(align_of::<Span>() == align_of::<libc::iovec>());

impl Span {
    /// The span of zero bytes.
    pub const EMPTY: Self = Self { base: std::ptr::dangling_mut(), len: 0 };

    /// Names the `len` bytes at `base`.
    ///
    /// # Safety
    /// Until the last use of the span, of its copies and of its parts:
    /// - the bytes are one allocation or mapping that stays where it is, readable, and writable unless every use only reads;
    /// - while a command uses the span, no other code writes the bytes, and none reads them if the command writes them.
    #[inline]
    #[must_use]
    pub const unsafe fn new(base: *mut u8, len: usize) -> Self {
        Self { base, len }
    }

    /// The address of the first byte.
    #[inline]
    #[must_use]
    pub const fn base(self) -> *mut u8 {
        self.base
    }

    /// The number of bytes.
    #[inline]
    #[must_use]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Returns true if the span has no bytes.
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The `len` bytes from `offset` on.
    ///
    /// # Panics
    /// If the part is not inside the span.
    #[inline]
    #[must_use]
    pub fn part(self, offset: usize, len: usize) -> Self {
        let inside = offset <= self.len && len <= self.len - offset;
        assert!(inside, "a part of a span is inside the span");
        Self { base: self.base.wrapping_add(offset), len }
    }

    /// The `len` bytes from `offset` on; `None` if they are not inside the span: for ranges that a program gives.
    #[inline]
    #[must_use]
    pub fn get(self, offset: u64, len: usize) -> Option<Self> {
        let offset = usize::try_from(offset).ok()?;
        let inside = offset <= self.len && len <= self.len - offset;
        inside.then(|| self.part(offset, len))
    }

    /// The frames of a pool from number `unit` to the end of the pool; empty if there are none. The span is the whole pool.
    #[inline]
    #[must_use]
    pub fn frames_from(self, unit: u32) -> Self {
        let offset = (unit as usize * headworks_core::cache::folio::BLOCK as usize).min(self.len);
        self.part(offset, self.len - offset)
    }

    /// The bytes of the span.
    ///
    /// # Safety
    /// The contract of [`Span::new`] holds for reads, and no code writes the bytes during `'a`.
    #[inline]
    #[must_use]
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        // SAFETY: passed on to the caller.
        unsafe { std::slice::from_raw_parts(self.base, self.len) }
    }

    /// The bytes of the span, for writing.
    ///
    /// # Safety
    /// The contract of [`Span::new`] holds for writes, the bytes are initialized, and no other code uses them during `'a`.
    #[inline]
    #[must_use]
    pub unsafe fn bytes_mut<'a>(self) -> &'a mut [u8] {
        // SAFETY: passed on to the caller.
        unsafe { std::slice::from_raw_parts_mut(self.base, self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_outside_its_span_panics() {
        let mut bytes = [0, 1, 2, 3];
        // SAFETY: `bytes` outlives the span and is used through it alone.
        let span = unsafe { Span::new(bytes.as_mut_ptr(), 4) };
        // SAFETY: as above.
        unsafe {
            assert_eq!(span.part(1, 2).bytes(), [1, 2]);
            span.part(3, 1).bytes_mut()[0] = 9;
        }
        assert!(span.part(4, 0).is_empty());
        assert_eq!(bytes[3], 9);
        for (offset, len) in [(5, 0), (4, 1), (1, usize::MAX)] {
            assert!(std::panic::catch_unwind(|| span.part(offset, len)).is_err());
        }
    }

    #[test]
    fn frames_beyond_the_pool_are_empty() {
        // SAFETY: no byte of this span is used.
        let pool = unsafe { Span::new(std::ptr::dangling_mut(), 3 * 4096) };
        assert_eq!(pool.frames_from(1).len(), 2 * 4096);
        assert!(pool.frames_from(3).is_empty() && pool.frames_from(u32::MAX).is_empty());
    }
}
