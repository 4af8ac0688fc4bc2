//! How much of its payload an incomplete write may keep before a part of it is written: its window.
//!
//! Incomplete payloads together keep at most a quarter of the pool, which exports share by weight and the connections of an export
//! evenly. So what clients have begun and not finished never takes the memory that others need, however many they are.
//!
//! ```text
//!   window = size/4 * weight / weights of exports with incomplete payloads / those of the export, a power of two, 4 KiB..=1 MiB
//! ```
//!
//! Invariant: an export's count is the number of its connections that are marked.

use headworks_core::ExportId;

/// The largest window: a write of at most this length is never given in parts while few others are incomplete.
pub const WINDOW_MAX: u32 = 1 << 20;
/// The smallest one.
const WINDOW_MIN: u32 = 4 << 10;

/// Incomplete payloads of a shard.
#[derive(Debug)]
pub struct PayloadWindows {
    size: usize,
    least: u32,
    /// By slot: the export of a connection with an incomplete payload.
    marked: Vec<Option<ExportId>>,
    /// By export: its weight and the number of its marked connections.
    exports: Vec<(u16, u32)>,
    /// Sum of the weights of exports with marked connections.
    weights: u64,
    count: usize,
}

impl PayloadWindows {
    /// No payload is incomplete in a pool of `size` bytes for slots below `places`.
    #[must_use]
    pub fn new(size: usize, places: usize) -> Self {
        let least = power_below((size / 4 / places.max(1)) as u64).clamp(WINDOW_MIN, WINDOW_MAX);
        let (marked, exports) = (vec![None; places], Vec::new());
        Self { size, least, marked, exports, weights: 0, count: 0 }
    }

    /// Sets the weight of an export.
    pub fn set_weight(&mut self, export: ExportId, weight: u16) {
        let (known, count) = self.of(export);
        let before = std::mem::replace(known, weight);
        if *count > 0 {
            self.weights = self.weights - u64::from(before) + u64::from(weight);
        }
    }

    /// Records whether a connection of an export has an incomplete payload.
    #[inline]
    pub fn note(&mut self, slot: u32, export: Option<ExportId>) {
        if self.marked[slot as usize] != export {
            self.change(slot, export);
        }
    }

    #[cold]
    fn change(&mut self, slot: u32, export: Option<ExportId>) {
        if let Some(before) = std::mem::replace(&mut self.marked[slot as usize], export) {
            self.count -= 1;
            let (weight, count) = self.of(before);
            *count -= 1;
            let gone = if *count == 0 { u64::from(*weight) } else { 0 };
            self.weights -= gone;
        }
        if let Some(export) = export {
            self.count += 1;
            let (weight, count) = self.of(export);
            *count += 1;
            let new = if *count == 1 { u64::from(*weight) } else { 0 };
            self.weights += new;
        }
    }

    fn of(&mut self, export: ExportId) -> &mut (u16, u32) {
        let index = usize::from(export.0);
        if self.exports.len() <= index {
            self.exports.resize(index + 1, (100, 0));
        }
        &mut self.exports[index]
    }

    /// Connections with incomplete payloads.
    pub fn marked(&self) -> impl Iterator<Item = u32> {
        let marked = self.marked.iter().enumerate();
        marked.filter(|(_, export)| export.is_some()).map(|(slot, _)| slot as u32)
    }

    /// The window of a connection of an export, which is counted.
    #[inline]
    #[must_use]
    pub fn window(&self, export: ExportId) -> u32 {
        if self.count <= 1 { WINDOW_MAX.min(self.most()) } else { self.share(export) }
    }

    fn most(&self) -> u32 {
        power_below(self.size as u64 / 4).max(WINDOW_MIN)
    }

    fn share(&self, export: ExportId) -> u32 {
        let of_export = self.exports.get(usize::from(export.0)).copied();
        let (weight, count) = of_export.unwrap_or((100, 0));
        let weights = if count == 0 { self.weights + u64::from(weight) } else { self.weights };
        let quarter = self.size as u128 / 4 * u128::from(weight);
        let bytes = quarter / u128::from(weights.max(1)) / u128::from(count.max(1));
        power_below(bytes as u64).clamp(self.least, WINDOW_MAX)
    }
}

fn power_below(bytes: u64) -> u32 {
    bytes.checked_ilog2().map_or(0, |log| 1 << log.min(30))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u32 = 1 << 10;
    const MIB: u32 = 1 << 20;
    const A: ExportId = ExportId(0);
    const B: ExportId = ExportId(3);

    #[test]
    fn window_shrinks_with_the_payloads_of_its_own_export() {
        let mut windows = PayloadWindows::new(128 << 20, 1024);
        for (count, window) in
            [(1, MIB), (32, MIB), (33, 512 * KIB), (512, 64 * KIB), (1023, 32 * KIB)]
        {
            (0..count).for_each(|slot| windows.note(slot, Some(A)));
            assert_eq!(windows.window(A), window, "{count}");
        }
        windows.note(1023, Some(B));
        assert_eq!((windows.window(A), windows.window(B)), (32 * KIB, MIB));
        windows.set_weight(B, 1);
        assert_eq!(windows.window(B), 256 * KIB);
        assert_eq!(windows.marked().count(), 1024);
        (0..1024).for_each(|slot| windows.note(slot, None));
        assert_eq!((windows.count, windows.weights, windows.window(A)), (0, 0, MIB));
    }

    #[test]
    fn small_pool_has_small_windows() {
        let windows = PayloadWindows::new(32 << 20, 4094);
        assert_eq!(windows.least, 4 * KIB);
        assert_eq!(PayloadWindows::new(1 << 20, 1).window(A), 256 * KIB);
    }
}
