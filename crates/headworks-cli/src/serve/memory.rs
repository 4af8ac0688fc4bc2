//! Compares what the server may use with the memory it has: the machine's, and the limits of its control group.
//!
//! Memory is taken on first use, so a cache that is too large starts well and ends in a kill, which loses what is only in the
//! cache. A cache that was asked for and is larger than all memory is refused. Cache and buffers that are together too large,
//! or a default that is, give a warning: the limit may be raised later, and not all of it need be used.

use std::fs;
use std::path::{Path, PathBuf};

use headworks::display_size;
use headworks_core::ConfigError;
use headworks_server::ServerOptions;
use headworks_server::config::{ConfigFile, Origin};

/// Memory that a process may use, and what says so.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MemoryLimit {
    bytes: u64,
    /// What sets the limit, as the subject of a clause.
    source: String,
}

/// Checks the cache and the buffers against the memory of this machine and control group; returns a warning.
///
/// # Errors
/// The cache was asked for and exceeds all memory.
pub(super) fn check(
    config: &ConfigFile,
    options: &ServerOptions,
) -> Result<Option<String>, ConfigError> {
    let Some(limit) = find_limit(Path::new("/")) else { return Ok(None) };
    let said = config.server.iter().find(|setting| setting.name == "cache");
    let is_default = said.is_none_or(|setting| setting.origin == Origin::Default);
    let buffers = (options.buffers as u64).saturating_mul(options.shards.into());
    judge(&limit, options.cache, buffers, is_default)
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

/// The least limit of the machine and of the control groups of this process, below the directory `root`; none if nothing can
/// be read.
fn find_limit(root: &Path) -> Option<MemoryLimit> {
    let machine = total_memory(&fs::read_to_string(root.join("proc/meminfo")).ok()?)?;
    let machine = MemoryLimit { bytes: machine, source: "this machine has".into() };
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().flat_map(|line| group_files(root, line)).filter_map(|file| {
        // "max" is no limit.
        let bytes = fs::read_to_string(&file).ok()?.trim().parse().ok()?;
        Some(MemoryLimit { bytes, source: format!("{} is", file.display()) })
    });
    limits.chain([machine]).min_by_key(|limit| limit.bytes)
}

/// `MemTotal` of /proc/meminfo.
fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Files that may limit the memory of a group and of those above it, for a line of /proc/self/cgroup: `0::/a/b` (version 2)
/// or `9:memory:/a/b` (version 1). In a container the group's own files can lie at the root of the hierarchy.
fn group_files(root: &Path, line: &str) -> Vec<PathBuf> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
        return Vec::new();
    };
    let (mounts, name): (&[&str], &str) = match controllers {
        "" => (&["sys/fs/cgroup", "sys/fs/cgroup/unified"], "memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => {
            (&["sys/fs/cgroup/memory"], "memory.limit_in_bytes")
        }
        _ => return Vec::new(),
    };
    let group = Path::new(group.trim_start_matches('/'));
    let levels = |mount: &&str| {
        let mount = root.join(mount);
        group.ancestors().map(move |level| mount.join(level).join(name)).collect::<Vec<_>>()
    };
    mounts.iter().flat_map(levels).collect()
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

    /// A tree of files with the limits of a machine; `groups` is /proc/self/cgroup.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str, groups: &str, files: &[(&str, &str)]) -> Self {
            let root =
                std::env::temp_dir().join(format!("hw-memory-{}-{name}", std::process::id()));
            let machine = Self(root);
            machine.put("proc/meminfo", "MemTotal:   1048576 kB\nMemFree: 1 kB\n");
            machine.put("proc/self/cgroup", groups);
            files.iter().for_each(|(path, text)| machine.put(path, text));
            machine
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn limit(&self) -> (u64, String) {
            let found = find_limit(&self.0).unwrap();
            (found.bytes, found.source.replace(&format!("{}/", self.0.display()), "/"))
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn least_limit_of_both_versions_and_of_groups_above_counts() {
        let none = Machine::new("none", "", &[]);
        assert_eq!(none.limit(), (1 << 30, "this machine has".into()));
        let two = Machine::new(
            "two",
            "0::/system.slice/hw.service\n",
            &[
                ("sys/fs/cgroup/system.slice/hw.service/memory.max", "max\n"),
                ("sys/fs/cgroup/system.slice/memory.max", "209715200\n"),
            ],
        );
        let file = "/sys/fs/cgroup/system.slice/memory.max is".to_owned();
        assert_eq!(two.limit(), (200 * MIB, file));
        // Version 1 beside an empty version 2; a container sees its own group at the root.
        let one = Machine::new(
            "one",
            "9:memory:/docker/0123\n8:pids:/x\n0::/\n",
            &[
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600\n"),
                ("sys/fs/cgroup/pids/memory.limit_in_bytes", "1\n"),
            ],
        );
        let file = "/sys/fs/cgroup/memory/memory.limit_in_bytes is".to_owned();
        assert_eq!(one.limit(), (100 * MIB, file));
        let unlimited = Machine::new(
            "unlimited",
            "9:cpu,memory:/\n",
            &[("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")],
        );
        assert_eq!(unlimited.limit().0, 1 << 30);
    }

    #[test]
    fn odd_files_are_no_limit() {
        assert_eq!(find_limit(Path::new("/nonexistent")), None);
        assert_eq!(total_memory("MemTotal: x kB"), None);
        assert_eq!(group_files(Path::new("/"), "nonsense"), Vec::<PathBuf>::new());
        let odd = Machine::new("odd", "0::\n:::\n", &[("sys/fs/cgroup/memory.max", "lots")]);
        assert_eq!(odd.limit().0, 1 << 30);
    }
}
