//! The disk operations in flight: their requesters, and where the kernel finds their memory vectors.
//!
//! Everything is made at the start: `depth` slots, and for each of them room for [`SPANS_MAX`] vectors, which are not touched
//! before an operation uses them (16 KiB of address space a slot; memory only where an operation had several spans). The slot
//! last freed is used first, so few of them are ever warm. Nothing is allocated for an operation.
//!
//! Invariants: a slot is taken from `take` to `finish`; its vectors stay where they are and as they are in between.

use std::mem::MaybeUninit;
use std::ptr::NonNull;

use headworks_core::{DeviceId, RequestId};

use super::{DiskDone, DiskOp};
use crate::memory::Span;

/// Most spans in one operation: the kernel's UIO_MAXIOV, and the upper end of `max_segments`.
pub(crate) const SPANS_MAX: usize = 1024;

/// An operation's vectors, in the slot's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vectors {
    pub first: *const libc::iovec,
    pub count: u32,
}

impl Vectors {
    /// The spans that were copied. They are laid out as vectors.
    ///
    /// # Safety
    /// The slot is not free yet.
    pub unsafe fn spans<'a>(self) -> &'a [Span] {
        // SAFETY: as many were written there, and do not change before the slot is free.
        unsafe { std::slice::from_raw_parts(self.first.cast(), self.count as usize) }
    }
}

/// The table.
#[derive(Debug)]
pub(super) struct Ops {
    owners: Vec<(DeviceId, RequestId)>,
    free: Vec<u32>,
    /// `depth * SPANS_MAX` vectors. A raw pointer, because the kernel and the pool's threads read parts of it while we write
    /// others.
    vectors: NonNull<[MaybeUninit<Span>]>,
}

impl Ops {
    /// Room for `depth` operations.
    pub fn new(depth: usize) -> Self {
        let vectors = Box::leak(Box::new_uninit_slice(depth * SPANS_MAX));
        Self {
            owners: vec![Default::default(); depth],
            free: (0..depth as u32).rev().collect(),
            vectors: NonNull::from(vectors),
        }
    }

    /// How many are under way.
    pub fn in_flight(&self) -> usize {
        self.owners.len() - self.free.len()
    }

    /// A slot for `op`, with its spans copied; `None` when all are taken.
    pub fn take(&mut self, op: &DiskOp, spans: &[Span]) -> Option<(u32, Vectors)> {
        assert!(spans.len() <= SPANS_MAX, "max_segments has this bound");
        let slot = self.free.pop()?;
        self.owners[slot as usize] = (op.device, op.id);
        // SAFETY: the slot's part of the allocation, which is not read while the slot is free. `Span` is laid out as iovec.
        let first = unsafe {
            let first = self.vectors.cast::<Span>().add(slot as usize * SPANS_MAX);
            first.copy_from_nonoverlapping(NonNull::from(spans).cast(), spans.len());
            first.as_ptr().cast_const().cast()
        };
        let count = spans.len() as u32;
        Some((slot, Vectors { first, count }))
    }

    /// The operation in `slot` ended with `result`.
    pub fn finish(&mut self, slot: u32, result: i32) -> DiskDone {
        let (device, id) = self.owners[slot as usize];
        assert!(self.free.len() < self.owners.len(), "something is under way");
        self.free.push(slot);
        DiskDone { device, id, result }
    }
}

impl Drop for Ops {
    fn drop(&mut self) {
        // SAFETY: made by `Box::leak` in `new`; the engine has waited for all users before it drops the table.
        drop(unsafe { Box::from_raw(self.vectors.as_ptr()) });
    }
}
