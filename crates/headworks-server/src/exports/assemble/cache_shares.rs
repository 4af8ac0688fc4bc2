//! The server's cache, divided among the shards that have cached volumes.
//!
//! Byte limits (the pool, dirty bytes) are sums over shards. Shares are equal and rounded down, so the sum never
//! exceeds the user's limit. A ratio refers to a shard's own pool and is not divided.

use headworks_core::writeback::{DirtyOptions, DirtyTunable};
use headworks_core::{CacheOptions, ConfigError, ShardConfig, ShardId, WriteMode};

use crate::clients::connection_id::cache_account;

/// Size of a cache frame in bytes.
const UNIT: u64 = 4096;

/// The user's options of the cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheSpec {
    /// Bytes of all pools together; 0 disables the cache.
    pub bytes: u64,
    /// Dirty limits of all shards together.
    pub dirty: DirtyOptions,
    /// Bytes to which ratios of dirty data refer at most.
    pub dirtyable: u64,
    /// Connections of one shard.
    pub connections: usize,
}

/// Shards with a cached volume. Without any, the first shard if volumes may be added later.
#[must_use]
pub fn caching_shards(config: &ShardConfig, bytes: u64) -> Vec<ShardId> {
    let cached = |shard: ShardId| {
        let mut volumes = config.volumes.iter();
        volumes.any(|volume| volume.home == shard && volume.options.mode != WriteMode::None)
    };
    let shards: Vec<ShardId> =
        (0..config.shards).map(ShardId).filter(|shard| bytes > 0 && cached(*shard)).collect();
    match shards.is_empty() && bytes > 0 && config.spare.volumes > 0 {
        true => vec![ShardId(0)],
        false => shards,
    }
}

/// A value of the whole server, divided among `shards` shards if it is in bytes.
#[must_use]
pub fn divided(tunable: DirtyTunable, value: u64, shards: usize) -> u64 {
    if tunable.is_bytes() { value / shards.max(1) as u64 } else { value }
}

/// Cache and dirty options of each shard, indexed by shard.
///
/// # Errors
/// The shares are too small.
pub fn divide(
    config: &ShardConfig,
    spec: &CacheSpec,
) -> Result<Vec<(CacheOptions, DirtyOptions)>, ConfigError> {
    let caching = caching_shards(config, spec.bytes);
    let share = spec.bytes / caching.len().max(1) as u64;
    let units = u32::try_from(share / UNIT).unwrap_or(u32::MAX);
    let dirtyable = spec.dirtyable / caching.len().max(1) as u64 / UNIT;
    let dirtyable_max = u32::try_from(dirtyable).unwrap_or(u32::MAX);
    let mut dirty = spec.dirty;
    for tunable in [DirtyTunable::Bytes, DirtyTunable::BackgroundBytes] {
        let whole = tunable.get(&spec.dirty);
        if whole > 0 {
            tunable.set(&mut dirty, divided(tunable, whole, caching.len()))?;
        }
    }
    let of = |shard: ShardId| {
        let cache = CacheOptions {
            units: if caching.contains(&shard) { units } else { 0 },
            writers_max: (spec.connections + 64) as u32,
            account: cache_account(shard),
            dirtyable_max,
            ..CacheOptions::default()
        };
        let seed = dirty.seed.wrapping_add(shard.0.into());
        (cache, DirtyOptions { seed, ..dirty })
    };
    if !caching.is_empty() && units < CacheOptions::UNITS_MIN {
        let shards = caching.len();
        let message = format!(
            "{} bytes are less than 1 MiB for each of the {shards} caching threads; use more, or 0 for no cache",
            spec.bytes
        );
        return Err(ConfigError::new("cache", message));
    }
    let all: Vec<_> = (0..config.shards).map(ShardId).map(of).collect();
    all.iter().try_for_each(|(cache, dirty)| cache.validate().and(dirty.validate()))?;
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::{DeviceId, QueueOptions, VolumeConfig, VolumeOptions};

    /// A configuration with a volume on each of `homes`, cached in the given mode.
    fn config(shards: u16, homes: &[(u16, WriteMode)]) -> ShardConfig {
        let mut config = ShardConfig::single(QueueOptions::default(), VolumeOptions::default(), 8);
        config.shards = shards;
        let volume = |&(home, mode): &(u16, WriteMode)| VolumeConfig {
            home: ShardId(home),
            device: DeviceId(0),
            options: VolumeOptions { size: 1 << 20, block_size: 512, mode, ..Default::default() },
        };
        config.volumes = homes.iter().map(volume).collect();
        config
    }

    fn spec(bytes: u64) -> CacheSpec {
        CacheSpec { bytes, dirty: DirtyOptions::default(), dirtyable: u64::MAX, connections: 10 }
    }

    fn units(config: &ShardConfig, bytes: u64) -> Vec<u32> {
        let all = divide(config, &spec(bytes)).unwrap();
        all.iter().map(|(cache, _)| cache.units).collect()
    }

    #[test]
    fn cache_shares_never_exceed_the_whole() {
        use WriteMode::{None, Unsafe, Writeback};
        let both = config(3, &[(0, Writeback), (2, Unsafe), (2, Writeback), (1, None)]);
        assert_eq!(units(&both, 16 << 20), [2048, 0, 2048]);
        assert_eq!(units(&both, (16 << 20) - 1), [2047, 0, 2047]);
        assert_eq!(units(&both, 0), [0, 0, 0]);
        let one = config(2, &[(1, Writeback)]);
        assert_eq!(units(&one, 1 << 20), [0, 256]);
        let mut none = config(2, &[(0, None)]);
        assert_eq!(units(&none, 1), [0, 0]);
        none.spare.volumes = 1;
        assert_eq!(units(&none, 1 << 20), [256, 0]);
        assert_eq!(units(&none, 0), [0, 0]);
    }

    #[test]
    fn too_small_cache_or_dirty_share_is_refused() {
        let two = config(2, &[(0, WriteMode::Writeback), (1, WriteMode::Writeback)]);
        let error = divide(&two, &spec((2 << 20) - 1)).unwrap_err();
        assert!(error.to_string().contains("each of the 2 caching threads"), "{error}");
        let mut little = spec(2 << 20);
        DirtyTunable::Bytes.set(&mut little.dirty, 8192).unwrap();
        assert_eq!(divide(&two, &little).unwrap_err().option, "dirty_bytes");
    }

    #[test]
    fn byte_limits_are_divided_among_shards_and_ratios_are_not() {
        let two = config(2, &[(0, WriteMode::Writeback), (1, WriteMode::Writeback)]);
        let mut spec = spec(64 << 20);
        DirtyTunable::Bytes.set(&mut spec.dirty, 1 << 20).unwrap();
        let all = divide(&two, &spec).unwrap();
        for (shard, (cache, dirty)) in (0..).map(ShardId).zip(all) {
            assert_eq!((dirty.dirty_bytes, dirty.dirty_background_ratio), (512 << 10, 10));
            let seed = spec.dirty.seed + u64::from(shard.0);
            assert_eq!((cache.account, dirty.seed), (cache_account(shard), seed));
        }
    }
}
