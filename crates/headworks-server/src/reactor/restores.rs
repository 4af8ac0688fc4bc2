//! Blocks of dead servers, written into this shard's cache before clients are served.
//!
//! Each block is a bio of a connection that no client has; its buffer is the dead server's frame. So the blocks pass the cache as
//! any write does: they are dirty, in the dirty table, and written out as the limits ask. The dead server's memory stays as it
//! is until every shard has finished.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use headworks::driver::Span;
use headworks_cache_memory::LeftCache;
use headworks_core::{Bio, BioId, Input, IoError, Op, Status, VolumeId};

use super::driver::ShardDriver;
use super::shard_io::ShardIo;
use crate::clients::connection_id::RESTORES;

/// Blocks in flight at once.
const DEPTH: usize = 256;

/// The outcome of a shard's restores.
pub type RestoreResult = Result<(), (VolumeId, IoError)>;

/// A volume to restore: its id here, and where its blocks are.
pub struct VolumeRestore {
    /// The volume of this server.
    pub volume: VolumeId,
    /// The volume of the dead server.
    pub left: VolumeId,
    /// Size of the image in bytes.
    pub size: u64,
    /// The memory of the dead server.
    pub cache: Arc<LeftCache>,
}

/// The blocks that a shard has to restore.
pub struct Restores {
    queue: VecDeque<(VolumeId, u64, Span)>,
    in_flight: usize,
    sequence: u64,
    failed: Option<(VolumeId, IoError)>,
    /// The memories of dead servers, kept while their blocks are used, and the volumes there.
    sources: Vec<(Arc<LeftCache>, VolumeId)>,
    /// Told the outcome at the end.
    done: Sender<RestoreResult>,
}

impl Restores {
    /// The blocks of these volumes.
    pub fn new(volumes: Vec<VolumeRestore>, done: Sender<RestoreResult>) -> Self {
        let mut queue = VecDeque::new();
        for VolumeRestore { volume, left, size, cache } in &volumes {
            queue.extend(cache.blocks(*left, *size).map(|block| {
                let base = block.bytes.as_ptr().cast_mut();
                // SAFETY: the frame is in a mapping that `sources` keeps; it is only read, and no other code writes it.
                let span = unsafe { Span::new(base, block.bytes.len()) };
                (*volume, block.block, span)
            }));
        }
        let sources = volumes.into_iter().map(|restore| (restore.cache, restore.left)).collect();
        Self { queue, in_flight: 0, sequence: 0, failed: None, sources, done }
    }

    /// Submits as many blocks as may be in flight.
    fn submit(&mut self, driver: &mut ShardDriver, io: &mut ShardIo) {
        // Write-out may begin meanwhile: the images change by us, not by others.
        self.sources.iter().for_each(|(cache, volume)| cache.touch(*volume));
        while self.in_flight < DEPTH
            && let Some((volume, block, span)) = self.queue.pop_front()
        {
            let id =
                BioId { connection: RESTORES, volume, sequence: self.sequence, ..BioId::default() };
            self.sequence += 1;
            self.in_flight += 1;
            io.insert_foreign(id, span);
            let offset = block * u64::from(headworks_core::cache::folio::BLOCK);
            let len = span.len() as u32;
            let bio = Bio { id, op: Op::Write, offset, len, ..Bio::default() };
            driver.push(Input::Bio(bio));
        }
    }

    /// Takes the answer to a block.
    fn on_answer(&mut self, id: BioId, status: Status) {
        assert!(self.in_flight > 0, "a block was submitted");
        self.in_flight -= 1;
        if let Err(error) = status {
            self.failed.get_or_insert((id.volume, error));
            // What is left stays where it is.
            self.queue.clear();
        }
    }

    /// Continues; true at the end.
    pub fn advance(&mut self, driver: &mut ShardDriver, io: &mut ShardIo) -> bool {
        for (id, status) in io.take_restored() {
            self.on_answer(id, status);
        }
        self.submit(driver, io);
        if self.in_flight > 0 {
            return false;
        }
        driver.push(Input::Close { connection: RESTORES });
        let _ = self.done.send(self.failed.map_or(Ok(()), Err));
        true
    }
}
