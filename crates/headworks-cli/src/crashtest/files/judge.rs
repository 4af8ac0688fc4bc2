//! The user's check on one state: its directories are made, the command runs, and its answer is read.
//!
//! Everything is bounded: the check has a time limit, it is killed with its process group, its directories are in a tmpfs of limited size,
//! and of what it says the last 64 KiB are read and the last line kept, up to 400 characters.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use headworks_crash::{Disk, Record, Tree, write_tree};

use super::super::child::{kill_group, wait};
use super::disk;
use super::program::shell;
use super::workplace::Workplace;

/// Bytes of what a check says that are read.
const SAID_MAX: u64 = 64 << 10;
/// Characters of its last line that are kept, of each broken state.
const LINE_MAX: usize = 400;
/// Lines of it that are shown.
const SHOWN_LINES: usize = 20;

/// What the check says of a state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Holds,
    /// Its last line, or how it ended.
    Broken(String),
}

/// Runs the check on states, one at a time.
pub struct Judge<'a> {
    check: &'a str,
    limit: Duration,
    /// The directory of this job.
    scratch: PathBuf,
    /// The place whose promises the file has.
    promised: Option<usize>,
}

impl<'a> Judge<'a> {
    /// A judge with the scratch directory `job`.
    pub fn new(place: &Workplace, job: &str, check: &'a str, timeout: u64) -> Self {
        let limit = Duration::from_nanos(timeout);
        Self { check, limit, scratch: place.scratch(job), promised: None }
    }

    /// Makes the directories of a state and runs the check there. The error is a sentence.
    pub fn check(
        &mut self,
        record: &Record,
        place: usize,
        trees: &[Tree],
    ) -> Result<Verdict, String> {
        let paths = self.make(record, trees)?;
        self.promise(record, place)?;
        self.judge(&paths)
    }

    /// Runs the check on directories that are there, with the promises before `place`.
    pub fn check_there(
        &mut self,
        record: &Record,
        place: usize,
        paths: &[(String, PathBuf)],
    ) -> Result<Verdict, String> {
        self.clear().map_err(|error| self.failed(&error))?;
        self.promise(record, place)?;
        self.judge(paths)
    }

    /// The last lines that the check said, each behind a line's end.
    pub fn said(&self) -> String {
        let said = self.tail();
        let lines: Vec<&str> = said.lines().collect();
        let last = &lines[lines.len().saturating_sub(SHOWN_LINES)..];
        last.iter().map(|line| format!("\n    {line}")).collect()
    }

    /// Makes the directories of a state, in place of those of the last one.
    fn make(&mut self, record: &Record, trees: &[Tree]) -> Result<Vec<(String, PathBuf)>, String> {
        let mut paths = Vec::new();
        let made = self.clear().and_then(|()| {
            for (disk, tree) in record.disks.iter().zip(trees) {
                let path = self.scratch.join(&disk.name);
                write_tree(tree, &path)?;
                paths.push((disk.name.clone(), path));
            }
            Ok(())
        });
        made.map_err(|error| self.failed(&error))?;
        Ok(paths)
    }

    fn clear(&mut self) -> io::Result<()> {
        if let Ok(entries) = fs::read_dir(&self.scratch) {
            for entry in entries {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    remove_directory(&entry.path())?;
                }
            }
        }
        fs::create_dir_all(&self.scratch)
    }

    fn promise(&mut self, record: &Record, place: usize) -> Result<(), String> {
        if self.promised != Some(place) {
            let written = fs::write(self.scratch.join("promises"), record.promises(place));
            written.map_err(|error| self.failed(&error))?;
            self.promised = Some(place);
        }
        Ok(())
    }

    fn judge(&self, paths: &[(String, PathBuf)]) -> Result<Verdict, String> {
        let start = || -> io::Result<Child> {
            let said = File::create(self.scratch.join("said"))?;
            let image = paths.iter().find(|(name, _)| name == Disk::IMAGE);
            let mut command = match image {
                Some((_, directory)) => disk::check_of(directory, self.check, paths)?,
                None => {
                    let mut shell = shell(self.check, paths);
                    shell.stderr(said.try_clone()?);
                    shell
                }
            };
            command.stdin(File::open(self.scratch.join("promises"))?).stdout(said).spawn()
        };
        let mut child = start().map_err(|error| self.failed(&error))?;
        let ended = wait(&mut child, self.limit).map_err(|error| self.failed(&error));
        kill_group(&child);
        let said = || {
            self.tail()
                .lines()
                .rev()
                .find(|line| !line.trim().is_empty())
                .map(|line| line.trim().chars().take(LINE_MAX).collect())
        };
        Ok(match ended? {
            Some(status) if status.success() => Verdict::Holds,
            Some(status) if status.signal().is_some() => {
                Verdict::Broken(format!("the check ends with {status}"))
            }
            Some(status) => {
                Verdict::Broken(said().unwrap_or_else(|| format!("the check ends with {status}")))
            }
            None => Verdict::Broken(format!(
                "the check did not end within {} s",
                self.limit.as_secs_f64()
            )),
        })
    }

    fn tail(&self) -> String {
        let read = || -> io::Result<Vec<u8>> {
            let mut said = File::open(self.scratch.join("said"))?;
            let length = said.metadata()?.len();
            said.seek(SeekFrom::Start(length.saturating_sub(SAID_MAX)))?;
            let mut bytes = Vec::new();
            said.take(SAID_MAX).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
    }

    fn failed(&self, error: &io::Error) -> String {
        format!("a state cannot be made in {}: {error}", self.scratch.display())
    }
}

/// Removes a directory, also one that a state or a check made unreadable.
fn remove_directory(path: &std::path::Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if fs::remove_dir_all(path).is_ok() {
        return Ok(());
    }
    let mut pending = vec![path.to_owned()];
    while let Some(directory) = pending.pop() {
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700))?;
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    fs::remove_dir_all(path)
}
