//! Compares what the server may use with the memory it has: the machine's, and the limits of its control group.
//!
//! Memory is taken on first use, so a cache that is too large starts well and ends in a kill, which loses what is only in the
//! cache. A cache that was asked for and is larger than all memory is refused. Cache and buffers that are together too large,
//! or a default that is, give a warning: the limit may be raised later, and not all of it need be used.

use headworks::house::display_size;
use headworks_core::ConfigError;
use headworks_server::config::{ConfigFile, Origin};
use headworks_server::{AutoCache, CacheSize, MemoryLimit, ServerOptions, Takeover};

/// Size of the cache on a machine whose memory is not known.
const CACHE_UNKNOWN: u64 = 256 << 20;

/// The room of the cache in bytes, and its bounds if its size is automatic.
pub(super) fn cache_size(size: CacheSize) -> (u64, Option<AutoCache>) {
    match (size, MemoryLimit::find()) {
        (CacheSize::Bytes(bytes), _) => (bytes, None),
        (CacheSize::Auto, None) => (CACHE_UNKNOWN, None),
        (CacheSize::Auto, Some(limit)) => {
            // Half of the addresses are for everything else.
            let addresses = MemoryLimit::of_addresses().map_or(u64::MAX, |bytes| bytes / 2);
            let bounds = AutoCache::of_memory(limit.bytes).with_room_up_to(addresses);
            (bounds.room, Some(bounds))
        }
    }
}

/// Fits a cache of automatic size to the file that its memory is, if there is one.
///
/// # Errors
/// The file is of no use.
pub(super) fn fit_cache(options: &mut ServerOptions) -> Result<(), ConfigError> {
    let (Some(bounds), Some(cache)) = (options.auto_cache, &options.process.cache_file) else {
        return Ok(());
    };
    let adopted = options.process.takeover.as_ref().is_some_and(Takeover::has_memory);
    let fitted = bounds.fitted_to(&cache.file, adopted).map_err(|error| {
        ConfigError::new("cache-file", format!("cannot use {}: {error}", cache.name))
    })?;
    (options.cache, options.auto_cache) = (fitted.room, Some(fitted));
    Ok(())
}

/// Checks the cache and the buffers against the memory of this machine and control group; returns a warning.
///
/// # Errors
/// The cache was asked for and exceeds all memory.
pub(super) fn check(
    config: &ConfigFile,
    options: &ServerOptions,
) -> Result<Option<String>, ConfigError> {
    let Some(limit) = MemoryLimit::find() else { return Ok(None) };
    let said = config.server.iter().find(|setting| setting.name == "cache");
    let is_default = said.is_none_or(|setting| setting.origin == Origin::Default);
    let buffers = (options.buffers as u64).saturating_mul(options.shards.into());
    // An automatic size keeps within the memory by itself, except for its floor.
    let cache = options.auto_cache.map_or(options.cache, |bounds| bounds.floor);
    judge(&limit, cache, buffers, is_default)
}

fn judge(
    limit: &MemoryLimit,
    cache: u64,
    buffers: u64,
    is_default: bool,
) -> Result<Option<String>, ConfigError> {
    let MemoryLimit { bytes, source } = limit;
    let (has, cached) = (display_size(*bytes), display_size(cache));
    if cache > *bytes && !is_default {
        let message = format!("{cached} is more than all memory: {source} {has}; use less");
        return Err(ConfigError::new("cache", message));
    }
    // Tables take 2 % beside the cache.
    let tables = cache / 50;
    let all = cache.saturating_add(tables).saturating_add(buffers);
    let warning = || {
        format!(
            "the cache ({cached}) and the request buffers ({}) may take {}, but {source} {has}: lower --cache or --buffers, or the server may be killed and lose what is only in its cache",
            display_size(buffers),
            display_size(all),
        )
    };
    Ok((all > *bytes).then(warning))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn limit(mib: u64) -> MemoryLimit {
        MemoryLimit { bytes: mib * MIB, source: "this machine has".into() }
    }

    #[test]
    fn cache_beyond_memory_is_refused_if_asked_for() {
        let refused = judge(&limit(200), 256 * MIB, 0, false).unwrap_err();
        assert_eq!(refused.option, "cache");
        assert!(
            refused.message.contains("256 MiB is more than all memory: this machine has 200 MiB")
        );
        let warning = judge(&limit(200), 256 * MIB, 128 * MIB, true).unwrap().unwrap();
        assert!(warning.contains("may take 389") && warning.contains("has 200 MiB"), "{warning}");
    }

    #[test]
    fn cache_and_buffers_beyond_memory_give_a_warning() {
        assert!(judge(&limit(400), 256 * MIB, 128 * MIB, false).unwrap().is_none());
        // 2 % for the tables do not fit.
        assert!(judge(&limit(385), 256 * MIB, 128 * MIB, false).unwrap().is_some());
        assert!(judge(&limit(100), 0, 128 * MIB, false).unwrap().is_some());
    }

    #[test]
    fn automatic_size_is_half_of_the_memory() {
        assert_eq!(cache_size(CacheSize::Bytes(7)), (7, None));
        let (room, bounds) = cache_size(CacheSize::Auto);
        let memory = MemoryLimit::find().unwrap().bytes;
        assert!(room.abs_diff(memory / 2) <= 2 << 20 && bounds.is_some(), "{room} of {memory}");
    }
}
