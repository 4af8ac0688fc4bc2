//! A descriptor chain of a split ring, walked once.
//!
//! Each descriptor is copied before it is checked, so what the driver changes meanwhile has no effect. The rules, each of which breaks
//! the ring: an index within its table, at most as many steps as the table has descriptors (so a loop ends), readable before writable
//! descriptors, every byte in a region, an indirect table that is a multiple of 16 bytes, at most 1024 descriptors, not nested, and the end
//! of its chain.

use crate::QUEUE_SIZE_MAX;
use crate::memory::{GuestMemory, Span};

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;
/// Bytes of a descriptor.
pub(crate) const DESCRIPTOR_BYTES: u64 = 16;

/// Most spans of a chain: a descriptor may cross the border of two regions, but few of a chain do.
pub(crate) const SPANS_MAX: usize = QUEUE_SIZE_MAX as usize + 64;

/// A descriptor as the driver writes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Descriptor {
    pub(crate) address: u64,
    pub(crate) len: u32,
    pub(crate) flags: u16,
    pub(crate) next: u16,
}

const _: () = assert!(size_of::<Descriptor>() as u64 == DESCRIPTOR_BYTES);

/// A table of descriptors in guest memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    base: *const u8,
    count: u16,
}

impl Table {
    /// # Safety
    /// `count` descriptors at `base` are mapped while the table is used.
    pub(crate) const unsafe fn new(base: *const u8, count: u16) -> Self {
        Self { base, count }
    }

    /// A copy of a descriptor; none beyond the table.
    #[inline]
    fn get(self, index: u16) -> Option<Descriptor> {
        if index >= self.count {
            return None;
        }
        let place = self.base.wrapping_add(usize::from(index) * DESCRIPTOR_BYTES as usize);
        let place = place.cast::<Descriptor>();
        // SAFETY: the descriptor is within the table, which is mapped. Every bit pattern is a descriptor. Volatile: the driver may write
        // at the same time, and the copy is made once.
        Some(unsafe {
            if place.is_aligned() { place.read_volatile() } else { place.read_unaligned() }
        })
    }
}

/// The spans of a chain, kept by a device for the chain at hand.
#[derive(Debug)]
pub(crate) struct Chain {
    spans: Vec<Span>,
    // The spans before this one are readable by the device, the others writable.
    writable_from: usize,
}

// SAFETY: spans only name memory.
unsafe impl Send for Chain {}

impl Chain {
    pub(crate) fn new() -> Self {
        Self { spans: Vec::with_capacity(SPANS_MAX), writable_from: 0 }
    }

    /// Walks the chain that begins with `head`; the error says how it breaks the rules.
    #[inline]
    pub(crate) fn walk(
        &mut self,
        memory: &GuestMemory,
        ring: Table,
        head: u16,
        allows_indirect: bool,
    ) -> Result<(), &'static str> {
        self.spans.clear();
        self.writable_from = 0;
        let (mut table, mut index, mut steps, mut is_nested) = (ring, head, 0, false);
        let mut is_writing = false;
        loop {
            let one = table.get(index).ok_or("a descriptor's next is beyond its table")?;
            steps += 1;
            if steps > table.count {
                return Err("a descriptor chain is longer than its table");
            }
            if one.flags & INDIRECT != 0 {
                if !allows_indirect || is_nested || one.flags & NEXT != 0 {
                    return Err("an indirect descriptor that is not allowed there");
                }
                table = indirect(memory, one)?;
                (index, steps, is_nested) = (0, 0, true);
                continue;
            }
            let is_writable = one.flags & WRITE != 0;
            if is_writable && !is_writing {
                (is_writing, self.writable_from) = (true, self.spans.len());
            }
            if is_writing && !is_writable {
                return Err("a readable descriptor behind a writable one");
            }
            self.add(memory, one)?;
            if one.flags & NEXT == 0 {
                break;
            }
            index = one.next;
        }
        if !is_writing {
            self.writable_from = self.spans.len();
        }
        Ok(())
    }

    /// Adds the spans of a descriptor, joined to the one before where they touch.
    #[inline]
    fn add(&mut self, memory: &GuestMemory, one: Descriptor) -> Result<(), &'static str> {
        let Self { spans, writable_from } = self;
        let is_mapped = memory.translate(one.address, one.len, &mut |span: Span| {
            let is_first = spans.len() == *writable_from;
            if let Some(last) = spans.last_mut().filter(|_| !is_first)
                && last.base().wrapping_add(last.len()) == span.base()
            {
                *last = Span::new(last.base(), last.len() + span.len());
                return true;
            }
            if spans.len() == SPANS_MAX {
                return false;
            }
            spans.push(span);
            true
        });
        if is_mapped { Ok(()) } else { Err("a descriptor is outside of the memory regions") }
    }

    pub(crate) fn readable(&mut self) -> &mut [Span] {
        &mut self.spans[..self.writable_from]
    }

    pub(crate) fn writable(&mut self) -> &mut [Span] {
        &mut self.spans[self.writable_from..]
    }
}

fn indirect(memory: &GuestMemory, one: Descriptor) -> Result<Table, &'static str> {
    let bytes = u64::from(one.len);
    let count = bytes / DESCRIPTOR_BYTES;
    if bytes == 0 || bytes % DESCRIPTOR_BYTES != 0 || count > u64::from(QUEUE_SIZE_MAX) {
        return Err("an indirect table that is not 1 to 1024 descriptors long");
    }
    let base = memory.range(one.address, bytes);
    let base = base.ok_or("an indirect table outside of the memory regions")?;
    // SAFETY: `range` has found the bytes in a mapped region.
    Ok(unsafe { Table::new(base, count as u16) })
}

/// Copies the first bytes of `spans` into `out` and cuts them off. Returns false when there are fewer.
#[inline]
pub(crate) fn take_front(spans: &mut [Span], out: &mut [u8]) -> bool {
    let mut filled = 0;
    for span in spans {
        let part = span.len().min(out.len() - filled);
        // SAFETY: the span is in a mapped region; `part` bytes of it fit what is left of `out`, which is our memory.
        unsafe {
            std::ptr::copy_nonoverlapping(span.base(), out[filled..].as_mut_ptr(), part);
        }
        *span = span.part(part, span.len());
        filled += part;
        if filled == out.len() {
            return true;
        }
    }
    false
}

/// The place of the last byte of `spans`, cut off.
#[inline]
pub(crate) fn take_last(spans: &mut [Span]) -> Option<*mut u8> {
    let last = spans.iter_mut().rev().find(|span| !span.is_empty())?;
    let place = last.base().wrapping_add(last.len() - 1);
    *last = last.part(0, last.len() - 1);
    Some(place)
}
