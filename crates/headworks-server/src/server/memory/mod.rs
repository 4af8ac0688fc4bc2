//! The memory of the cache: its size, fixed or with what is free.
//!
//! ```text
//!   available: the kernel's files --reading--> policy --limit--> shards: evict, release
//! ```
//!
//! A fixed size is a hard limit. An automatic size has room for half of the memory; a thread reads what is available and sets the
//! limit of each shard's cache (`Control::CacheLimit`). The thread costs some 100 us of CPU a reading,
//! and asks the shards what they have.

mod available;
mod policy;
mod space;

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant as SystemInstant};

use headworks_core::{ConfigError, Control, Instant, ShardId};

use available::MemoryFiles;
pub use available::MemoryLimit;
pub use policy::AutoCache;
use policy::{CacheLimits, CachePolicy, CacheReading, UNIT};
pub(crate) use space::start_populator;

use crate::control::shards::ShardLink;
use crate::reactor::messages::query::ControlQuery;
use crate::spec::units::parse_size;

/// Time in which a shard answers what its cache has; one that does not is asked again at the next reading.
const ANSWER: Duration = Duration::from_millis(200);
/// Time after which files that could not be read are tried again.
const UNREADABLE: Duration = Duration::from_secs(1);

/// The size of the page cache as a user gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSize {
    /// With the free memory, up to half of all.
    Auto,
    /// This many bytes; 0 for no cache.
    Bytes(u64),
}

impl CacheSize {
    /// Parses `auto` or a size.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(word: &str) -> Result<Self, String> {
        match word {
            "auto" => Ok(Self::Auto),
            _ => parse_size(word).map(Self::Bytes).map_err(|error| format!("{error}; or auto")),
        }
    }
}

/// The thread that sets the limit of a cache of automatic size; it ends when this is dropped.
pub(crate) struct MemoryWatch {
    /// Closed to stop the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl MemoryWatch {
    /// Starts the thread; `kept` if a death of the server loses no dirty data.
    ///
    /// # Errors
    /// No thread or file descriptor is left.
    pub fn start(
        bounds: AutoCache,
        kept: bool,
        caches: CachingShards,
    ) -> Result<Self, ConfigError> {
        let fail = |error| ConfigError::new("cache", format!("cannot watch the memory: {error}"));
        let (stop, stopped) = UnixStream::pair().map_err(fail)?;
        let files = MemoryFiles::find(Path::new("/"));
        let thread = std::thread::Builder::new()
            .name("memory".into())
            .spawn(move || {
                watch(CachePolicy::new(bounds, kept, Instant(0)), &files, &caches, &stopped)
            })
            .map_err(fail)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        self.stop = None;
        // A panic of the thread was reported by itself.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The shards of a server that cache.
pub(crate) struct CachingShards {
    pub link: ShardLink,
    pub shards: Vec<ShardId>,
}

impl CachingShards {
    /// What all caches have; none if a shard does not answer at once.
    fn read(&self) -> Option<CacheReading> {
        let mut sum = CacheReading::default();
        for shard in &self.shards {
            let ask = |answer| ControlQuery::Cache { answer };
            let report = self.link.ask_within(*shard, ANSWER, ask).ok()?;
            let (cache, dirty) = (report.cache.unwrap_or_default(), report.dirty);
            sum.cached += cache.size.resident * UNIT;
            let dirty = dirty.unwrap_or_default();
            sum.requests += cache.hits + cache.misses + dirty.nr_dirtied;
            sum.write_rate += dirty.write_rate;
        }
        Some(sum)
    }

    /// Divides limits among the shards.
    fn set_limits(&self, CacheLimits { bytes, dirtyable }: CacheLimits) {
        let [units, dirtyable] = [bytes, dirtyable].map(|bytes| {
            let units = bytes / UNIT / self.shards.len().max(1) as u64;
            u32::try_from(units).unwrap_or(u32::MAX)
        });
        for shard in &self.shards {
            self.link.tell(*shard, Control::CacheLimit { units, dirtyable });
        }
    }
}

fn watch(
    mut policy: CachePolicy,
    files: &MemoryFiles,
    caches: &CachingShards,
    stopped: &UnixStream,
) {
    let start = SystemInstant::now();
    let now = || Instant(start.elapsed().as_nanos() as u64);
    loop {
        let reading = files.read();
        let caches_have = reading.and_then(|_| caches.read());
        // Without a reading the cache keeps what it has: no descriptor may be left at the moment, or a shard may be busy.
        let limits = reading.zip(caches_have);
        let limits = limits.and_then(|(memory, have)| policy.on_reading(now(), &memory, &have));
        if let Some(limits) = limits {
            let CacheLimits { bytes, dirtyable } = limits;
            tracing::debug!("the cache may use {bytes} bytes, dirty parts are of {dirtyable}");
            caches.set_limits(limits);
        }
        let patience = reading.map_or(UNREADABLE, |reading| policy.next_reading(&reading));
        if is_stopped(stopped, patience) {
            return;
        }
    }
}

/// Waits; returns true if the other end of the socket was closed.
fn is_stopped(mut stopped: &UnixStream, patience: Duration) -> bool {
    use std::io::Read;
    if stopped.set_read_timeout(Some(patience)).is_err() {
        return true;
    }
    // Nothing is ever sent: it ends with the time, or with the other end.
    stopped.read(&mut [0]).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_auto_or_bytes() {
        assert_eq!(CacheSize::parse("auto"), Ok(CacheSize::Auto));
        assert_eq!(CacheSize::parse("256M"), Ok(CacheSize::Bytes(256 << 20)));
        assert_eq!(CacheSize::parse("0"), Ok(CacheSize::Bytes(0)));
        assert!(CacheSize::parse("half").unwrap_err().ends_with("; or auto"));
    }

    #[test]
    fn wait_ends_with_the_time_or_the_other_end() {
        let (stop, stopped) = UnixStream::pair().unwrap();
        assert!(!is_stopped(&stopped, Duration::from_millis(1)));
        drop(stop);
        assert!(is_stopped(&stopped, Duration::from_secs(60)));
    }
}
