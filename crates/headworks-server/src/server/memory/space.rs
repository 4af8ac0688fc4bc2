//! Memory of a shard that its filesystem may refuse: who asks for it, and what is said when there is none.
//!
//! The thread that prepares frames reserves them, makes their pages, and answers the shard (`Control::CacheMemory`), in this
//! order: no frame is used before it has space. A refusal is answered once, and logged once; the thread tries again until there is space.

use std::sync::Arc;

use headworks::driver::Span;
use headworks::house::{Mapping, Populator, display_size};
use headworks_cache_memory::FrameSpace;
use headworks_core::{Control, ShardId};

use super::policy::UNIT;
use crate::reactor::messages::ControlMessage;
use crate::reactor::shared::ServerShared;

/// Starts the thread that prepares the frames of a shard; with `space` it reserves them first. None if no thread can be had: then pages
/// are made when they are used, and the cache stays at what it has.
pub(crate) fn start_populator(
    shard: ShardId,
    frames: &Mapping,
    space: Option<FrameSpace>,
    (shared, name): (&Arc<ServerShared>, &str),
) -> Option<Populator> {
    let Some(space) = space else { return Populator::start().ok() };
    let (base, link, name) = (frames.base() as usize, Arc::clone(shared), name.to_owned());
    let (mut refused, mut said) = (false, false);
    let make = move |piece: Span| {
        let (at, len) = (piece.base() as usize - base, piece.len());
        let had = space.reserve(at, len);
        let (first, units) = ((at as u64 / UNIT) as u32, (len as u64 / UNIT) as u32);
        let control = Control::CacheMemory { first, units, had: had.is_ok() };
        match &had {
            Ok(()) => Populator::make(piece),
            Err(_) if refused => return false,
            Err(error) if !said => {
                let size = display_size(at as u64);
                tracing::warn!(
                    "{name}: {error}: the filesystem is nearly full, so the cache stays at about {size}; it grows on when there is room"
                );
                said = true;
            }
            Err(_) => {}
        }
        refused = had.is_err();
        link.send(shard, ControlMessage::Control(control));
        had.is_ok()
    };
    let started = Populator::start_with(make).ok();
    if started.is_none() {
        // Without an answer its operations would wait.
        let control = Control::CacheMemory { first: 0, units: 0, had: false };
        shared.send(shard, ControlMessage::Control(control));
    }
    started
}
