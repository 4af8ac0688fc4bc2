//! Watermarks of the buffer pool: how full it may be for a connection to take another buffer.
//!
//! ```text
//!   0          size/4                    size*3/4       size*7/8    size
//!   |- stalled --|------- by turn -----------|--- light ---|- last -|
//! ```
//!
//! - *stalled*: reads of a connection that does not take the replies it has. More data for it would only wait.
//! - *by turn*: any connection, in the order of the buffer queue.
//! - *light*: a connection that then holds at most [`LIGHT_BYTES`], without a turn.
//! - *last*: a connection that then holds at most [`BufferLimits::guaranteed`], and one chunk of as many bytes with
//!   which a dropped reply continues.
//!
//! Where several devices are served, one has at most as much below a watermark as all leave together: so a device that does not
//! answer leaves half for others (`reactor/device_use`). Only requests count that it has not answered: unread replies give
//! way. What is guaranteed is not limited so.
//!
//! Invariant: with at most `size / 64 KiB` connections, a connection that holds nothing can always take 4 KiB. Proof:
//! the last take by a connection that then holds more than `guaranteed` leaves `last` bytes free; later takes add at
//! most `guaranteed` and one chunk for each connection, and `2 * guaranteed * connections <= last`.
//!
//! The file decides amounts only; the order of waiters is in `reactor/buffer_queue`.

/// A connection that holds at most this many bytes needs no turn; 256 requests of 4 KiB.
pub const LIGHT_BYTES: usize = 1 << 20;
/// The last part of the pool is this fraction: an eighth.
const LAST_PART: usize = 8;
/// Smallest and largest guaranteed bytes of a connection.
const GUARANTEED: (usize, usize) = (4 << 10, 64 << 10);
/// Bytes of a dropped reply that are read again at a time while the pool is not short.
const CHUNK_BYTES: usize = 256 << 10;

/// Watermarks of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferLimits {
    size: usize,
    guaranteed: usize,
}

/// A buffer that a connection needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferDemand {
    /// Bytes that the connection holds already.
    pub held: usize,
    /// Bytes of the block, as the pool rounds them.
    pub block: usize,
    /// The connection has its turn, or no other connection waits.
    pub has_turn: bool,
    /// A read of a connection that does not take its replies.
    pub stalled: bool,
    /// What the device has; none while no other device is served.
    pub device: Option<DeviceBytes>,
}

/// Buffers of requests without an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceBytes {
    /// Bytes of the device's own.
    pub own: usize,
    /// Bytes of all devices.
    pub all: usize,
}

impl BufferLimits {
    /// Creates the watermarks of a pool of `size` bytes for `connections` connections.
    #[must_use]
    pub fn new(size: usize, connections: usize) -> Self {
        let part = size / LAST_PART / (2 * connections.max(1));
        let power = part.checked_ilog2().map_or(0, |log| 1 << log);
        Self { size, guaranteed: power.clamp(GUARANTEED.0, GUARANTEED.1) }
    }

    /// Bytes that each connection can always hold.
    #[must_use]
    pub fn guaranteed(&self) -> usize {
        self.guaranteed
    }

    /// Most bytes of the pool that may be in use after the demand is met.
    #[must_use]
    pub fn ceiling(&self, demand: BufferDemand) -> usize {
        let after = demand.held + demand.block;
        match demand {
            _ if after <= self.guaranteed => self.size,
            BufferDemand { stalled: true, .. } => self.size / 4,
            _ if after <= LIGHT_BYTES => self.size - self.size / LAST_PART,
            BufferDemand { has_turn: true, .. } => self.by_turn(),
            BufferDemand { has_turn: false, .. } => 0,
        }
    }

    /// Bytes that connections may take by turn.
    #[must_use]
    pub fn by_turn(&self) -> usize {
        self.size - self.size / 4
    }

    /// Whether a demand may be met while `taken` bytes are in use.
    #[must_use]
    pub fn admits(&self, taken: usize, demand: BufferDemand) -> bool {
        taken + demand.block <= self.ceiling(demand) && self.leaves_enough(demand)
    }

    /// Whether the device leaves as much for others as it then has, or the demand is guaranteed.
    #[must_use]
    pub fn leaves_enough(&self, demand: BufferDemand) -> bool {
        let left = |all: usize| self.ceiling(demand).saturating_sub(all);
        demand.held + demand.block <= self.guaranteed
            || demand.device.is_none_or(|device| device.own + demand.block <= left(device.all))
    }

    /// Bytes with which a dropped reply continues, while `taken` bytes of the pool are in use.
    #[must_use]
    pub fn chunk(&self, taken: usize) -> usize {
        let short = taken + CHUNK_BYTES > self.size - self.size / LAST_PART;
        if short { self.guaranteed } else { CHUNK_BYTES }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::prng::Prng;

    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;

    fn demand(held: usize, block: usize) -> BufferDemand {
        BufferDemand { held, block, has_turn: true, stalled: false, device: None }
    }

    #[test]
    fn device_has_no_more_than_all_leave_for_others() {
        let limits = BufferLimits::new(128 * MIB, 1024);
        let admits = |taken: usize, (own, all): (usize, usize), held, block| {
            let device = Some(DeviceBytes { own: own * MIB, all: all * MIB });
            limits.admits(taken * MIB, BufferDemand { device, ..demand(held, block) })
        };
        // Alone: 48 of the 96 MiB that are taken by turn, and a request of 32 MiB.
        assert!(admits(47, (47, 47), 2 * MIB, MIB) && !admits(48, (48, 48), 2 * MIB, MIB));
        assert!(admits(0, (0, 0), 0, 32 * MIB));
        // Beside a device that has its half, another one has the largest request, and light connections.
        assert!(admits(48, (0, 48), 0, 32 * MIB) && admits(56, (0, 56), 0, 8 * MIB));
        assert!(!admits(56, (56, 56), 64 * KIB, 4 * KIB), "light connections of the first");
        assert!(admits(120, (56, 56), 0, 8 * KIB), "what is guaranteed");
        // Replies that wait for their clients are no device's.
        assert!(admits(95, (0, 0), 2 * MIB, MIB) && !admits(96, (0, 0), 2 * MIB, MIB));
    }

    #[test]
    fn guaranteed_bytes_depend_on_connections() {
        let of = |size, connections| BufferLimits::new(size, connections).guaranteed();
        assert_eq!(of(128 * MIB, 1024), 8 * KIB);
        assert_eq!(of(64 * MIB, 1024), 4 * KIB);
        assert_eq!(of(128 * MIB, 100), 64 * KIB);
        assert_eq!(of(64 * MIB, 4094), 4 * KIB);
        assert_eq!(of(1 << 40, 1), 64 * KIB);
    }

    #[test]
    fn demand_is_met_up_to_its_watermark() {
        let limits = BufferLimits::new(128 * MIB, 1024);
        for (held, block, has_turn, stalled, most) in [
            (0, 4 * KIB, false, true, 128),
            (4 * KIB, 4 * KIB, false, false, 128),
            (8 * KIB, 4 * KIB, false, false, 112),
            (0, MIB, false, false, 112),
            (MIB, 4 * KIB, true, false, 96),
            (0, 32 * MIB, true, false, 96),
            (MIB, 4 * KIB, false, false, 0),
            (0, MIB, true, true, 32),
        ] {
            let demand = BufferDemand { has_turn, stalled, ..demand(held, block) };
            assert_eq!(limits.ceiling(demand), most * MIB, "{demand:?}");
            assert!(most == 0 || limits.admits(most * MIB - block, demand), "{demand:?}");
            assert!(!limits.admits(most * MIB, demand), "{demand:?}");
        }
    }

    /// Random connections take what the watermarks allow and return nothing until no demand is met; then a connection
    /// that holds nothing takes 4 KiB.
    #[test]
    fn connection_that_holds_nothing_always_gets_a_buffer() {
        let mut prng = Prng::new(7);
        for round in 0..50 {
            let connections = [1024, 1000, 300, 40][round % 4];
            let limits = BufferLimits::new(64 * MIB, connections);
            let (mut held, mut chunks) = (vec![0; connections], vec![0; connections]);
            let (mut taken, mut failures) = (0, 0);
            while failures < 4 * connections {
                let slot = prng.below(connections as u64 - 1) as usize;
                let block = (4 * KIB) << prng.below(14);
                let has_turn = prng.below(2) == 0;
                let demand = BufferDemand { has_turn, ..demand(held[slot], block) };
                if limits.admits(taken, demand) {
                    (held[slot], taken, failures) = (held[slot] + block, taken + block, 0);
                } else if chunks[slot] == 0 && prng.below(2) == 0 {
                    chunks[slot] = limits.chunk(taken);
                    (taken, failures) = (taken + chunks[slot], 0);
                } else {
                    failures += 1;
                }
                assert!(taken <= 64 * MIB, "round {round}");
            }
            let last = demand(0, 4 * KIB);
            assert!(limits.admits(taken, last), "round {round}: {taken} bytes are taken");
        }
    }
}
