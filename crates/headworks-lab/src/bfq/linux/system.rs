//! The kernel's side of a run: the scheduler of a device's queue, and groups with weights.
//!
//! Groups are of cgroup version 2. They are removed in the end, also after an error.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use headworks_core::ConfigError;

/// A block device of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KernelDevice {
    queue: PathBuf,
}

impl KernelDevice {
    /// The device at `path`.
    ///
    /// # Errors
    /// It has no queue in /sys/block.
    pub fn new(path: &Path) -> Result<Self, ConfigError> {
        let name = path.file_name().unwrap_or_default();
        let queue = Path::new("/sys/block").join(name).join("queue");
        if queue.join("scheduler").exists() {
            return Ok(Self { queue });
        }
        let message = format!("{} is no whole block device with a queue", path.display());
        Err(ConfigError::new("device", message))
    }

    /// Switches to a scheduler in its state of the beginning.
    ///
    /// # Errors
    /// The kernel does not have it, or the process may not switch.
    pub fn set_scheduler(&self, name: &str) -> Result<(), ConfigError> {
        let path = self.queue.join("scheduler");
        // A scheduler that stays keeps what it has learned of the case before.
        for name in ["none", name] {
            write(&path, name).map_err(|error| refused("scheduler", &path, name, &error))?;
        }
        Ok(())
    }
}

/// The groups of a run, one for each export.
#[derive(Debug)]
pub(super) struct Groups {
    folders: Vec<PathBuf>,
    parent: PathBuf,
}

impl Groups {
    /// Makes groups below the root of the hierarchy, with weights where the kernel has them for bfq.
    ///
    /// # Errors
    /// There is no hierarchy of version 2, or the process may not make groups in it.
    pub fn new(weights: &[u16], weighted: bool) -> Result<Self, ConfigError> {
        let root = mounted()?;
        let parent = root.join(format!("headworks-lab.{}", std::process::id()));
        let mut groups = Self { folders: Vec::new(), parent };
        make(&groups.parent)?;
        for folder in [&root, &groups.parent] {
            put(&folder.join("cgroup.subtree_control"), "+io")?;
        }
        for (number, weight) in weights.iter().enumerate() {
            let folder = groups.parent.join(format!("export-{number}"));
            make(&folder)?;
            groups.folders.push(folder.clone());
            if weighted {
                put(&folder.join("io.bfq.weight"), &weight.to_string())?;
            }
        }
        Ok(groups)
    }

    /// The folder of an export's group.
    pub fn folder(&self, export: usize) -> &Path {
        &self.folders[export]
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for folder in self.folders.iter().chain([&self.parent]) {
            // A group whose last process has just ended may be busy: then it stays, empty.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Moves the calling process to a group.
///
/// # Errors
/// The kernel refuses.
pub(super) fn enter(folder: &Path) -> Result<(), ConfigError> {
    put(&folder.join("cgroup.procs"), "0")
}

fn mounted() -> Result<PathBuf, ConfigError> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let found = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let path = words.next()?;
        (words.next() == Some("cgroup2")).then(|| PathBuf::from(path))
    });
    found.ok_or_else(|| ConfigError::new("cgroup", "no hierarchy of version 2 is mounted"))
}

fn make(folder: &Path) -> Result<(), ConfigError> {
    let say = |error| ConfigError::new("cgroup", format!("{}: {error}", folder.display()));
    fs::create_dir(folder).map_err(say)
}

fn put(path: &Path, text: &str) -> Result<(), ConfigError> {
    write(path, text).map_err(|error| refused("cgroup", path, text, &error))
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    // Not `fs::write`, which creates and truncates.
    let mut file = fs::OpenOptions::new().write(true).open(path)?;
    io::Write::write_all(&mut file, text.as_bytes())
}

fn refused(option: &'static str, path: &Path, text: &str, error: &io::Error) -> ConfigError {
    ConfigError::new(option, format!("{} does not take {text}: {error}", path.display()))
}
