//! What the requests of each device hold of a shard until they are answered: bio slots and buffers.
//!
//! A device that does not answer keeps what its requests hold. So that it leaves enough for the clients of other devices, a
//! device may take more only while it has less than all devices leave (a dynamic threshold, Choudhury and Hahne, 1998): one
//! device takes up to half, two that do not answer a third each, and there is always something for the next one. No part is
//! reserved for devices without requests. A shard with the exports of one device has no such limit. Replies that clients leave
//! unread are no device's: they give way (`give_way`).
//!
//! ```text
//!   all devices answer       | a a a a a a a a a a . . . . . . . . . . |     `a` is busy: half of it is free
//!   `h` does not             | h h h h h h h h h h a a a a a . . . . . |     `a` has half of the rest
//! ```
//!
//! Invariant: a device's sums are those of its connections. The connections are noted after each receive and send, so within a turn
//! a sum may lack what the present connection took.

use headworks_core::DeviceId;

use crate::nbd::buffer_limits::DeviceBytes;

/// What the requests of a connection or of a device hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Holding {
    requests: usize,
    bytes: usize,
}

/// What clients hold, by device.
#[derive(Debug)]
pub struct DeviceUse {
    devices: Vec<Holding>,
    /// Bytes of all devices.
    bytes: usize,
    /// By slot: the device of a connection, and what it holds.
    connections: Vec<(DeviceId, Holding)>,
    /// By slot: bytes of the buffer that a connection waits for.
    wanted: Vec<usize>,
    /// The shard has exports of several devices.
    several: bool,
}

impl DeviceUse {
    /// Creates empty sums for slots below `places`.
    pub fn new(places: usize) -> Self {
        let connections = vec![(DeviceId::default(), Holding::default()); places];
        Self { devices: Vec::new(), bytes: 0, connections, wanted: vec![0; places], several: false }
    }

    /// Takes over the devices of the shard's exports.
    pub fn set_devices(&mut self, devices: impl Iterator<Item = DeviceId> + Clone) {
        let first = devices.clone().next();
        self.several = devices.clone().any(|device| Some(device) != first);
        let places = devices.map(|device| usize::from(device.0) + 1).max().unwrap_or(0);
        if self.devices.len() < places {
            self.devices.resize(places, Holding::default());
        }
    }

    /// Records what the requests of a device's connection hold. A closing connection may not know its device any more.
    pub fn note(&mut self, slot: u32, device: Option<DeviceId>, requests: usize, bytes: usize) {
        let (known, before) = &mut self.connections[slot as usize];
        let held = Holding { requests, bytes };
        let idle = *before == Holding::default();
        if idle && held == Holding::default() {
            return;
        }
        if let Some(device) = device.filter(|_| idle) {
            *known = device;
        }
        let index = usize::from(known.0);
        if self.devices.len() <= index {
            self.devices.resize(index + 1, Holding::default());
        }
        let before = std::mem::replace(before, held);
        let sum = &mut self.devices[index];
        assert!(
            sum.requests >= before.requests && sum.bytes >= before.bytes,
            "a device holds what its connections hold"
        );
        sum.requests = sum.requests - before.requests + requests;
        sum.bytes = sum.bytes - before.bytes + bytes;
        self.bytes = self.bytes - before.bytes + bytes;
    }

    /// Forgets the connection of a slot that is freed.
    pub fn forget(&mut self, slot: u32) {
        self.note(slot, None, 0, 0);
    }

    /// Returns how many of the `room` free bio slots a device's clients may take now.
    pub fn room(&self, device: Option<DeviceId>, room: u32) -> u32 {
        match self.holding(device) {
            Some(held) => {
                let held = u32::try_from(held.requests).unwrap_or(u32::MAX);
                // Each one that is taken is no longer free.
                room.saturating_sub(held).div_ceil(2)
            }
            None => room,
        }
    }

    /// Returns the bytes of a device and of all; `None` if they do not matter.
    pub fn bytes(&self, device: Option<DeviceId>) -> Option<DeviceBytes> {
        self.holding(device).map(|held| DeviceBytes { own: held.bytes, all: self.bytes })
    }

    /// Records that a connection waits for a buffer of `bytes`; 0 if it waits for a bio slot.
    pub fn set_wanted(&mut self, slot: u32, bytes: usize) {
        self.wanted[slot as usize] = bytes;
    }

    /// Whether a connection waits because its device has as much as it may of `bytes` for all, or beside `room` free bio slots.
    pub fn is_at_limit(&self, slot: u32, bytes: usize, room: u32) -> bool {
        let left = bytes.saturating_sub(self.bytes);
        let (device, _) = self.connections[slot as usize];
        let wanted = self.wanted[slot as usize];
        let held = self.holding(Some(device));
        held.is_some_and(|held| held.bytes + wanted > left || held.requests >= room as usize)
    }

    fn holding(&self, device: Option<DeviceId>) -> Option<Holding> {
        let device = device.filter(|_| self.several)?;
        Some(self.devices.get(usize::from(device.0)).copied().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Option<DeviceId> = Some(DeviceId(0));
    const B: Option<DeviceId> = Some(DeviceId(1));

    fn several() -> DeviceUse {
        let mut devices = DeviceUse::new(4);
        devices.set_devices([DeviceId(0), DeviceId(1)].into_iter());
        devices
    }

    #[test]
    fn single_device_has_no_limit() {
        let mut devices = DeviceUse::new(1);
        devices.set_devices([DeviceId(3), DeviceId(3)].into_iter());
        devices.note(0, Some(DeviceId(3)), 8000, 1 << 27);
        assert_eq!(devices.room(Some(DeviceId(3)), 192), 192);
        assert_eq!(devices.bytes(Some(DeviceId(3))), None);
        devices.set_wanted(0, 4096);
        assert!(!devices.is_at_limit(0, 0, 0));
    }

    /// A device that keeps all it gets is left half of the slots; the other has half of the rest, and so on.
    #[test]
    fn device_that_keeps_everything_leaves_half() {
        let (all, mut devices) = (8192, several());
        let mut held = [0; 2];
        for (index, device) in [(0, A), (1, B)] {
            loop {
                let room = all - held[0] - held[1];
                let more = devices.room(device, room);
                if more == 0 {
                    break;
                }
                held[index] += more;
                devices.note(index as u32, device, held[index] as usize, 0);
            }
        }
        assert_eq!(held, [4096, 2048]);
        assert!(devices.is_at_limit(0, 0, 2048) && devices.is_at_limit(1, 0, 2048));
        assert!(!devices.is_at_limit(1, 0, 2049));
        devices.note(0, A, 0, 10_000);
        devices.set_wanted(1, 4096);
        assert!(devices.is_at_limit(1, 14_095, 8192) && !devices.is_at_limit(1, 14_096, 8192));
    }

    #[test]
    fn sums_follow_connections_until_they_are_forgotten() {
        let mut devices = several();
        devices.note(0, A, 3, 100);
        devices.note(1, A, 2, 50);
        devices.note(2, B, 1, 7);
        let bytes =
            |devices: &DeviceUse, device| devices.bytes(device).map(|bytes| (bytes.own, bytes.all));
        assert_eq!((bytes(&devices, A), bytes(&devices, B)), (Some((150, 157)), Some((7, 157))));
        // A closing connection does not know its device any more; its buffers are still in use.
        devices.note(0, None, 1, 60);
        assert_eq!(bytes(&devices, A), Some((110, 117)));
        devices.forget(0);
        devices.forget(1);
        // The slot's next client uses another device.
        devices.note(0, B, 1, 5);
        assert_eq!((bytes(&devices, A), bytes(&devices, B)), (Some((0, 12)), Some((12, 12))));
        assert_eq!(bytes(&devices, Some(DeviceId(9))), Some((0, 12)), "a device without requests");
        assert_eq!(devices.bytes(None), None, "no export was chosen");
    }
}
