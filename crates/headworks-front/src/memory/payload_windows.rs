//! How much of its payload an incomplete write may keep before a part of it is written: its window.
//!
//! Incomplete payloads together keep about a quarter of the pool, which tenants and exports share by weight (`levels`: within a quarter
//! and twice an equal part) and the connections of an export evenly. So what clients have begun and not finished never takes the memory
//! that others need, however many they are.
//!
//! ```text
//!   window = the export's part of size/4 / its connections with incomplete payloads, a power of two, 4 KiB..=1 MiB
//! ```
//!
//! A payload within its window may keep what has come of it, whatever the shares of its export say, while the payloads of the export keep no
//! more than their windows together ([`PayloadWindows::fits`]): the windows are what all others leave. If they keep more, one of them is
//! beyond its window, because others began after it; it is written as far as it has come, which makes room.
//!
//! A payload counts until the last of it is in the shard: a frozen volume keeps payloads that are whole.
//!
//! Invariants: what an export holds of the tree is the number of its connections that are marked; `kept` is the sum over them.

use headworks_core::ExportId;

use super::levels::Tree;

/// The largest window: a write of at most this length is never given in parts while few others are incomplete.
pub const WINDOW_MAX: u32 = 1 << 20;
/// The smallest one.
const WINDOW_MIN: u32 = 4 << 10;

/// A payload that the shard does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptPayload {
    /// The export of its connection.
    pub export: ExportId,
    /// Bytes of its block.
    pub bytes: usize,
}

/// Incomplete payloads of a shard.
#[derive(Debug)]
pub(super) struct PayloadWindows {
    size: usize,
    least: u32,
    /// By slot.
    marked: Vec<Option<KeptPayload>>,
    /// Bytes that they keep, by export.
    kept: Vec<usize>,
    /// Marked connections by export and tenant.
    counts: Tree,
    count: usize,
}

impl PayloadWindows {
    /// No payload is incomplete in a pool of `size` bytes for slots below `places`.
    pub fn new(size: usize, places: usize) -> Self {
        let least = power_below(size / 4 / places.max(1)).clamp(WINDOW_MIN, WINDOW_MAX);
        let (marked, kept) = (vec![None; places], Vec::new());
        Self { size, least, marked, kept, counts: Tree::default(), count: 0 }
    }

    /// The weights and tenants of exports.
    pub fn tree(&mut self) -> &mut Tree {
        &mut self.counts
    }

    /// Records the payload of a connection; returns whether it is another one than before, or keeps something else.
    #[inline]
    pub fn note(&mut self, slot: u32, payload: Option<KeptPayload>) -> bool {
        let changes = self.marked[slot as usize] != payload;
        if changes {
            self.change(slot, payload);
        }
        changes
    }

    #[cold]
    fn change(&mut self, slot: u32, payload: Option<KeptPayload>) {
        if let Some(before) = std::mem::replace(&mut self.marked[slot as usize], payload) {
            let kept = &mut self.kept[usize::from(before.export.0)];
            assert!(self.count > 0 && *kept >= before.bytes, "a marked payload is counted");
            self.count -= 1;
            *kept -= before.bytes;
            self.counts.charge(before.export, 1, 0);
        }
        if let Some(KeptPayload { export, bytes }) = payload {
            self.count += 1;
            let index = self.counts.add(export);
            self.counts.charge(export, 0, 1);
            self.kept.resize(self.kept.len().max(index + 1), 0);
            self.kept[index] += bytes;
        }
    }

    /// Whether the payloads of an export keep no more than their windows together if that of `slot` keeps `bytes`.
    pub fn fits(&self, slot: u32, export: ExportId, bytes: usize) -> bool {
        let own = self.marked[slot as usize].filter(|own| own.export == export);
        let kept = self.kept.get(usize::from(export.0)).copied().unwrap_or(0);
        let own_bytes = own.map_or(0, |own| own.bytes);
        assert!(kept >= own_bytes, "an export keeps what its payloads keep");
        let others = kept - own_bytes;
        let count = self.counts.held_by(export) + usize::from(own.is_none());
        others + bytes <= count * self.window(export) as usize
    }

    /// Connections with incomplete payloads.
    pub fn marked(&self) -> impl Iterator<Item = u32> {
        let marked = self.marked.iter().enumerate();
        marked.filter(|(_, payload)| payload.is_some()).map(|(slot, _)| slot as u32)
    }

    /// The window of a connection of an export. A payload that begins counts from then on, so one that begins beside one other has the
    /// window of a payload that is alone; it is shortened once both count.
    #[inline]
    pub fn window(&self, export: ExportId) -> u32 {
        if self.count <= 1 { WINDOW_MAX.min(self.most()) } else { self.share(export) }
    }

    fn most(&self) -> u32 {
        power_below(self.size / 4).max(WINDOW_MIN)
    }

    fn share(&self, export: ExportId) -> u32 {
        let bytes = self.counts.quantum(export, self.size / 4);
        power_below(bytes / self.counts.held_by(export).max(1)).clamp(self.least, WINDOW_MAX)
    }
}

fn power_below(bytes: usize) -> u32 {
    bytes.checked_ilog2().map_or(0, |log| 1 << log.min(30))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::TenantId;

    const KIB: u32 = 1 << 10;
    const MIB: u32 = 1 << 20;
    const A: ExportId = ExportId(0);
    const B: ExportId = ExportId(3);

    #[allow(clippy::unnecessary_wraps)]
    fn kept(export: ExportId, bytes: u32) -> Option<KeptPayload> {
        Some(KeptPayload { export, bytes: bytes as usize })
    }

    #[test]
    fn window_shrinks_with_the_payloads_of_its_own_export() {
        let mut windows = PayloadWindows::new(128 << 20, 1024);
        for (count, window) in
            [(1, MIB), (32, MIB), (33, 512 * KIB), (512, 64 * KIB), (1023, 32 * KIB)]
        {
            for slot in 0..count {
                windows.note(slot, kept(A, 0));
            }
            assert_eq!(windows.window(A), window, "{count}");
        }
        windows.note(1023, kept(B, 0));
        assert_eq!((windows.window(A), windows.window(B)), (32 * KIB, MIB));
        windows.tree().set_weight(B, 1);
        assert_eq!(windows.window(B), MIB, "4 MiB, a quarter of an equal part");
        assert_eq!(windows.marked().count(), 1024);
        for slot in 0..1024 {
            windows.note(slot, None);
        }
        assert_eq!((windows.count, windows.window(A)), (0, MIB));
    }

    /// One that began alone keeps 1 MiB; for others there is room when it is written.
    #[test]
    fn payloads_of_an_export_fit_into_their_windows_together() {
        let mut windows = PayloadWindows::new(8 << 20, 8);
        windows.note(0, kept(A, MIB));
        for slot in 1..6 {
            assert!(windows.note(slot, kept(A, 4 * KIB)));
        }
        assert_eq!(windows.window(A), 256 * KIB);
        assert!(windows.fits(1, A, 256 << 10) && windows.fits(6, B, 1 << 20));
        for slot in 1..4 {
            windows.note(slot, kept(A, 256 * KIB));
        }
        assert!(!windows.fits(4, A, 256 << 10), "1.5 MiB are theirs");
        windows.note(0, kept(A, 4 * KIB));
        assert!(windows.fits(4, A, 256 << 10) && windows.fits(5, A, 256 << 10));
        assert!(windows.fits(0, A, 256 << 10) && !windows.note(0, kept(A, 4 * KIB)));
        for slot in 0..6 {
            windows.note(slot, None);
        }
        assert_eq!(windows.kept, [0]);
    }

    #[test]
    fn tenants_share_before_their_exports() {
        let mut windows = PayloadWindows::new(128 << 20, 1024);
        // Fifteen exports of a tenant beside one of another.
        let exports: Vec<_> = (0..16).map(ExportId).collect();
        for &export in &exports {
            windows.tree().set_tenant(export, TenantId(u16::from(export.0 > 0)));
        }
        for slot in 0..1024 {
            windows.note(slot, kept(exports[slot as usize % 16], 0));
        }
        // 16 MiB for 64 connections, and 16 MiB for 960.
        assert_eq!([windows.window(exports[0]), windows.window(exports[7])], [256 * KIB, 32 * KIB]);
    }

    /// However weights are set, all windows together are at most five quarters of a quarter of the pool, or the smallest ones.
    #[test]
    fn windows_of_extreme_weights_stay_within_their_bound() {
        let (size, mut windows) = (128 << 20, PayloadWindows::new(128 << 20, 1024));
        for (export, weight) in [(0, 1), (1, 10), (2, 1000), (3, 10_000)] {
            windows.tree().set_weight(ExportId(export), weight);
        }
        for slot in 0..512 {
            windows.note(slot, kept(ExportId(slot as u16 % 4), 0));
        }
        let all: usize = (0..512).map(|slot| windows.window(ExportId(slot % 4)) as usize).sum();
        assert!(all <= size / 16 * 5, "{all}");
    }

    /// The first payload of an export that nothing is known of has no larger window than others.
    #[test]
    fn export_that_is_not_known_has_an_equal_part() {
        let mut windows = PayloadWindows::new(1 << 20, 10);
        windows.note(0, kept(A, 0));
        windows.note(1, kept(ExportId(1), 0));
        assert_eq!([windows.window(A), windows.window(ExportId(9))], [128 * KIB, 64 * KIB]);
    }

    #[test]
    fn small_pool_has_small_windows() {
        let windows = PayloadWindows::new(32 << 20, 4094);
        assert_eq!(windows.least, 4 * KIB);
        assert_eq!(PayloadWindows::new(1 << 20, 1).window(A), 256 * KIB);
    }
}
