//! The configuration space of virtio-blk, and what a device is to its driver.
//!
//! Offsets and values are those of the virtio specification, section 5.2.4; integers are little-endian. A front end may read any part of
//! the first 256 bytes: what lies behind the fields is zero (one initiator asks for all 256).

use crate::SECTOR;
use crate::features;

/// Bytes of the space, with what is zero at its end.
pub const CONFIG_BYTES: usize = 256;
/// Offset of `writeback`, the one field that a driver may write.
pub const WRITEBACK_AT: u32 = 32;
/// Most data descriptors of a request, unless a ring is shorter.
pub const SEGMENTS_MAX: u16 = 126;
/// Most segments of a discard or write-zeroes.
pub const ZERO_SEGMENTS_MAX: u32 = 16;
/// Most sectors of a segment of a discard or write-zeroes: 1 GiB, so that its bytes fit 32 bits.
pub const ZERO_SECTORS_MAX: u32 = 1 << 21;

/// An export as a device offers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Bytes; what is beyond the last whole sector of 512 is not offered.
    pub size: u64,
    /// Unit of addresses and lengths in bytes: a power of two, at least 512.
    pub block_size: u32,
    /// Writes are refused, whatever the driver negotiates.
    pub is_read_only: bool,
    /// DISCARD is among the features offered.
    pub can_discard: bool,
    /// WRITE_ZEROES is among the features offered.
    pub can_zero: bool,
    /// Alignment of discards in bytes that is worth the driver's while.
    pub discard_granularity: u32,
    /// Largest request in bytes that the path takes in one piece; the optimal size.
    pub request_max: u32,
    /// The answer to GET_ID: at most 20 bytes of ASCII, zeros behind.
    pub serial: [u8; 20],
}

impl Disk {
    /// A writable disk of `size` bytes with blocks of 512, discards and zeroing.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self {
            size,
            block_size: 512,
            is_read_only: false,
            can_discard: true,
            can_zero: true,
            discard_granularity: 4096,
            request_max: 1 << 20,
            serial: [0; 20],
        }
    }

    /// The answer to GET_ID, cut after 20 bytes.
    #[must_use]
    pub fn with_serial(mut self, serial: &str) -> Self {
        self.serial = [0; 20];
        for (place, byte) in self.serial.iter_mut().zip(serial.bytes()) {
            *place = byte;
        }
        self
    }

    /// The device features that are offered for this disk.
    #[must_use]
    pub fn features(&self) -> u64 {
        let mut offered = features::ALL;
        let has = [
            (features::RO, self.is_read_only),
            (features::DISCARD, self.can_discard && !self.is_read_only),
            (features::WRITE_ZEROES, self.can_zero && !self.is_read_only),
        ];
        for (bit, is_offered) in has {
            if !is_offered {
                offered &= !bit;
            }
        }
        offered
    }

    /// The configuration space as the driver reads it.
    #[must_use]
    pub fn config_space(
        &self,
        queues: u16,
        segments: u16,
        is_writeback: bool,
    ) -> [u8; CONFIG_BYTES] {
        let mut space = [0; CONFIG_BYTES];
        let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
        let block = self.block_size.max(SECTOR as u32);
        put(0, &(self.size / SECTOR).to_le_bytes());
        put(12, &u32::from(segments).to_le_bytes());
        put(20, &block.to_le_bytes());
        // Physical blocks are 4 KiB, or the logical ones if those are larger.
        let exponent = (4096 / block).max(1).trailing_zeros() as u8;
        put(24, &[exponent, 0]);
        put(26, &1_u16.to_le_bytes());
        put(28, &(self.request_max / block).to_le_bytes());
        put(WRITEBACK_AT as usize, &[u8::from(is_writeback)]);
        put(34, &queues.to_le_bytes());
        let sectors = ZERO_SECTORS_MAX.to_le_bytes();
        let segments = ZERO_SEGMENTS_MAX.to_le_bytes();
        if self.features() & features::DISCARD != 0 {
            put(36, &sectors);
            put(40, &segments);
            put(44, &(self.discard_granularity.max(block) / SECTOR as u32).to_le_bytes());
        }
        if self.features() & features::WRITE_ZEROES != 0 {
            put(48, &sectors);
            put(52, &segments);
            put(56, &[1]);
        }
        space
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{u16_at, u32_at, u64_at};

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let disk = Disk { block_size: 1024, ..Disk::new((1 << 30) + 511) };
        let space = disk.config_space(4, 126, true);
        assert_eq!(u64_at(&space, 0), 1 << 21, "capacity in sectors of 512");
        assert_eq!(u32_at(&space, 8), 0, "size_max is not offered");
        assert_eq!(u32_at(&space, 12), 126);
        assert_eq!(u32_at(&space, 20), 1024);
        assert_eq!(space[24], 2, "4 KiB are 4 blocks");
        assert_eq!(u16_at(&space, 26), 1);
        assert_eq!(u32_at(&space, 28), 1024);
        assert_eq!(space[32], 1);
        assert_eq!(u16_at(&space, 34), 4);
        assert_eq!([36, 40, 44].map(|at| u32_at(&space, at)), [1 << 21, 16, 8]);
        assert_eq!([48, 52].map(|at| u32_at(&space, at)), [1 << 21, 16]);
        assert_eq!(space[56], 1);
        assert_eq!(space[57..], [0; 199]);
    }

    #[test]
    fn read_only_disk_offers_neither_discard_nor_zeroes() {
        let disk = Disk { is_read_only: true, ..Disk::new(1 << 20) };
        let offered = disk.features();
        assert_eq!(offered & features::RO, features::RO);
        assert_eq!(offered & (features::DISCARD | features::WRITE_ZEROES), 0);
        assert_eq!(disk.config_space(1, 126, true)[36..57], [0; 21]);
    }

    #[test]
    fn blocks_of_8_kib_are_physical_blocks_too() {
        let disk = Disk { block_size: 8192, ..Disk::new(1 << 20) };
        assert_eq!(disk.config_space(1, 126, false)[24], 0);
    }
}
