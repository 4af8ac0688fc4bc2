//! Blocks of dead servers, written into this shard's cache before clients are served.
//!
//! Each block is a bio of a connection that no client has; its buffer is the dead server's frame. So the blocks pass the cache as
//! any write does: they are dirty, in the dirty table, and written out as the limits ask. A block that is in ours is forgotten in the dead
//! server's: however many servers die while they restore, what they leave together is each block once.

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

/// A block to restore.
struct BlockRestore {
    volume: VolumeId,
    block: u64,
    /// Its bytes in the memory of the dead server.
    span: Span,
    /// Index of that memory in the sources, and its entry there.
    from: (usize, usize),
}

/// The blocks that a shard has to restore.
pub struct Restores {
    blocks: Vec<BlockRestore>,
    /// The first that was not submitted. The sequence of a bio is the index of its block.
    next: usize,
    in_flight: usize,
    failed: Option<(VolumeId, IoError)>,
    /// The memories of dead servers, kept while their blocks are used, and the volumes there.
    sources: Vec<(Arc<LeftCache>, VolumeId)>,
    /// Told the outcome at the end.
    done: Sender<RestoreResult>,
}

impl Restores {
    /// The blocks of these volumes.
    pub fn new(volumes: Vec<VolumeRestore>, done: Sender<RestoreResult>) -> Self {
        let mut blocks = Vec::new();
        for (index, VolumeRestore { volume, left, size, cache }) in volumes.iter().enumerate() {
            blocks.extend(cache.blocks(*left, *size).map(|block| {
                let base = block.bytes.as_ptr().cast_mut();
                // SAFETY: the frame is in a mapping that `sources` keeps; it is only read, and no other code writes it.
                let span = unsafe { Span::new(base, block.bytes.len()) };
                let from = (index, block.entry);
                BlockRestore { volume: *volume, block: block.block, span, from }
            }));
        }
        let sources = volumes.into_iter().map(|restore| (restore.cache, restore.left)).collect();
        Self { blocks, next: 0, in_flight: 0, failed: None, sources, done }
    }

    /// Submits as many blocks as may be in flight.
    fn submit(&mut self, driver: &mut ShardDriver, io: &mut ShardIo) {
        // Write-out may begin meanwhile: the images change by us, not by others.
        self.sources.iter().for_each(|(cache, volume)| cache.touch(*volume));
        while self.in_flight < DEPTH
            && let Some(BlockRestore { volume, block, span, .. }) = self.blocks.get(self.next)
        {
            let (volume, sequence) = (*volume, self.next as u64);
            let id = BioId { connection: RESTORES, volume, sequence, ..BioId::default() };
            self.next += 1;
            self.in_flight += 1;
            io.insert_foreign(id, *span);
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
        match status {
            Ok(()) => {
                let (source, entry) = self.blocks[id.sequence as usize].from;
                self.sources[source].0.settle_block(entry);
            }
            Err(error) => {
                self.failed.get_or_insert((id.volume, error));
                // What is left stays where it is.
                self.next = self.blocks.len();
            }
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
