//! A tenant's part of the page cache, as users write it: `dirty`, `cache-min` and `cache-max`.
//!
//! The values are of the whole server. A shard is told the part of its own: each shard that caches images of the tenant has as
//! much as it has of these images. What no shard caches for the tenant is divided equally.
//!
//! Invariants: the parts of all shards are at most the whole; the minimums of all tenants fit the cache.

use headworks_core::{ConfigError, ShardConfig, ShardId, TenantMemory, WriteMode};

use serde_json::Value;

use crate::spec::units::parse_size;
use headworks::house::display_size;

/// Size of a cache frame in bytes.
const UNIT: u64 = 4096;

/// The least value: 16 blocks, so that a write of usual size needs one wait.
const LEAST: u64 = 64 << 10;

/// Accepted values, for errors.
pub const PARTS: &str = "64K and more, or none";

/// A tenant's part of the cache of the whole server, in bytes; 0 for a value that is not set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachePart {
    /// The most dirty data of its exports.
    pub dirty: u64,
    /// What others do not evict.
    pub min: u64,
    /// Beyond this the tenant evicts its own.
    pub max: u64,
}

/// What a tenant has of the page cache, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Dirty or under write-out.
    pub dirty: u64,
    /// Cached, dirty or not.
    pub cached: u64,
}

impl CachePart {
    /// Checks the values against each other.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self) -> Result<(), String> {
        match self.max > 0 && self.min > self.max {
            true => Err(format!(
                "cache-min {} is more than cache-max {}",
                part_word(self.min),
                part_word(self.max)
            )),
            false => Ok(()),
        }
    }

    /// The part of a shard that has `own` of the tenant's `all` images.
    #[must_use]
    pub fn of_shard(&self, (own, all): (u64, u64)) -> TenantMemory {
        let blocks = |bytes: u64| {
            let whole = u128::from(bytes) * u128::from(own) / u128::from(all.max(1));
            u32::try_from(whole / u128::from(UNIT)).unwrap_or(u32::MAX - 1).min(u32::MAX - 1)
        };
        let most = |bytes: u64| if bytes == 0 { u32::MAX } else { blocks(bytes).max(1) };
        TenantMemory {
            dirty_max: most(self.dirty),
            cache_min: blocks(self.min),
            cache_max: most(self.max),
        }
    }
}

/// Parses a size in bytes; `none` and `0` are 0.
///
/// # Errors
/// A sentence with the accepted range.
pub fn parse_part(word: &str) -> Result<u64, String> {
    if matches!(word, "none" | "max" | "0") {
        return Ok(0);
    }
    match parse_size(word)? {
        bytes if bytes >= LEAST => Ok(bytes),
        _ => Err(format!("`{word}` is too little; {PARTS}, are accepted")),
    }
}

/// Returns a size as a word that [`parse_part`] takes.
#[must_use]
pub fn part_word(bytes: u64) -> String {
    let unit = ["T", "G", "M", "K"].into_iter().zip([40, 30, 20, 10]);
    let exact = |&(_, shift): &(&str, u32)| bytes.is_multiple_of(1 << shift);
    match unit.into_iter().find(exact) {
        _ if bytes == 0 => "none".to_owned(),
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// Returns a size as `ctl` shows it.
pub fn part_value(bytes: u64) -> Value {
    part_word(bytes).into()
}

/// Returns the most blocks that are dirty for an export with this cap in bytes; `u32::MAX` for none.
#[must_use]
pub fn dirty_blocks(bytes: u64) -> u32 {
    CachePart { dirty: bytes, ..CachePart::default() }.of_shard((1, 1)).dirty_max
}

/// Checks that the minimums of all tenants fit the cache.
///
/// # Errors
/// A sentence with both sizes.
pub fn check_minimums(parts: impl Iterator<Item = CachePart>, cache: u64) -> Result<(), String> {
    let sum = parts.fold(0_u64, |sum, part| sum.saturating_add(part.min));
    match sum > cache {
        true => Err(format!(
            "the tenants' cache-min are {} in all, more than the cache of {}; lower one, or enlarge the cache",
            display_size(sum),
            display_size(cache)
        )),
        false => Ok(()),
    }
}

/// Checks the parts of the tenants that a server starts with.
///
/// # Errors
/// The first that is wrong.
pub fn check_parts<'a>(
    tenants: impl Iterator<Item = (&'a str, CachePart)> + Clone,
    cache: u64,
) -> Result<(), ConfigError> {
    let wrong = |message: String| ConfigError::new("cache-min", message);
    for (name, part) in tenants.clone() {
        part.check().map_err(|message| wrong(format!("tenant {name}: {message}")))?;
    }
    check_minimums(tenants.map(|(_, part)| part), cache).map_err(wrong)
}

/// Returns how many of a tenant's cached images, whose home shards are `homes`, are on a shard, and how many there are. With none
/// at all every shard that caches has one.
pub fn images_on(homes: &[ShardId], shard: ShardId, caching: &[ShardId]) -> (u64, u64) {
    match homes.len() {
        0 => (caching.contains(&shard).into(), caching.len() as u64),
        all => (homes.iter().filter(|home| **home == shard).count() as u64, all as u64),
    }
}

/// Sets the parts of the tenants in the configuration of a shard. `volumes` has the volume of each export.
pub fn set_parts(
    config: &mut ShardConfig,
    volumes: &[headworks_core::VolumeId],
    parts: &[CachePart],
    caching: &[ShardId],
) {
    for (number, part) in (0..).zip(parts) {
        let of_tenant =
            config.exports.iter().zip(volumes).filter(|(export, _)| export.tenant.0 == number);
        let volumes = of_tenant.filter_map(|(_, volume)| config.volumes.get(usize::from(volume.0)));
        let cached = volumes.filter(|volume| volume.options.mode != WriteMode::None);
        let homes: Vec<ShardId> = cached.map(|volume| volume.home).collect();
        let share = images_on(&homes, config.id, caching);
        if let Some(known) = config.tenants.get_mut(usize::from(number)) {
            known.memory = part.of_shard(share);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_values_are_the_same() {
        for (word, bytes) in
            [("none", 0), ("64K", 64 << 10), ("64M", 64 << 20), ("3G", 3 << 30), ("65537", 65_537)]
        {
            assert_eq!((parse_part(word), part_word(bytes)), (Ok(bytes), word.to_owned()));
        }
        assert_eq!(parse_part("1.5M"), Ok(3 << 19));
        for wrong in ["63K", "-1", "much"] {
            assert!(parse_part(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn shards_have_parts_as_they_have_images() {
        let part = CachePart { dirty: 1 << 20, min: 3 << 20, max: 0 };
        let homes = [ShardId(0), ShardId(2), ShardId(2)];
        let of = |homes: &[ShardId], shard| {
            let memory = part.of_shard(images_on(homes, ShardId(shard), &[ShardId(0), ShardId(2)]));
            (memory.dirty_max, memory.cache_min, memory.cache_max)
        };
        assert_eq!(of(&homes, 0), (85, 256, u32::MAX));
        assert_eq!(of(&homes, 2), (170, 512, u32::MAX));
        assert_eq!(of(&homes, 1), (1, 0, u32::MAX));
        assert_eq!(of(&[], 2), (128, 384, u32::MAX));
        assert_eq!(dirty_blocks(0), u32::MAX);
    }

    #[test]
    fn minimums_beyond_the_cache_and_above_the_maximum_are_refused() {
        let part = |min| CachePart { min, ..CachePart::default() };
        assert!(check_minimums([part(1 << 20), part(3 << 20)].into_iter(), 4 << 20).is_ok());
        let error = check_minimums([part(2 << 20), part(3 << 20)].into_iter(), 4 << 20);
        assert!(error.unwrap_err().contains("5 MiB in all, more than the cache of 4 MiB"));
        let wrong = CachePart { min: 2 << 20, max: 1 << 20, dirty: 0 };
        assert_eq!(wrong.check().unwrap_err(), "cache-min 2M is more than cache-max 1M");
    }
}
