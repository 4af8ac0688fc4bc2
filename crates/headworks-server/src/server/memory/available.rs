//! How much memory there is, how much of it is available, and how long tasks wait for it: what the kernel says in files.
//!
//! | what | machine | control group, version 2 | version 1 |
//! |---|---|---|---|
//! | limit | `MemTotal` | `memory.max`, `memory.high` | `memory.limit_in_bytes` |
//! | in use | | `memory.current` | `memory.usage_in_bytes` |
//! | of that, given up without a wait | `MemAvailable` | files in `memory.stat` | the same |
//! | waits | `/proc/pressure/memory` | `memory.pressure` | |
//!
//! The groups are that of this process and those above it; the tightest counts. What cannot be read does not limit anything.

use std::fs;
use std::path::{Path, PathBuf};

/// Memory that a process may use, and what says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes that all of the process may have.
    pub bytes: u64,
    /// What sets the limit, as the subject of a clause.
    pub source: String,
}

/// What the kernel says of memory at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryReading {
    /// Bytes that processes can have at once.
    pub available: u64,
    /// Microseconds since some start in which a task waited for memory.
    pub stalled_us: u64,
}

/// A control group that may have a limit of memory.
#[derive(Clone, Debug)]
struct MemoryGroup {
    /// Its limit and its softer limit, if there is one.
    limits: Vec<PathBuf>,
    used: PathBuf,
    stat: PathBuf,
}

/// Where the kernel says it.
#[derive(Clone, Debug)]
pub(crate) struct MemoryFiles {
    proc: PathBuf,
    groups: Vec<MemoryGroup>,
    pressure: PathBuf,
}

impl MemoryLimit {
    /// The least limit of the machine and of the control groups of this process; none if nothing can be read.
    #[must_use]
    pub fn find() -> Option<Self> {
        Self::find_below(Path::new("/"))
    }

    /// The least limit of addresses: that of this process (`ulimit -v`), and an eighth of the machine's memory where the kernel counts
    /// what is mapped as if it were used (`vm.overcommit_memory` is 2); none if there are plenty.
    #[must_use]
    pub fn of_addresses() -> Option<u64> {
        let counted = Self::counted_below(Path::new("/"));
        own_address_limit().into_iter().chain(counted).min()
    }

    fn counted_below(root: &Path) -> Option<u64> {
        let strict = number(&root.join("proc/sys/vm/overcommit_memory"))? == 2;
        let meminfo = fs::read_to_string(root.join("proc/meminfo")).ok()?;
        field(&meminfo, "MemTotal:").filter(|_| strict).map(|memory| memory / 8)
    }

    /// As [`MemoryLimit::find`], with the files below the directory `root`.
    fn find_below(root: &Path) -> Option<Self> {
        let machine = field(&fs::read_to_string(root.join("proc/meminfo")).ok()?, "MemTotal:")?;
        let machine = Self { bytes: machine, source: "this machine has".into() };
        let groups = groups(root).into_iter().flat_map(|group| group.limits);
        let limits = groups.filter_map(|file| {
            // "max" is no limit.
            Some(Self { bytes: number(&file)?, source: format!("{} is", file.display()) })
        });
        limits.chain([machine]).min_by_key(|limit| limit.bytes)
    }
}

impl MemoryFiles {
    /// The files of this process below the directory `root`.
    pub fn find(root: &Path) -> Self {
        let of_group =
            groups(root).first().map(|group| group.used.with_file_name("memory.pressure"));
        let pressure = of_group.filter(|file| file.exists());
        Self {
            proc: root.join("proc"),
            // Those without a limit, too: it may be set later.
            groups: groups(root),
            pressure: pressure.unwrap_or_else(|| root.join("proc/pressure/memory")),
        }
    }

    /// Reads all of them; none if the machine's memory is not known.
    pub fn read(&self) -> Option<MemoryReading> {
        let machine = fs::read_to_string(self.proc.join("meminfo")).ok()?;
        let machine = field(&machine, "MemAvailable:")?;
        let groups = self.groups.iter().filter_map(MemoryGroup::available);
        let pressure = fs::read_to_string(&self.pressure).unwrap_or_default();
        Some(MemoryReading {
            available: groups.chain([machine]).min().unwrap_or(machine),
            stalled_us: stalled(&pressure).unwrap_or(0),
        })
    }
}

impl MemoryGroup {
    fn limit(&self) -> Option<u64> {
        self.limits.iter().filter_map(|file| number(file)).min()
    }

    /// What is left below the limit, with what the kernel drops of files; none without a limit, which version 1 calls nearly 2^63.
    fn available(&self) -> Option<u64> {
        let left = self.limit()?.saturating_sub(number(&self.used)?);
        let stat = fs::read_to_string(&self.stat).unwrap_or_default();
        let files = |name: &str| {
            let of_group = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            of_group.and_then(|word| word.trim().parse::<u64>().ok())
        };
        // Version 1 counts the groups below under names of their own.
        let sum = |prefix: &str| {
            let lists = ["inactive_file", "active_file"].map(|list| format!("{prefix}{list}"));
            lists.iter().map(|list| files(list)).sum::<Option<u64>>()
        };
        Some(left.saturating_add(sum("total_").or_else(|| sum("")).unwrap_or(0)))
    }
}

/// The bytes of addresses that this process may have; none without a limit.
fn own_address_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the kernel fills in the struct, which lives through the call.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } != 0;
    (!failed && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The number in a file; none if it is a word.
fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// A field of /proc/meminfo, in bytes.
fn field(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The sum of waits of a pressure file: `some avg10=0.00 avg60=0.00 avg300=0.00 total=1234`.
fn stalled(pressure: &str) -> Option<u64> {
    let some = pressure.lines().find(|line| line.starts_with("some "))?;
    some.split_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

/// The groups of this process whose files are there, its own first.
fn groups(root: &Path) -> Vec<MemoryGroup> {
    let list = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    list.lines().flat_map(|line| groups_of(root, line)).collect()
}

/// The group of a line of /proc/self/cgroup, `0::/a/b` (version 2) or `9:memory:/a/b` (version 1), and those above it. In a
/// container the group's own files can lie at the root of the hierarchy.
fn groups_of(root: &Path, line: &str) -> Vec<MemoryGroup> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else {
        return Vec::new();
    };
    let (mounts, limits, used): (&[&str], &[&str], &str) = match controllers {
        "" => (
            &["sys/fs/cgroup", "sys/fs/cgroup/unified"],
            &["memory.max", "memory.high"],
            "memory.current",
        ),
        _ if controllers.split(',').any(|name| name == "memory") => {
            (&["sys/fs/cgroup/memory"], &["memory.limit_in_bytes"], "memory.usage_in_bytes")
        }
        _ => return Vec::new(),
    };
    let group = Path::new(group.trim_start_matches('/'));
    let levels = |mount: &&str| {
        let mount = root.join(mount);
        group.ancestors().map(move |level| mount.join(level)).collect::<Vec<_>>()
    };
    let folders = mounts.iter().flat_map(levels).filter(|folder| folder.join(used).exists());
    let of = |folder: PathBuf| MemoryGroup {
        limits: limits.iter().map(|name| folder.join(name)).collect(),
        used: folder.join(used),
        stat: folder.join("memory.stat"),
    };
    folders.map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A tree of files with the limits of a machine of 1 GiB; `groups` is /proc/self/cgroup.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str, groups: &str, files: &[(&str, &str)]) -> Self {
            let root =
                std::env::temp_dir().join(format!("hw-memory-{}-{name}", std::process::id()));
            let machine = Self(root);
            machine.write("proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable:  512000 kB\n");
            machine.write("proc/self/cgroup", groups);
            let pressure =
                "some avg10=1.00 avg60=0.00 avg300=0.00 total=77\nfull avg10=0 total=3\n";
            machine.write("proc/pressure/memory", pressure);
            files.iter().for_each(|(path, text)| machine.write(path, text));
            machine
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn limit(&self) -> (u64, String) {
            let limit = MemoryLimit::find_below(&self.0).unwrap();
            (limit.bytes / MIB, limit.source)
        }

        fn read(&self) -> MemoryReading {
            MemoryFiles::find(&self.0).read().unwrap()
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn tightest_limit_of_all_levels_counts() {
        let files = [
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.current", "1\n"),
            ("sys/fs/cgroup/a/memory.max", "209715200\n"),
            ("sys/fs/cgroup/a/memory.current", "104857600\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 1048576\nactive_file 3145728\n"),
        ];
        let machine = Machine::new("two", "0::/a/b\n", &files);
        let (bytes, source) = machine.limit();
        assert_eq!(bytes, 200);
        assert!(source.ends_with("sys/fs/cgroup/a/memory.max is"), "{source}");
        let read = machine.read();
        let expected = MemoryReading { available: 104 * MIB, stalled_us: 77 };
        assert_eq!(read, expected);
        machine.write("sys/fs/cgroup/a/memory.high", "115343360\n");
        machine.write("sys/fs/cgroup/a/b/memory.pressure", "some avg10=0 total=9000\n");
        assert_eq!((machine.limit().0, machine.read().available), (110, 14 * MIB));
        assert_eq!(machine.read().stalled_us, 9000, "the group's own waits");
    }

    #[test]
    fn version_1_and_roots_of_containers_are_found() {
        let files = [
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "102760448\n"),
            (
                "sys/fs/cgroup/memory/memory.stat",
                "inactive_file 7\nactive_file 7\ntotal_inactive_file 1048576\ntotal_active_file 0\n",
            ),
        ];
        let machine = Machine::new("one", "5:cpu:/x\n9:memory:/docker/1\n0::/\n", &files);
        assert_eq!((machine.limit().0, machine.read().available), (100, 3 * MIB));
        machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        let files = MemoryFiles::find(&machine.0);
        assert_eq!((machine.limit().0, files.read().unwrap().available), (1024, 500 * MIB));
        machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600\n");
        assert_eq!(files.read().unwrap().available, 3 * MIB, "a limit that was set later");
    }

    #[test]
    fn machine_without_groups_has_its_own_memory() {
        let machine = Machine::new("none", "", &[]);
        assert_eq!(machine.limit(), (1024, "this machine has".to_owned()));
        assert_eq!(machine.read().available, 500 * MIB);
        assert_eq!(MemoryLimit::counted_below(&machine.0), None);
        machine.write("proc/sys/vm/overcommit_memory", "0\n");
        assert_eq!(MemoryLimit::counted_below(&machine.0), None);
        machine.write("proc/sys/vm/overcommit_memory", "2\n");
        assert_eq!(MemoryLimit::counted_below(&machine.0), Some(128 * MIB));
        machine.write("proc/meminfo", "what\n");
        assert_eq!(MemoryFiles::find(&machine.0).read(), None);
        assert_eq!(MemoryLimit::find_below(&machine.0), None);
    }
}
