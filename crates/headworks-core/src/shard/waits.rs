//! What outstanding bios wait for now: for a client that asks.
//!
//! Rule: nothing is kept for it, so that an I/O costs nothing more. A call walks the tables that exist: once all requests, and for each
//! bio that is asked about the operations of the cache and the bios.
//!
//! ```text
//!   client's bio: operation of the cache --the bio that it waits for--> request --> plug | tag | sched | device
//!                  `-- dirty | cache                                     `-- the device is another shard's: ask that shard
//! ```

use super::route::{DeviceRoute, VolumeEntry};
use crate::bio::{BioFlags, BioId, DeviceId, Op, VolumeId};
use crate::cache::{Cache, OperationWait};
use crate::options::VolumeConfig;
use crate::pools::Pools;
use crate::request::{BioOrigin, BioSlot, RequestState};
use crate::slab::NIL;
use crate::wait_times::WaitKind;

/// What a bio waits for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BioWait {
    /// What the wait counts as when it has ended.
    pub kind: WaitKind,
    /// The device that the bio is for.
    pub device: DeviceId,
    /// The device is another shard's, which knows more of this bio if it has it already.
    pub sent_on: Option<BioId>,
}

/// The waits of the bios of a shard, for one call.
pub(super) struct BioWaits<'a> {
    pools: &'a Pools,
    volumes: &'a [VolumeEntry],
    routes: &'a [DeviceRoute],
    cache: Option<&'a Cache>,
    /// By slot of a bio: how far its request has come, of several requests the furthest.
    kinds: Vec<Option<WaitKind>>,
}

impl<'a> BioWaits<'a> {
    /// Walks over all requests.
    pub fn new(
        pools: &'a Pools,
        volumes: &'a [VolumeEntry],
        routes: &'a [DeviceRoute],
        cache: Option<&'a Cache>,
    ) -> Self {
        Self { pools, volumes, routes, cache, kinds: kinds_of_bios(pools) }
    }

    /// What a bio waits for; `None` if it is not here.
    pub fn of(&self, id: BioId) -> Option<BioWait> {
        let operation = self.cache.and_then(|cache| cache.operation_wait(id));
        let Some((volume, wait)) = operation else {
            let is_it = |entry: &BioSlot| {
                is_same(entry.bio.id, id) && !matches!(entry.origin, BioOrigin::Cache { .. })
            };
            return self.bios_in(is_it).find_map(|(slot, _)| self.below(slot));
        };
        let own = |slot: u32| move |entry: &BioSlot| matches!(entry.origin, BioOrigin::Cache { cookie } if cookie == slot);
        let found = match wait {
            OperationWait::For(kind) => {
                let device = self.volume(volume)?.device;
                return Some(BioWait { kind, device, sent_on: None });
            }
            OperationWait::OwnBio(slot) => self.furthest(own(slot)),
            OperationWait::Frames(unit) => self.of_frames(volume, unit),
            OperationWait::Others => None,
        };
        let of_volume = |entry: &BioSlot| {
            entry.bio.id.volume == volume && matches!(entry.origin, BioOrigin::Cache { .. })
        };
        let device = self.volume(volume)?.device;
        let in_cache = BioWait { kind: WaitKind::Cache, device, sent_on: None };
        found.or_else(|| self.furthest(of_volume)).or(Some(in_cache))
    }

    fn volume(&self, volume: VolumeId) -> Option<&VolumeConfig> {
        self.volumes.get(usize::from(volume.0))?.volume()
    }

    /// The bio of the cache's own that fills or writes the folio at `unit`: it covers that, or begins behind it in the folio.
    fn of_frames(&self, volume: VolumeId, unit: u32) -> Option<BioWait> {
        let distance = |entry: &BioSlot| {
            let first = entry.bio.id.unit().filter(|_| entry.bio.id.volume == volume)?;
            let blocks = entry.bio.len.div_ceil(crate::cache::folio::BLOCK);
            match first <= unit {
                true => (unit - first < blocks).then_some(0),
                false => Some(first - unit),
            }
        };
        let known = self.bios_in(|_| true);
        let near = known.filter_map(|(slot, entry)| Some((slot, distance(entry)?)));
        near.min_by_key(|(_, distance)| *distance).and_then(|(slot, _)| self.below(slot))
    }

    /// Of some bios the one that has come furthest.
    fn furthest(&self, is_meant: impl Fn(&BioSlot) -> bool) -> Option<BioWait> {
        let meant = self.bios_in(is_meant).filter_map(|(slot, _)| self.below(slot));
        meant.max_by_key(|wait| wait.kind as usize)
    }

    fn bios_in(
        &self,
        is_meant: impl Fn(&BioSlot) -> bool,
    ) -> impl Iterator<Item = (u32, &BioSlot)> {
        let bios = &self.pools.bios;
        let taken = (0..bios.places()).filter(|slot| bios.is_taken(*slot));
        taken.map(|slot| (slot, &bios[slot])).filter(move |(_, entry)| is_meant(entry))
    }

    /// What a bio waits for below the cache.
    fn below(&self, slot: u32) -> Option<BioWait> {
        let bio = &self.pools.bios[slot].bio;
        let device = self.volume(bio.id.volume)?.device;
        let is_remote =
            matches!(self.routes.get(usize::from(device.0)), Some(DeviceRoute::Remote(_)));
        let flushes = bio.op == Op::Flush || bio.flags.contains(BioFlags::FUA);
        let kind = match self.kinds.get(slot as usize).copied().flatten() {
            Some(kind) => kind,
            // It waits for tags here, unless the shard of the device has it.
            None if is_remote => WaitKind::Tag,
            // It waits for a flush of the device, its own or one before.
            None if flushes => WaitKind::Device,
            // A change of options holds it back.
            None => WaitKind::Plug,
        };
        Some(BioWait { kind, device, sent_on: is_remote.then_some(bio.id) })
    }
}

/// By slot of a bio: how far its request has come, of several requests the furthest.
fn kinds_of_bios(pools: &Pools) -> Vec<Option<WaitKind>> {
    let (bios, slots) = (&pools.bios, &pools.slots);
    let mut kinds: Vec<Option<WaitKind>> = vec![None; bios.places() as usize];
    for id in (0..slots.places()).filter(|id| slots.is_taken(*id)) {
        let request = &slots[id];
        let kind = match request.state {
            RequestState::Free | RequestState::Split => continue,
            RequestState::Plugged => WaitKind::Plug,
            RequestState::Waiting => WaitKind::Tag,
            RequestState::Queued => WaitKind::Scheduler,
            RequestState::InFlight => WaitKind::Device,
        };
        let mut next = Some(request.bios.head).filter(|slot| *slot != NIL);
        for _ in 0..request.bios.count {
            let Some(slot) = next else { break };
            let known = &mut kinds[slot as usize];
            if known.is_none_or(|known| (known as usize) < kind as usize) {
                *known = Some(kind);
            }
            next = pools.bio_after(slot, request.bios.tail);
        }
    }
    kinds
}

/// Whether both name one bio of a client: where it goes on on the base of its volume, it has another volume.
fn is_same(a: BioId, b: BioId) -> bool {
    (a.connection, a.sequence) == (b.connection, b.sequence)
}
