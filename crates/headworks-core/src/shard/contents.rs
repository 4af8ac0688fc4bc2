//! Handing the contents of a shard's cache to the shard of another process.

use super::Shard;
use crate::bio::{ExportId, VolumeId};
use crate::cache::{CacheContents, ContentsError};
use crate::time::Instant;

impl Shard {
    /// Whether the cache starts nothing of its own, after [`Control::Freeze`](crate::Control::Freeze).
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.is_frozen())
    }

    /// The contents of the cache, for [`Shard::adopt_cache`] of a new shard over the same frames; empty without a cache.
    ///
    /// # Errors
    /// The cache is not frozen, or something is outstanding.
    pub fn contents(&self, now: Instant) -> Result<CacheContents, ContentsError> {
        if !self.is_quiet() {
            return Err(ContentsError::new(
                "requests or write-outs are outstanding; wait for them",
            ));
        }
        match &self.cache {
            None => Ok(CacheContents::default()),
            Some(cache) if cache.is_frozen() => Ok(cache.contents(now)),
            Some(_) => Err(ContentsError::new("the cache is not frozen; freeze it first")),
        }
    }

    /// Adopts the contents of another shard's cache. This shard is new: it has handled nothing but controls. Its frames are those of
    /// the other one, with the same bytes, and its dirty table has the other one's entries.
    ///
    /// `volumes` and `connections` give the present ids of volumes and connections, `None` for one that is not served any more. Of a
    /// volume that is not served, not cached, not of this shard or of another size now, clean blocks are forgotten. A connection
    /// without a present id is a new one: it sees the errors of write-out that no connection has seen.
    ///
    /// Every volume of a device of this shard counts as written since its last flush. Where the id of a volume has changed, the
    /// entries of the dirty table follow with the actions of the first batch in which the cache is not frozen.
    ///
    /// # Errors
    /// The contents do not fit this shard, or a volume has dirty blocks that cannot be adopted. The shard is unchanged.
    pub fn adopt_cache(
        &mut self,
        now: Instant,
        contents: &CacheContents,
        volumes: impl Fn(VolumeId) -> Option<VolumeId>,
        exports: impl Fn(VolumeId) -> ExportId,
        connections: impl Fn(u32) -> Option<u32>,
    ) -> Result<(), ContentsError> {
        if !self.is_quiet() {
            return Err(ContentsError::new("the shard is in use; only a new one adopts contents"));
        }
        let at_home = |id: &VolumeId| self.volume(*id).is_none_or(|config| config.home == self.id);
        let ids: Vec<_> = contents
            .volumes()
            .iter()
            .map(|known| (known.volume, volumes(known.volume).filter(at_home)))
            .collect();
        let volumes = |old| {
            let place = ids.binary_search_by_key(&old, |&(old, _)| old);
            place.ok().and_then(|place| ids[place].1)
        };
        match &mut self.cache {
            Some(cache) => cache.adopt(now, contents, &volumes, &exports, &connections)?,
            None if contents.units() == 0 => {}
            None => return Err(ContentsError::new("there is no cache that could adopt contents")),
        }
        self.assume_written();
        Ok(())
    }

    /// Counts a write for every volume of an own device, so that the next flush reaches the device.
    fn assume_written(&mut self) {
        for route in &mut self.routes {
            if let super::route::DeviceRoute::Local(queue) = route {
                queue.assume_written();
            }
        }
    }
}
