//! What other shards send: requests for a device that is here, answers, tags on loan and changes.

use super::Shard;
use crate::action::Action;
use crate::bio::{Bio, ShardId};
use crate::error::IoError;
use crate::input::{Message, ReplyStage};
use crate::plug::PlugBio;
use crate::queue::LeaseRequest;
use crate::remote::waited_ns;
use crate::request::{BioOrigin, BioSlot};
use crate::slab::NIL;
use crate::time::Instant;
use crate::wait_times::WaitTimes;

impl Shard {
    pub(super) fn on_message(&mut self, now: Instant, from: ShardId, message: Message) {
        match message {
            Message::Bio { bio, cookie, tags, waited } => {
                self.on_remote_bio(now, from, bio, (cookie, tags, waited));
            }
            Message::Done { cookie, id, status, hole, stage, wait_times } => {
                let Some(config) = self.volume(id.volume) else {
                    return;
                };
                let Some((remote, pools)) = self.remote(config.device) else {
                    return;
                };
                let known = pools.bios.is_taken(cookie) && pools.bios[cookie].bio.id == id;
                assert!(known, "a shard completes only bios that were sent to it");
                pools.bios[cookie].wait_times = pools.bios[cookie].wait_times.and(wait_times);
                remote.on_done(pools, cookie, status, hole, stage);
            }
            Message::TagWant { device, want, bytes, cost, tenant, weight, target_us } => {
                if let Some((queue, pools)) = self.local(device) {
                    queue.on_lease_request(
                        now,
                        pools,
                        from,
                        LeaseRequest { tags: want, bytes, cost, tenant, weight, target_us },
                    );
                }
            }
            Message::TagReturn { device, count } => {
                if let Some((queue, _)) = self.local(device) {
                    queue.on_tag_return(from, count);
                }
            }
            Message::TagGrant { device, count, cost } => {
                if let Some((remote, pools)) = self.remote(device) {
                    remote.on_grant(now, pools, count, cost);
                }
            }
            Message::Limits { device, nr_requests, max_sectors_kb, share, io_timeout_ns } => {
                if self.is_owned_by(device, from)
                    && let Some((remote, _)) = self.remote(device)
                {
                    remote.on_limits(nr_requests, max_sectors_kb, share, io_timeout_ns);
                    if let Some(cache) = &mut self.cache {
                        cache.set_io_timeout(usize::from(device.0), io_timeout_ns);
                    }
                }
            }
            Message::DeviceState { device, state, unresponsive } => {
                if self.is_owned_by(device, from)
                    && let Some((remote, pools)) = self.remote(device)
                {
                    remote.on_state(now, pools, (state, unresponsive));
                }
            }
            Message::Caching { device, read_ahead_kb, max_folio_order } => {
                if self.is_owned_by(device, from)
                    && let Some(cache) = &mut self.cache
                {
                    cache.set_caching(usize::from(device.0), read_ahead_kb, max_folio_order);
                }
            }
            Message::TagRevoke { device } => {
                if let Some((remote, pools)) = self.remote(device) {
                    remote.on_revoke(pools);
                }
            }
        }
    }

    pub(super) fn on_remote_bio(
        &mut self,
        now: Instant,
        from: ShardId,
        bio: Bio,
        (cookie, tags, waited): (u32, u16, u8),
    ) {
        let config = self.volume(bio.id.volume);
        let Some(device) = config.map(|config| config.device).filter(|&d| self.queue(d).is_some())
        else {
            // Shards learn of a removal at different times.
            return self.refuse(from, &bio, cookie, IoError::Invalid);
        };
        let origin = BioOrigin::Shard { shard: from, cookie };
        // What this shard's own cache was promised is not given away.
        let kept = self.cache.as_ref().map_or(0, |cache| cache.kept());
        let bios = &mut self.pools.bios;
        let free = bios.capacity() - bios.taken();
        let slot = if free > kept { bios.try_take() } else { None };
        let Some(slot) = slot else {
            return self.refuse(from, &bio, cookie, IoError::NoMemory);
        };
        self.pools.bios[slot] = BioSlot { bio, next: NIL, origin, tags, ..BioSlot::default() };
        self.touched |= 1 << device.0;
        let waited = self.queue(device).map_or(0, |queue| waited_ns(queue.options(), waited));
        let waits_since = Instant(now.0.saturating_sub(waited));
        self.enter(now, device, &PlugBio { bio: &bio, slot, since: now, waits_since, tags });
    }

    /// Completes another shard's bio with an error.
    pub(super) fn refuse(&mut self, to: ShardId, bio: &Bio, cookie: u32, error: IoError) {
        let (id, status, stage, wait_times) =
            (bio.id, Err(error), ReplyStage::Final, WaitTimes::NONE);
        let message = Message::Done { cookie, id, status, hole: false, stage, wait_times };
        self.pools.actions.list.push(Action::Send { to, message });
    }
}
