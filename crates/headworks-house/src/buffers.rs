//! The buffers of requests: one region, cut by a buddy allocator into blocks of 4 KiB to 32 MiB.
//!
//! Memory that must be reserved before it is used (a file on a filesystem of limited size) is added to the pool in pieces, when no block
//! is free; a reservation that is refused is a pool that is full. What an idle server gives back is reserved again first.
//!
//! Hard bound: the region is mapped once and nothing is allocated after that; full is an ordinary answer. A request for `len`
//! bytes gets the smallest block of 4 KiB * 2^order that holds it. [`Buddy`] keeps the allocations, beside the region (9
//! bytes per 4 KiB): memory that no request used stays untouched.

use std::fmt;
use std::io;

use headworks::driver::Span;
use headworks::house::{Mapping, PAGE};
use headworks_core::buddy::Buddy;

/// Orders 0 (4 KiB) to 13 (32 MiB: NBD's largest request).
const ORDERS: usize = 14;
/// [`Pool::trim`] leaves blocks below 64 KiB alone: a call for each would cost more than they hold.
const TRIM_ORDER_MIN: u8 = 4;

/// A block on loan from a [`Pool`]; give it back with [`Pool::put`]. Dropping it loses the block, not memory safety.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a buffer that is not put back is lost to the pool"]
pub struct Buffer {
    base: *mut u8,
    order: u8,
}

// SAFETY: a buffer is a name for memory that its holder alone uses; nothing in it belongs to a thread.
unsafe impl Send for Buffer {}

impl Buffer {
    /// First byte, aligned to a page at least.
    #[inline]
    #[must_use]
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Bytes: at least what was asked for.
    #[inline]
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // There is no empty buffer.
    pub fn len(&self) -> usize {
        PAGE << self.order
    }

    /// The whole buffer as a span.
    ///
    /// # Safety
    /// As [`Span::new`]: the buffer is not put back before the last use of the span.
    #[inline]
    #[must_use]
    pub unsafe fn span(&self) -> Span {
        // SAFETY: passed on to the caller.
        unsafe { Span::new(self.base, self.len()) }
    }
}

/// Units that are added to a pool at once: 1 MiB.
const GROWTH: usize = 256;

/// Reserves a range of the region, in bytes: offset and length.
type Reserve = Box<dyn Fn(usize, usize) -> bool + Send>;

/// How a pool grows within its region.
struct Growth {
    reserve: Reserve,
    /// Units that are never given back.
    floor: u32,
}

impl fmt::Debug for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Growth(floor: {})", self.floor)
    }
}

/// The buffers of a shard.
#[derive(Debug)]
pub struct Pool {
    region: Mapping,
    buddy: Buddy,
    /// None if the whole region may be used.
    growth: Option<Growth>,
}

impl Pool {
    /// The largest buffer there is.
    pub const LARGEST: usize = PAGE << (ORDERS - 1);

    /// A pool of `bytes`, rounded up to whole 4 KiB. For requests of [`Pool::LARGEST`] it must have at least that much.
    ///
    /// # Errors
    /// When `bytes` is 0 or more than the address space has.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let units = bytes.div_ceil(PAGE);
        if units == 0 || units >= u32::MAX as usize {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Self::over(Mapping::new(units * PAGE)?)
    }

    /// A pool of a mapping's memory, which reads as zeros.
    ///
    /// # Errors
    /// When it has no whole page, or too many.
    pub fn over(region: Mapping) -> io::Result<Self> {
        let units = region.len() / PAGE;
        if units == 0 || units >= u32::MAX as usize {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(Self { region, buddy: Buddy::new(units as u32, ORDERS), growth: None })
    }

    /// A pool of a mapping's memory, of which the first `floor` bytes may be used and the rest after `reserve` has returned true for it.
    ///
    /// # Errors
    /// When the floor has no whole page, or the mapping too many.
    pub fn growing(
        region: Mapping,
        floor: usize,
        reserve: impl Fn(usize, usize) -> bool + Send + 'static,
    ) -> io::Result<Self> {
        let (units, floor) = (region.len() / PAGE, floor.min(region.len()) / PAGE);
        if floor == 0 || units >= u32::MAX as usize {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let mut buddy = Buddy::with_room(units as u32, ORDERS);
        buddy.grow(floor as u32);
        let growth = Some(Growth { reserve: Box::new(reserve), floor: floor as u32 });
        Ok(Self { region, buddy, growth })
    }

    /// Takes a block of memory that is reserved for it; `None` if there is none to be had.
    #[cold]
    fn grow(&mut self, order: u8) -> Option<u32> {
        let Growth { reserve, .. } = self.growth.as_ref()?;
        // What was given back comes first.
        while let Some((unit, had)) = self.buddy.ask(u32::MAX) {
            let reserved = reserve(unit as usize * PAGE, PAGE << had);
            self.buddy.answer(unit, had, reserved);
            if !reserved {
                return None;
            }
            if let Some(unit) = self.buddy.take(order) {
                return Some(unit);
            }
        }
        let (units, all) = (self.buddy.units() as usize, self.region.len() / PAGE);
        let wanted = GROWTH.max(1 << order);
        let end = (units.next_multiple_of(1 << order) + wanted).min(all);
        if units == end || !reserve(units * PAGE, (end - units) * PAGE) {
            return None;
        }
        self.buddy.grow((end - units) as u32);
        self.buddy.take(order)
    }

    /// A buffer of at least `len` bytes; `None` when no block is large enough now, or ever.
    #[inline]
    pub fn try_take(&mut self, len: usize) -> Option<Buffer> {
        let order = order_of(len)?;
        let unit = match self.buddy.take(order) {
            Some(unit) => unit,
            None => self.grow(order)?,
        };
        let base = self.region.at(unit as usize * PAGE, PAGE << order);
        Some(Buffer { base, order })
    }

    /// Bytes of the block that a request for `len` bytes gets; `None` beyond [`Pool::LARGEST`].
    #[inline]
    #[must_use]
    pub fn block_bytes(len: usize) -> Option<usize> {
        order_of(len).map(|order| PAGE << order)
    }

    /// Takes a buffer back.
    ///
    /// # Panics
    /// If it is not one of this pool's that is out: a double free is our bug.
    #[inline]
    pub fn put(&mut self, buffer: Buffer) {
        self.buddy.put(self.unit_of(&buffer), buffer.order);
    }

    /// Cuts a buffer to the block of its first `len` bytes; what is behind it can be taken by others.
    ///
    /// # Safety
    /// Nothing uses the bytes behind that block any more: no span of the buffer that reaches beyond it is in use.
    ///
    /// # Panics
    /// If it is not one of this pool's that is out.
    pub unsafe fn cut(&mut self, buffer: &mut Buffer, len: usize) {
        if let Some(order) = order_of(len).filter(|&order| order < buffer.order) {
            self.buddy.trim(self.unit_of(buffer), buffer.order, order);
            buffer.order = order;
        }
    }

    /// Grows a buffer in place to the block of `len` bytes; false, and it is as before, unless all that lies behind it is free.
    ///
    /// # Panics
    /// If it is not one of this pool's that is out.
    pub fn extend(&mut self, buffer: &mut Buffer, len: usize) -> bool {
        let Some(wanted) = order_of(len) else { return false };
        if wanted <= buffer.order {
            return true;
        }
        let unit = self.unit_of(buffer);
        let order = self.buddy.extend(unit, buffer.order, wanted);
        if order < wanted {
            self.buddy.trim(unit, order, buffer.order);
            return false;
        }
        let base = self.region.at(unit as usize * PAGE, PAGE << order);
        *buffer = Buffer { base, order };
        true
    }

    /// First unit of a buffer. The number of a strange buffer may not fit; then it is none of the pool's.
    #[inline]
    fn unit_of(&self, buffer: &Buffer) -> u32 {
        let offset = (buffer.base as usize).wrapping_sub(self.region.base() as usize);
        u32::try_from(offset / PAGE).unwrap_or(u32::MAX)
    }

    /// Bytes on loan, rounded up to blocks.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.buddy.taken() as usize * PAGE
    }

    /// Bytes of the whole pool.
    #[must_use]
    pub fn size(&self) -> usize {
        self.region.len()
    }

    /// Gives the memory of free blocks back to the kernel; for a server that has become idle. Some system calls.
    pub fn trim(&mut self) {
        self.buddy.join_recent();
        if let Some(Growth { floor, .. }) = self.growth {
            let beyond = |&(unit, _): &(u32, u8)| unit >= floor;
            loop {
                let next = self.buddy.free_blocks(TRIM_ORDER_MIN).find(beyond);
                let Some((unit, order)) = next else { return };
                if !self.buddy.withhold_at(unit, order) {
                    return;
                }
                // SAFETY: a withheld block has no user.
                unsafe { self.region.forget(unit as usize * PAGE, PAGE << order) };
            }
        }
        for (unit, order) in self.buddy.free_blocks(TRIM_ORDER_MIN) {
            // SAFETY: a free block has no user.
            unsafe { self.region.forget(unit as usize * PAGE, PAGE << order) };
        }
    }
}

/// The smallest order whose blocks hold `len` bytes.
#[inline]
fn order_of(len: usize) -> Option<u8> {
    if len > Pool::LARGEST {
        return None;
    }
    let units = len.div_ceil(PAGE).max(1);
    Some(units.next_power_of_two().trailing_zeros() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn requested_size_is_rounded_up_to_a_block() {
        let mut pool = Pool::new(64 * MIB).unwrap();
        for (len, block) in [
            (0, PAGE),
            (1, PAGE),
            (PAGE, PAGE),
            (PAGE + 1, 2 * PAGE),
            (3 * MIB, 4 * MIB),
            (32 * MIB, 32 * MIB),
        ] {
            let buffer = pool.try_take(len).unwrap();
            assert_eq!((buffer.len(), pool.taken()), (block, block));
            pool.put(buffer);
        }
        assert_eq!(pool.try_take(32 * MIB + 1), None);
        assert_eq!(pool.try_take(usize::MAX), None);
    }

    #[test]
    fn pool_of_odd_size_allocates_every_page() {
        assert!(Pool::new(0).is_err());
        let mut pool = Pool::new(35 * MIB + 3 * PAGE).unwrap();
        let mut taken = 0;
        while pool.try_take(PAGE).is_some() {
            taken += PAGE;
        }
        assert_eq!((taken, taken), (pool.size(), 35 * MIB + 3 * PAGE));
    }

    #[test]
    fn allocated_buffers_do_not_overlap() {
        let mut pool = Pool::new(MIB).unwrap();
        let lens = [PAGE, 3 * PAGE, 16 * PAGE, PAGE, 100 * PAGE, 2 * PAGE];
        let mut buffers = lens.map(|len| pool.try_take(len).unwrap());
        buffers.sort_unstable_by_key(|buffer| buffer.base() as usize);
        for pair in buffers.windows(2) {
            assert!(pair[0].base() as usize + pair[0].len() <= pair[1].base() as usize);
        }
        let end = buffers[5].base() as usize + buffers[5].len();
        assert!(end <= pool.region.base() as usize + pool.size());
        buffers.into_iter().for_each(|buffer| pool.put(buffer));
        assert_eq!(pool.taken(), 0);
    }

    #[test]
    fn buffer_is_cut_and_grows_in_place() {
        let mut pool = Pool::new(MIB).unwrap();
        let mut buffer = pool.try_take(MIB).unwrap();
        let base = buffer.base();
        // SAFETY: nothing uses the buffer.
        unsafe {
            pool.cut(&mut buffer, 4 * MIB);
            assert_eq!((buffer.len(), pool.taken()), (MIB, MIB), "it is not larger than before");
            pool.cut(&mut buffer, 3 * PAGE);
        }
        assert_eq!((buffer.base(), buffer.len(), pool.taken()), (base, 4 * PAGE, 4 * PAGE));
        let other = pool.try_take(MIB / 2).unwrap();
        assert!(pool.extend(&mut buffer, MIB / 2) && !pool.extend(&mut buffer, MIB));
        assert_eq!((buffer.base(), buffer.len(), pool.taken()), (base, MIB / 2, MIB));
        pool.put(other);
        assert!(pool.extend(&mut buffer, MIB) && !pool.extend(&mut buffer, 2 * MIB));
        assert!(pool.extend(&mut buffer, PAGE) && !pool.extend(&mut buffer, usize::MAX));
        assert_eq!((buffer.base(), buffer.len()), (base, MIB));
        // SAFETY: the buffer is ours.
        unsafe { buffer.base().write_bytes(7, MIB) };
        pool.put(buffer);
        assert_eq!(pool.taken(), 0);
    }

    #[test]
    #[should_panic(expected = "freed once")]
    fn double_put_panics() {
        let mut pool = Pool::new(MIB).unwrap();
        let buffer = pool.try_take(PAGE).unwrap();
        let again = Buffer { base: buffer.base, order: buffer.order };
        pool.put(buffer);
        pool.put(again);
    }

    #[test]
    #[should_panic(expected = "to its own pool")]
    fn put_of_buffer_from_another_pool_panics() {
        let (mut pool, mut other) = (Pool::new(MIB).unwrap(), Pool::new(MIB).unwrap());
        let _own = pool.try_take(PAGE);
        pool.put(other.try_take(PAGE).unwrap());
    }

    #[test]
    fn trim_frees_unused_memory_and_keeps_allocated_buffers() {
        let mut pool = Pool::new(8 * MIB).unwrap();
        let (kept, gone) = (pool.try_take(MIB).unwrap(), pool.try_take(4 * MIB).unwrap());
        // SAFETY: both buffers are ours.
        unsafe {
            kept.base().write_bytes(7, MIB);
            gone.base().write_bytes(7, 4 * MIB);
        }
        let gone_at = gone.base();
        pool.put(gone);
        pool.trim();
        // SAFETY: `kept` is ours; `gone_at` is in the pool's mapping and has no user.
        unsafe { assert_eq!((kept.base().read(), gone_at.read()), (7, 0)) };
        pool.put(kept);
    }

    #[test]
    fn growing_pool_uses_only_what_was_reserved() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        use std::sync::{Arc, Mutex};
        let (left, reserved) = (Arc::new(AtomicUsize::new(3 * MIB)), Arc::new(Mutex::new(vec![])));
        let (budget, list) = (Arc::clone(&left), Arc::clone(&reserved));
        let region = Mapping::new(128 * MIB).unwrap();
        let mut pool = Pool::growing(region, 32 * MIB, move |at, len| {
            let had = budget
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(len));
            list.lock().unwrap().push((at, len, had.is_ok()));
            had.is_ok()
        })
        .unwrap();
        let floor = pool.try_take(32 * MIB).unwrap();
        assert!(reserved.lock().unwrap().is_empty(), "the floor is there");
        let mut buffers: Vec<_> = std::iter::from_fn(|| pool.try_take(MIB)).collect();
        assert_eq!(buffers.len(), 3, "what could be reserved");
        let end = pool.region.base() as usize + 35 * MIB;
        assert!(buffers.iter().all(|buffer| buffer.base() as usize + buffer.len() <= end));
        assert!(pool.try_take(32 * MIB).is_none());
        buffers.drain(..).chain([floor]).for_each(|buffer| pool.put(buffer));
        pool.trim();
        // Others have taken what was given back.
        assert!(pool.try_take(32 * MIB).map(|buffer| pool.put(buffer)).is_some(), "but the floor");
        let floor = pool.try_take(32 * MIB).unwrap();
        assert!(pool.try_take(MIB).is_none());
        left.store(2 * MIB, Ordering::Relaxed);
        let again: Vec<_> = std::iter::from_fn(|| pool.try_take(MIB)).collect();
        assert_eq!((again.len(), pool.taken()), (2, 34 * MIB), "{:?}", reserved.lock().unwrap());
        again.into_iter().chain([floor]).for_each(|buffer| pool.put(buffer));
        assert_eq!(pool.taken(), 0);
    }
}
