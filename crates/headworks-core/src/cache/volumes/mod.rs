//! The cached volumes of a shard: sizes, generations, errors, truncations, bases; and which errors each connection has seen.
//!
//! Tables reach to the last slot that was ever used, so spare slots cost nothing.

mod errors;
mod layer;
mod truncation;
mod volume;

pub(in crate::cache) use layer::Layer;
pub(in crate::cache) use truncation::Truncation;
pub(in crate::cache) use volume::{CachedVolume, GENERATIONS};

use crate::bio::{Bio, BioFlags, DeviceId, Op, VolumeId};
use crate::cache::context::DeviceCaching;
use crate::gauge::Gauge32;
use crate::options::{ShardConfig, VolumeConfig};
use crate::time::Instant;

/// How far a connection has seen the errors of a volume.
#[derive(Clone, Copy, Debug, Default)]
struct SeenErrors {
    /// The connection and the volume; a server's own flushes are one connection for all volumes.
    of: Option<(u32, VolumeId)>,
    /// Its position in the volume's error sequence.
    position: u32,
}

/// The volumes of a cache, and how their devices' blocks are cached.
#[derive(Debug)]
pub(in crate::cache) struct Volumes {
    entries: Vec<CachedVolume>,
    devices: Vec<DeviceCaching>,
    /// By writer of the throttle, which is a connection.
    seen_errors: Vec<SeenErrors>,
    /// Volumes with a truncation in progress.
    truncations: Gauge32,
    /// Counts, wrapping, how often a volume began or ceased to hold blocks.
    held_changes: u32,
    /// Volumes whose streams leave the cache behind them.
    behind: Gauge32,
}

impl std::ops::Index<VolumeId> for Volumes {
    type Output = CachedVolume;

    #[inline]
    fn index(&self, volume: VolumeId) -> &CachedVolume {
        &self.entries[usize::from(volume.0)]
    }
}

impl std::ops::IndexMut<VolumeId> for Volumes {
    #[inline]
    fn index_mut(&mut self, volume: VolumeId) -> &mut CachedVolume {
        &mut self.entries[usize::from(volume.0)]
    }
}

impl Volumes {
    /// Creates the volumes of a configuration; `writers`: connections that may have a position.
    pub fn new(config: &ShardConfig, writers: u32) -> Self {
        let devices = config.devices.iter().map(|device| DeviceCaching::of(&device.queue));
        let entries: Vec<_> = config.volumes.iter().map(CachedVolume::new).collect();
        let mut behind = Gauge32::default();
        behind.add(entries.iter().filter(|entry| entry.drops_behind()).count() as u32);
        Self {
            entries,
            devices: devices.collect(),
            seen_errors: vec![SeenErrors::default(); writers as usize + 1],
            truncations: Gauge32::default(),
            held_changes: 0,
            behind,
        }
    }

    /// Returns the number of volume slots.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Iterates over the ids of all slots.
    pub fn ids(&self) -> impl Iterator<Item = VolumeId> + use<> {
        (0..self.entries.len()).map(|index| VolumeId(index as u16))
    }

    /// Returns the volume in a slot that may not exist.
    pub fn get(&self, volume: VolumeId) -> Option<&CachedVolume> {
        self.entries.get(usize::from(volume.0))
    }

    /// Returns the number of device slots.
    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    /// Returns the index of a volume's device.
    #[inline]
    pub fn device_index(&self, volume: VolumeId) -> usize {
        usize::from(self[volume].device().0)
    }

    /// Sets the size of a volume, in bytes. What it loses or gets is not shared with a base, nor with volumes on it.
    pub fn set_size(&mut self, volume: VolumeId, size: u64) {
        self[volume].set_size(size);
        for (id, entry) in (0..).map(VolumeId).zip(&mut self.entries) {
            if let Some(layer) = entry.layer_mut()
                && (id == volume || layer.base() == volume)
            {
                layer.resize(size);
            }
        }
    }

    /// Notes the blocks that a bio changes, if `notes`, and gives a read that its volume shares with its base the id of the base.
    #[inline]
    pub fn lead_to_base(&mut self, bio: &mut Bio, notes: bool) {
        if self[bio.id.volume].layer().is_some() {
            if notes && bio.op.is_write() {
                self.note_change(bio);
            }
            bio.id.volume = self.read_volume(bio);
        }
    }

    fn note_change(&mut self, bio: &Bio) {
        if let Some(layer) = self[bio.id.volume].layer_mut() {
            layer.note_change(bio.offset, bio.len.into());
            debug_assert!(layer.base_of(bio.offset, bio.len.into()).is_none(), "a change is seen");
        }
    }

    /// Returns the volume on which a bio goes on: the lowest one that has all of a read's bytes, or its own. A base may be on a base
    /// itself. The way down ends: a volume is put only on one that was there before and never changes its base.
    #[inline]
    pub fn read_volume(&self, bio: &Bio) -> VolumeId {
        let mut volume = bio.id.volume;
        // A direct read drops what is cached, which others use.
        let shares = matches!(bio.op, Op::Read | Op::Prefetch);
        if !shares || bio.flags.contains(BioFlags::DIRECT) {
            return volume;
        }
        while let Some(layer) = self.get(volume).and_then(|entry| entry.layer())
            && let Some(base) = layer.base_of(bio.offset, bio.len.into())
        {
            debug_assert!(!self[base].is_free_slot(), "a base stays below its volumes");
            volume = base;
        }
        volume
    }

    /// Returns true if a volume is the base of another one.
    pub fn has_layers(&self, base: VolumeId) -> bool {
        self.entries.iter().any(|entry| entry.layer().is_some_and(|layer| layer.base() == base))
    }

    /// Returns true if a volume is on a device.
    pub fn is_on(&self, volume: VolumeId, device: usize) -> bool {
        self.device_index(volume) == device
    }

    /// Returns how a volume's blocks are cached.
    pub fn caching(&self, volume: VolumeId) -> DeviceCaching {
        self.devices[self.device_index(volume)]
    }

    /// Sets how the blocks of a device's volumes are cached.
    pub fn set_caching(&mut self, device: usize, read_ahead_kb: u32, max_folio_order: u8) {
        if let Some(known) = self.devices.get_mut(device) {
            *known = DeviceCaching { read_ahead_kb, max_folio_order, ..*known };
        }
    }

    /// Sets how long an operation may wait for something of a device.
    pub fn set_io_timeout(&mut self, device: usize, io_timeout_ns: u64) {
        debug_assert!(io_timeout_ns > 0, "an operation may wait for some time");
        if let Some(known) = self.devices.get_mut(device) {
            known.io_timeout_ns = io_timeout_ns;
        }
    }

    /// Adds a device to a free slot.
    pub fn add_device(&mut self, device: DeviceId, caching: DeviceCaching) {
        let index = usize::from(device.0);
        if self.devices.len() <= index {
            self.devices.resize(index + 1, caching);
        }
        self.devices[index] = caching;
    }

    /// Adds a volume to a free slot.
    pub fn add(&mut self, volume: VolumeId, config: &VolumeConfig) {
        for _ in self.entries.len()..=usize::from(volume.0) {
            self.entries.push(CachedVolume::free_slot());
        }
        assert!(self[volume].is_free_slot(), "a volume is added to a free slot");
        self[volume].replace(CachedVolume::new(config));
        self.behind.add(u32::from(self[volume].drops_behind()));
    }

    /// Frees the slot of a volume of which nothing is cached.
    pub fn remove(&mut self, volume: VolumeId) {
        assert!(!self[volume].is_free_slot(), "there is a volume to remove");
        self.set_truncation(volume, None);
        self.behind.sub(u32::from(self[volume].drops_behind()));
        self[volume].replace(CachedVolume::free_slot());
    }

    /// Returns true if streams of some volume leave the cache behind them.
    #[inline]
    pub fn any_drops_behind(&self) -> bool {
        !self.behind.is_zero()
    }

    /// Counts held blocks of a volume that were added or released.
    pub fn count_held(&mut self, volume: VolumeId, more: u32, less: u32) {
        let changed = self[volume].count_held(more, less);
        self.held_changes = self.held_changes.wrapping_add(u32::from(changed));
    }

    /// Returns a counter that changes whenever a volume begins or ceases to hold blocks.
    pub fn held_changes(&self) -> u32 {
        self.held_changes
    }

    /// Returns the held blocks of all volumes.
    pub fn held(&self) -> u64 {
        self.entries.iter().map(|volume| u64::from(volume.held())).sum()
    }

    /// Returns the time of the next retry of held blocks.
    pub fn next_retry(&self) -> Option<Instant> {
        self.entries.iter().filter_map(CachedVolume::retry_at).min()
    }

    /// Starts a connection's position at the volume's current error, unless it has one.
    pub fn begin_errors(&mut self, writer: u32, bio: &Bio) {
        let of = Some((bio.id.connection, bio.id.volume));
        if self.seen_errors[writer as usize].of != of {
            let position = self[bio.id.volume].errors().sample();
            self.seen_errors[writer as usize] = SeenErrors { of, position };
        }
    }

    /// Returns a connection's position in the errors of its volume.
    pub fn seen_errors(&self, writer: u32) -> u32 {
        self.seen_errors[writer as usize].position
    }

    /// Iterates over the positions of connections in the errors of their volumes.
    pub fn positions(&self) -> impl Iterator<Item = (u32, VolumeId, u32)> + use<'_> {
        let known = self.seen_errors.iter().filter_map(|seen| Some((seen.of?, seen.position)));
        known.map(|((connection, volume), position)| (connection, volume, position))
    }

    /// Sets the position of a connection of another process.
    pub fn adopt_position(&mut self, writer: u32, of: (u32, VolumeId), position: u32) {
        debug_assert!(!self[of.1].is_free_slot(), "there is a volume");
        self.seen_errors[writer as usize] = SeenErrors { of: Some(of), position };
    }

    /// Sets the position of a bio's connection in the errors of its volume.
    pub fn set_seen_errors(&mut self, writer: u32, bio: &Bio, position: u32) {
        debug_assert!(!self[bio.id.volume].is_free_slot());
        self.begin_errors(writer, bio);
        self.seen_errors[writer as usize].position = position;
    }

    /// Returns true if a truncation is in progress.
    #[inline]
    pub fn is_truncating(&self) -> bool {
        !self.truncations.is_zero()
    }

    /// Returns the truncation of a volume, if one is in progress.
    pub fn truncation(&self, volume: VolumeId) -> Option<Truncation> {
        let truncation = self[volume].truncation;
        debug_assert!(truncation.is_none() || self.is_truncating(), "every truncation is counted");
        truncation
    }

    /// Sets or ends the truncation of a volume.
    pub fn set_truncation(&mut self, volume: VolumeId, truncation: Option<Truncation>) {
        let before = std::mem::replace(&mut self[volume].truncation, truncation);
        match (before.is_some(), truncation.is_some()) {
            (false, true) => self.truncations.add(1),
            (true, false) => self.truncations.sub(1),
            _ => {}
        }
    }
}
