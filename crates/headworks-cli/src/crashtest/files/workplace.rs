//! The directories of a test: mounts that record, scratch for states, and what stays for the user.
//!
//! ```text
//!   --work, or TMP/headworks-crashtest.PID     run.log, setup.log, crash.hwrec; the mount points dir, dir2, state
//!   scratch                                    a directory for each job; a tmpfs of our own where we may mount one, else in /dev/shm
//! ```
//!
//! What killed tests left is removed at the start: mounts that answer ENOTCONN, and directories whose process is gone.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use headworks_crash::{Access, Mount, Record, RecordWriter, remove_stale};

use super::super::arguments::CrashtestArgs;

/// Name of our mounts in the table of mounts, and of our directories before the process number.
pub const NAME: &str = "headworks-crashtest";

/// The directories of a test.
pub struct Workplace {
    directory: PathBuf,
    scratch: PathBuf,
    /// The tmpfs at `scratch`, if it is our own.
    mounted: Option<Mount>,
    access: Result<Access, String>,
    /// Whether the directory goes at the end; not once something in it is shown to the user.
    temporary: AtomicBool,
}

impl Workplace {
    /// Makes the directories and finds a way to mount.
    pub fn new(options: &CrashtestArgs) -> Result<Self, String> {
        remove_stale(NAME);
        let temporary = std::env::temp_dir();
        let own = format!("{NAME}.{}", std::process::id());
        let memory = scratch_root();
        [&temporary, &memory].into_iter().for_each(|root| remove_dead(root));
        let directory = options.work.clone().unwrap_or_else(|| temporary.join(&own));
        let directory = made(&directory)?;
        let trial = made(&directory.join("dir"))?;
        let access = Access::find(&trial).map_err(|error| error.to_string());
        let mut scratch = directory.join("states");
        let bytes = size(options).saturating_mul(jobs(options) as u64 + 1);
        let mounted = access.as_ref().ok().and_then(|access| {
            made(&scratch).ok()?;
            access.mount_memory(&scratch, bytes).ok()?
        });
        if mounted.is_none() {
            let _ = fs::remove_dir(&scratch);
            scratch = made(&memory.join(own))?;
        }
        let temporary = AtomicBool::new(options.work.is_none());
        Ok(Self { directory, scratch, mounted, access, temporary })
    }

    /// The way to mount; without one an error that names what is missing.
    pub fn access(&self) -> Result<Access, String> {
        self.access.clone()
    }

    /// A mount point: an empty directory of this name.
    pub fn mount_point(&self, name: &str) -> Result<PathBuf, String> {
        made(&self.directory.join(name))
    }

    /// A file for the user.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// A file that the user is told of, so that it stays.
    pub fn shown(&self, name: &str) -> String {
        // Relaxed: the threads of a test are joined before the end.
        self.temporary.store(false, Ordering::Relaxed);
        self.file(name).display().to_string()
    }

    /// The scratch directory of a job.
    pub fn scratch(&self, job: &str) -> PathBuf {
        self.scratch.join(job)
    }

    /// Where the record is, once something is broken; it is written there unless `--record` or `--again` have it.
    pub fn keep_record(
        &self,
        options: &CrashtestArgs,
        record: &Record,
        broken: bool,
    ) -> Result<Option<PathBuf>, String> {
        if let Some(file) = options.files.again.as_ref().or(options.files.record.as_ref()) {
            return Ok(Some(file.clone()));
        }
        if !broken {
            return Ok(None);
        }
        let path = PathBuf::from(self.shown("crash.hwrec"));
        let write = || -> std::io::Result<()> {
            let mut writer = RecordWriter::new(fs::File::create(&path)?, record)?;
            record.changes.iter().try_for_each(|change| writer.push(change))?;
            writer.flush()
        };
        write().map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        Ok(Some(path))
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        drop(self.mounted.take());
        let _ = fs::remove_dir_all(&self.scratch);
        let left = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        left.for_each(|entry| drop(fs::remove_dir(entry.path())));
        if self.temporary.load(Ordering::Relaxed) {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// Bytes of the files of a directory, or of an image, at most.
pub fn size(options: &CrashtestArgs) -> u64 {
    let image = |path: &PathBuf| fs::metadata(path).map_or(0, |image| image.len());
    match options.uses_files() {
        true => options.size.unwrap_or(1 << 30),
        // Room for the directory of promises, too.
        false => options.image.as_ref().map_or(options.disk_size(), image).max(1 << 30),
    }
}

/// Number of checks at once.
pub fn jobs(options: &CrashtestArgs) -> usize {
    let processors = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    options.files.jobs.map_or_else(processors, |jobs| jobs as usize)
}

/// Where memory is a directory.
fn scratch_root() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let memory = Path::new("/dev/shm");
    match runtime.filter(|path| path.is_dir()) {
        Some(path) => path,
        None if memory.is_dir() => memory.to_owned(),
        None => std::env::temp_dir(),
    }
}

/// Removes directories of tests whose process is gone.
fn remove_dead(root: &Path) {
    let Ok(entries) = fs::read_dir(root) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(NAME)?.strip_prefix('.'));
        let Some(process) = process.and_then(|process| process.parse::<u32>().ok()) else {
            continue;
        };
        // A record that the user was told of stays.
        let kept =
            entry.path().join("crash.hwrec").exists() || entry.path().join("run.log").exists();
        if !kept && !Path::new(&format!("/proc/{process}")).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn made(directory: &Path) -> Result<PathBuf, String> {
    fs::create_dir_all(directory)
        .and_then(|()| directory.canonicalize())
        .map_err(|error| format!("{} cannot be made: {error}", directory.display()))
}
