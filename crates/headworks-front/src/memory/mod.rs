//! Shares of the buffer pool: which connection may take a block, and which waiter is woken when blocks come back.
//!
//! A device queue can only choose among requests that have a buffer, so shares of the pool bound shares of the device: blocks are
//! shared by a dynamic threshold (Choudhury and Hahne, 1998) at three levels. With `free` = what is shared less what is taken, a
//! connection of an export may take a block while
//!
//! ```text
//!   tenant       held + block <= factor * free                    (an export without a tenant stands on this level)
//!   export       held + block <= factor * room of its tenant      the factor: its weight over the mean weight, see `levels`
//!   connection   held + block <= room of its export               room: twice what the level above leaves of its threshold
//!   device       held + block <= free                             requests without an answer; only beside other devices
//! ```
//!
//! So what an export holds is bounded by what it leaves for the next one: one export that takes all it can leaves half, k leave at
//! least 1/(1 + k) when they fill up together, and nothing is reserved for exports without requests. A connection that holds at
//! most [`MemoryLimits::guaranteed`] then needs no share. Bytes held count, not bytes granted: clients of a slow device keep their
//! share, and clients of a fast one do not wait for it. A device that does not answer keeps at most half.
//!
//! ```text
//!   no block --wait--> waiting --wake: it would be given--> woken --tries again--> has its block, or waits in its old place
//!                         `------ leave (needs none any more, or closed) ------'
//! ```
//!
//! Payloads within their windows need no share, only that `last` stays free ([`MemoryShare::may_keep`]).
//!
//! Waiters are woken in the order of their ranks (see `waiters`), and none blocks another: a large block waits for its
//! threshold while smaller ones are given. So that they cannot keep it from its block, the block of the first waiter counts as
//! taken for all others.
//!
//! The module has no clock and no memory of its own for a take: the pool is asked by its caller.
//!
//! Invariants: what a tenant, an export and a device hold is the sum over their connections; a sum may lack, within a turn, what
//! the present connection took (`note` follows each receive and send), and a share accounts for that. After `wake` no waiter that
//! was not woken would be given its block.

pub(crate) mod levels;
mod limits;
mod payload_windows;
#[cfg(test)]
mod sharing_tests;
#[cfg(test)]
mod tests;
mod waiters;

use headworks_core::{DeviceId, ExportId, TenantId};

use levels::{Ask, ONE, Tree, room_below};
pub use limits::MemoryLimits;
use payload_windows::PayloadWindows;
pub use payload_windows::{KeptPayload, WINDOW_MAX};
use waiters::Waiters;
pub use waiters::{Supply, Wanted, Wants};

/// What a connection holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes of the pool: of requests, and of unread replies.
    pub bytes: usize,
    /// Bytes of requests without an answer.
    pub request_bytes: usize,
    /// Bio slots of these requests.
    pub requests: usize,
}

/// A connection, by slot.
#[derive(Clone, Copy, Debug, Default)]
struct Client {
    /// Its export and device, from the choice of the export until the slot is freed.
    owner: Option<(ExportId, DeviceId)>,
    held: Held,
    /// It leaves replies unread.
    stalled: bool,
    /// It is among the waiters.
    waits: bool,
    /// It was woken: its block was promised to it.
    woken: bool,
}

/// What the requests of a device's clients hold until they are answered.
#[derive(Clone, Copy, Debug, Default)]
struct DeviceUse {
    bytes: usize,
    requests: usize,
}

/// The connections that hold buffers of a shard, and those that wait for them.
#[derive(Debug)]
pub struct Memory {
    limits: MemoryLimits,
    /// By slot.
    clients: Vec<Client>,
    /// Bytes by export and tenant.
    bytes: Tree,
    devices: Vec<DeviceUse>,
    /// Bytes of requests without an answer, of all devices.
    device_bytes: usize,
    /// The shard has exports of several devices.
    several: bool,
    /// What incomplete payloads may keep.
    windows: PayloadWindows,
    waiters: Waiters,
}

/// The shares of one connection: what it asks before it takes a block.
#[derive(Clone, Copy, Debug)]
pub struct MemoryShare<'a> {
    memory: &'a Memory,
    slot: u32,
}

impl MemoryShare<'_> {
    /// Whether the connection, which holds `held` bytes now, may take a block while `taken` bytes of the pool are in use. `stalled`:
    /// for a read of a client that leaves its replies unread.
    #[inline]
    #[must_use]
    pub fn may_take(&self, held: usize, block: usize, taken: usize, stalled: bool) -> bool {
        held + block <= self.memory.limits.guaranteed()
            || self.memory.has_share(self.slot, (held, block), taken, stalled)
    }

    /// Whether a payload within its window, whose block of `from` bytes grows to `to`, fits into the windows of its export's payloads, and
    /// leaves `last` free.
    #[must_use]
    pub fn may_keep(&self, (from, to): (usize, usize), taken: usize) -> bool {
        self.fits_windows(to) && taken + to.saturating_sub(from) <= self.memory.limits.shared()
    }

    /// The first half of that. If it does not fit, another payload of the export is beyond its window.
    #[must_use]
    pub fn fits_windows(&self, bytes: usize) -> bool {
        let owner = self.memory.clients[self.slot as usize].owner;
        owner.is_none_or(|(export, _)| self.memory.windows.fits(self.slot, export, bytes))
    }

    /// Bounds of the pool.
    #[must_use]
    pub fn limits(&self) -> MemoryLimits {
        self.memory.limits
    }
}

impl Memory {
    /// Creates the shares of a pool of `size` bytes for slots below `places`.
    #[must_use]
    pub fn new(size: usize, places: usize) -> Self {
        Self {
            limits: MemoryLimits::new(size, places),
            clients: vec![Client::default(); places],
            bytes: Tree::default(),
            devices: Vec::new(),
            device_bytes: 0,
            several: false,
            windows: PayloadWindows::new(size, places),
            waiters: Waiters::new(places),
        }
    }

    /// Bounds of the pool.
    #[must_use]
    pub fn limits(&self) -> MemoryLimits {
        self.limits
    }

    /// The shares of a connection.
    #[inline]
    #[must_use]
    pub fn share(&self, slot: u32) -> MemoryShare<'_> {
        MemoryShare { memory: self, slot }
    }

    /// Sets the weight of an export, which may be new, among the exports of its tenant.
    pub fn set_weight(&mut self, export: ExportId, weight: u16) {
        self.bytes.set_weight(export, weight);
        self.windows.tree().set_weight(export, weight);
        self.waiters.note_news();
    }

    /// Sets the weight of a tenant, which may be new.
    pub fn set_tenant_weight(&mut self, tenant: TenantId, weight: u16) {
        self.bytes.set_tenant_weight(tenant, weight);
        self.windows.tree().set_tenant_weight(tenant, weight);
        self.waiters.note_news();
    }

    /// Moves an export with all it holds to a tenant, or to none.
    pub fn set_tenant(&mut self, export: ExportId, tenant: TenantId) {
        self.bytes.set_tenant(export, tenant);
        self.windows.tree().set_tenant(export, tenant);
        self.waiters.note_news();
    }

    /// Takes over the devices of the shard's exports.
    pub fn set_devices(&mut self, devices: impl Iterator<Item = DeviceId> + Clone) {
        let first = devices.clone().next();
        self.several = devices.clone().any(|device| Some(device) != first);
        let places = devices.map(|device| usize::from(device.0) + 1).max().unwrap_or(0);
        self.devices.resize(places.max(self.devices.len()), DeviceUse::default());
        self.waiters.note_news();
    }

    /// Records what a connection holds, and whether its client leaves replies unread. A closing connection may not know its owner any
    /// more. The first waiter loses its place when it holds more than before.
    pub fn note(
        &mut self,
        slot: u32,
        owner: Option<(ExportId, DeviceId)>,
        held: Held,
        stalled: bool,
    ) {
        let client = &mut self.clients[slot as usize];
        let takes_again = std::mem::replace(&mut client.stalled, stalled) && !stalled;
        let before = client.held;
        let moves = owner.is_some() && owner != client.owner;
        if moves {
            self.charge(slot, Held::default());
            self.clients[slot as usize].owner = owner;
            if let Some((export, device)) = owner {
                self.bytes.add(export);
                let places = self.devices.len().max(usize::from(device.0) + 1);
                self.devices.resize(places, DeviceUse::default());
            }
        }
        if moves || held != before {
            self.charge(slot, held);
            self.waiters.note_held(slot, before, held);
        }
        if takes_again {
            self.waiters.note_news();
        }
    }

    /// Records that a client leaves its replies unread, as time tells.
    pub fn set_stalled(&mut self, slot: u32, stalled: bool) {
        let before = std::mem::replace(&mut self.clients[slot as usize].stalled, stalled);
        if before != stalled {
            self.waiters.note_news();
        }
    }

    /// Forgets the connection of a slot that is freed.
    pub fn forget(&mut self, slot: u32) {
        self.leave(slot);
        self.note(slot, None, Held::default(), false);
        self.note_payload(slot, None);
        let client = &mut self.clients[slot as usize];
        assert!(!client.waits && client.held == Held::default(), "a free slot holds nothing");
        client.owner = None;
    }

    /// Records the payload of a connection that the shard does not have.
    #[inline]
    pub fn note_payload(&mut self, slot: u32, payload: Option<KeptPayload>) {
        if self.windows.note(slot, payload) {
            self.waiters.note_news();
        }
    }

    /// Connections with incomplete payloads.
    pub fn incomplete(&self) -> impl Iterator<Item = u32> {
        self.windows.marked()
    }

    /// How much of its payload an incomplete write of an export may keep before a part of it is written, in bytes.
    #[inline]
    #[must_use]
    pub fn window(&self, export: ExportId) -> u32 {
        self.windows.window(export)
    }

    /// Bytes that the connections of an export hold.
    #[must_use]
    pub fn held_by(&self, export: ExportId) -> usize {
        self.bytes.held_by(export)
    }

    /// Changes what a connection holds, at every level.
    fn charge(&mut self, slot: u32, held: Held) {
        let client = &mut self.clients[slot as usize];
        let before = std::mem::replace(&mut client.held, held);
        let Some((export, device)) = client.owner else { return };
        if before.bytes != held.bytes {
            self.bytes.charge(export, before.bytes, held.bytes);
        }
        let device = &mut self.devices[usize::from(device.0)];
        assert!(
            device.requests >= before.requests && device.bytes >= before.request_bytes,
            "a device holds what its connections hold"
        );
        device.requests = device.requests - before.requests + held.requests;
        device.bytes = device.bytes - before.request_bytes + held.request_bytes;
        self.device_bytes = self.device_bytes - before.request_bytes + held.request_bytes;
    }

    /// Whether a connection may take a block beyond what is guaranteed.
    fn has_share(
        &self,
        slot: u32,
        (held, block): (usize, usize),
        taken: usize,
        stalled: bool,
    ) -> bool {
        if stalled && taken + block > self.limits.stalled() {
            return false;
        }
        let Client { owner, held: noted, .. } = self.clients[slot as usize];
        let (first, kept) = self.kept_from(slot, held.saturating_sub(noted.bytes) + block);
        let free = self.limits.shared().saturating_sub(taken + kept);
        let Some((export, device)) = owner.filter(|_| block <= free) else {
            return block <= free && held + block <= free;
        };
        let of_first = first.and_then(|first| self.clients[first as usize].owner);
        if self.several {
            let is_of_first = of_first.is_some_and(|(_, other)| other == device);
            let kept = if is_of_first { kept } else { 0 };
            let more = held.saturating_sub(noted.bytes) + kept;
            let held = self.devices[usize::from(device.0)].bytes + more;
            if room_below(ONE, held, block, free).is_none() {
                return false;
            }
        }
        let kept = (of_first.map(|(export, _)| export), kept);
        let ask = Ask { export, block, held: (held, noted.bytes), kept };
        self.bytes.room(&ask, free).is_some_and(|room| held + block <= room)
    }

    /// Whether a device would hold more than it may with `block`, even if no reply were unread.
    fn fills_device(&self, owner: Option<(ExportId, DeviceId)>, block: usize) -> bool {
        let Some((_, device)) = owner.filter(|_| self.several) else { return false };
        let (own, all) = (self.devices[usize::from(device.0)].bytes, self.device_bytes);
        room_below(ONE, own, block, self.limits.shared().saturating_sub(all)).is_none()
    }

    /// Returns how many of the `room` free bio slots a device's clients may take now: each one that is taken is no longer free.
    #[must_use]
    pub fn slots(&self, device: Option<DeviceId>, room: u32) -> u32 {
        let Some(device) = device.filter(|_| self.several) else { return room };
        let held = self.devices.get(usize::from(device.0)).map_or(0, |device| device.requests);
        room.saturating_sub(u32::try_from(held).unwrap_or(u32::MAX)).div_ceil(2)
    }
}
