//! The payload that comes, as far as it concerns the intake alone: its bytes, its block, and the log line of a write that ends here.
//! Where memory for it comes from, and when a part of it is given, is decided with the shares of the shard.

use headworks::driver::Span;
use headworks_core::ExportId;
use headworks_house::{Buffer, Pool};

use super::Intake;
use crate::memory::{KeptPayload, WINDOW_MAX, Wanted};
use crate::request::FrontRequest;

impl Intake {
    /// Free part of the block of the payload that comes.
    #[inline]
    #[must_use]
    pub fn payload_rest(&self) -> Option<Span> {
        self.waiting.last().filter(|last| last.awaits_client())?.rest()
    }

    /// Whether the client is to send more of a payload.
    #[inline]
    #[must_use]
    pub fn awaits_payload(&self) -> bool {
        self.waiting.last().is_some_and(FrontRequest::awaits_client)
    }

    /// Whether the payload of a write has begun, and the write is not in the shard.
    #[must_use]
    pub fn has_payload(&self) -> bool {
        self.waiting.last().is_some_and(FrontRequest::has_payload)
    }

    /// Whether a payload has begun and the client is to send more of it.
    #[must_use]
    pub fn has_incomplete_payload(&self) -> bool {
        self.waiting
            .last()
            .is_some_and(|last| last.has_payload() && last.payload.got < last.request.len)
    }

    /// The payload, of a write to an export, that the shard does not have yet, and what it keeps.
    #[must_use]
    pub fn kept_payload(&self, export: ExportId) -> Option<KeptPayload> {
        let last = self.waiting.last().filter(|last| last.has_payload())?;
        let bytes = last.payload.block.as_ref().map_or(0, |block| block.len());
        Some(KeptPayload { export, bytes })
    }

    /// Takes bytes of the payload that comes; returns their number.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        match self.waiting.last_mut() {
            Some(last) if last.awaits_client() => last.fill(bytes),
            _ => 0,
        }
    }

    /// Counts bytes that were received into the block of the payload.
    #[inline]
    pub fn note_placed(&mut self, bytes: usize) {
        if bytes > 0
            && let Some(last) = self.waiting.last_mut()
        {
            last.payload.got += bytes as u32;
        }
    }

    /// Returns the block of a payload that is dropped.
    pub fn return_block(&mut self, block: Buffer, pool: &mut Pool) {
        self.discharge(block.len());
        pool.put(block);
    }

    /// Returns the block of a payload whose rest is dropped.
    pub fn drop_block(&mut self, one: &mut FrontRequest, pool: &mut Pool) {
        if let Some(block) = one.payload.block.take() {
            self.return_block(block, pool);
        }
    }

    /// Returns what lies behind the first `len` bytes of a block.
    ///
    /// # Safety
    /// Nothing uses what lies behind them.
    pub unsafe fn cut(&mut self, block: &mut Buffer, len: usize, pool: &mut Pool) {
        let before = block.len();
        // SAFETY: the caller's promise.
        unsafe { pool.cut(block, len) };
        self.discharge(before - block.len());
    }

    /// Shortens the part of a payload that may not grow, or is beyond its window, to the whole blocks of `align` bytes that have come,
    /// so that it is given.
    pub fn shorten_payload(&mut self, window: u32, align: u32) {
        if window >= WINDOW_MAX {
            return;
        }
        let window = window.max(align) as usize;
        if let Some(last) = self.waiting.last_mut()
            && last.payload.block.as_ref().is_some_and(|block| block.len() > window)
        {
            self.counts.written_early += u32::from(last.shorten_part(align));
        }
    }

    /// Ends the part of a payload that may not grow after the whole blocks of `align` bytes that have come; false if that is nothing.
    pub fn end_early(&mut self, one: &mut FrontRequest, align: u32) -> bool {
        let ends = one.shorten_part(align);
        self.counts.written_early += u32::from(ends);
        ends
    }

    /// Whether a payload keeps more than a window, which has at least `align` bytes.
    #[must_use]
    pub fn is_beyond(&self, window: u32, align: u32) -> bool {
        let window = window.max(align) as usize;
        let last = self.waiting.last().filter(|last| !last.part_is_whole());
        last.is_some_and(|last| {
            last.payload.block.as_ref().is_some_and(|block| block.len() > window)
        })
    }

    /// Returns the part of an incomplete payload's block in which nothing has come. The next receive claims it again.
    pub fn cut_payload(&mut self, pool: &mut Pool) {
        let Some(one) = self.waiting.last_mut() else { return };
        let kept = one.kept();
        if !one.awaits_client() {
            return;
        }
        let Some(mut block) = one.payload.block.take() else { return };
        let before = self.block_bytes;
        if kept == 0 {
            self.counts.cut += 1;
            return self.return_block(block, pool);
        }
        // SAFETY: nothing has come behind these bytes, and no receive is in progress.
        unsafe { self.cut(&mut block, kept, pool) };
        assert!(block.len() >= kept, "what has come stays");
        self.counts.cut += u32::from(self.block_bytes < before);
        if let Some(one) = self.waiting.last_mut() {
            one.payload.block = Some(block);
        }
    }

    /// What a write that ends here without a reply has changed, as a sentence for the log; none if no piece of one was given.
    #[must_use]
    pub fn torn_write(&self) -> Option<String> {
        let one =
            self.waiting.last().filter(|one| one.payload.split != 0 && one.payload.given > 0)?;
        let (given, len, offset) = (one.payload.given, one.request.len, one.request.offset);
        Some(format!(
            "connection ended in the middle of a write: {given} of {len} bytes at {offset} were written"
        ))
    }

    /// Tells the same once: a connection that ends is closed in several steps.
    pub fn take_torn_write(&mut self) -> Option<String> {
        let sentence = self.torn_write()?;
        if let Some(one) = self.waiting.last_mut() {
            one.payload.split = 0;
        }
        Some(sentence)
    }
}

/// The memory that a payload waits for: a block for what has come beyond a part that is whole, or more for its part.
pub(super) fn wanted(one: &FrontRequest, guaranteed: usize) -> Wanted {
    let block = |len: usize| Pool::block_bytes(len).unwrap_or(Pool::LARGEST);
    if !one.part_is_whole() {
        let bytes = block(one.next_growth());
        let from = one.payload.block.as_ref().map_or(0, |block| block.len());
        let window = match one.payload.given {
            0 if one.payload.within => 0,
            0 => one.request.len,
            _ => u32::MAX,
        };
        return Wanted::Growth { from, to: bytes, window, for_others: one.payload.for_others };
    }
    match block((one.payload.got - one.payload.part) as usize) {
        bytes if bytes > guaranteed => Wanted::Block { bytes, reads: false },
        bytes => Wanted::Chunk { bytes },
    }
}
