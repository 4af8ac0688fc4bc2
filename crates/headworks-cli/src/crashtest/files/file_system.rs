//! The kernel's file systems on images: made by their own programs, mounted through loop devices.
//!
//! Mounts are in the mount namespace of the test, and a loop device goes with its mount: nothing is left, however the test ends.

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use headworks_crash::Model;

use super::super::child::{kill_group, wait};

/// Time limit of a program that makes or mounts a file system.
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes of its complaint that are shown.
const SAID_MAX: u64 = 400;
const MEBIBYTE: u64 = 1 << 20;

/// Small images would get blocks of 1 KiB, which disks in use do not have; what mkfs leaves to the kernel, the kernel would write later.
const EXT4_OPTIONS: &[&str] =
    &["-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"];

/// A file system of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    Ext4,
    Xfs,
    Btrfs,
}

impl FileSystem {
    const ALL: [Self; 3] = [Self::Ext4, Self::Xfs, Self::Btrfs];

    /// Its word, as it is given, printed and known to mount.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// What it may lose, as far as is known.
    pub const fn model(self) -> Model {
        match self {
            Self::Ext4 | Self::Xfs => Model::Journal,
            Self::Btrfs => Model::LogTree,
        }
    }

    /// Bytes of an image for files of `used` bytes: what the file system needs at least, and three times the files.
    pub const fn image_size(self, used: u64) -> u64 {
        let least = match self {
            Self::Ext4 => 64,
            Self::Xfs => 320,
            Self::Btrfs => 256,
        };
        (least * MEBIBYTE + 3 * used).next_multiple_of(MEBIBYTE)
    }

    /// The program that makes it, its options, and the package that has it.
    const fn maker(self) -> (&'static str, &'static [&'static str], &'static str) {
        match self {
            Self::Ext4 => ("mkfs.ext4", EXT4_OPTIONS, "e2fsprogs"),
            Self::Xfs => ("mkfs.xfs", &["-q", "-f", "-K"], "xfsprogs"),
            Self::Btrfs => ("mkfs.btrfs", &["-q", "-f", "-K"], "btrfs-progs"),
        }
    }

    const fn mount_options(self) -> &'static str {
        match self {
            // States have the identity of their disk.
            Self::Xfs => "loop,nouuid",
            Self::Ext4 | Self::Btrfs => "loop",
        }
    }

    /// Makes it on an image.
    pub fn make(self, image: &Path) -> Result<(), String> {
        let (program, options, package) = self.maker();
        let made = run(Command::new(program).args(options).arg(image));
        made.map_err(|error| {
            format!("{self} cannot be made: {program}, of the package {package}: {error}")
        })
    }

    /// Mounts an image on an empty directory. The error is what `mount` says.
    pub fn mount(self, image: &Path, point: &Path) -> Result<MountedImage, String> {
        let options = ["-n", "-t", self.name(), "-o", self.mount_options(), "--"];
        run(Command::new("mount").args(options).arg(image).arg(point))?;
        Ok(MountedImage { point: point.to_owned() })
    }
}

impl std::fmt::Display for FileSystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for FileSystem {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|one| one.name() == word);
        found.ok_or_else(|| format!("`{word}` is no file system for --fs; ext4, xfs and btrfs are"))
    }
}

/// A mounted image, which is unmounted when this is dropped; its loop device goes with it.
#[derive(Debug)]
pub struct MountedImage {
    point: PathBuf,
}

impl MountedImage {
    /// The root of the file system.
    pub fn point(&self) -> &Path {
        &self.point
    }
}

impl Drop for MountedImage {
    fn drop(&mut self) {
        let Ok(path) = CString::new(self.point.as_os_str().as_bytes()) else { return };
        for flags in [0, libc::MNT_DETACH] {
            // SAFETY: the path ends with a zero and lives during the call.
            if unsafe { libc::umount2(path.as_ptr(), flags) } == 0 {
                return;
            }
        }
    }
}

/// Runs a program to its end, within the time limit. The error is what it says.
fn run(command: &mut Command) -> Result<(), String> {
    // Not everybody has the administrator's folders in PATH.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    command.env("PATH", path).env("LC_ALL", "C").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let ended = wait(&mut child, LIMIT).map_err(|error| error.to_string())?;
    kill_group(&child);
    let status = ended.ok_or("it does not end")?;
    let mut said = Vec::new();
    if let Some(output) = child.stderr.take() {
        let _ = output.take(SAID_MAX).read_to_end(&mut said);
    }
    let said = String::from_utf8_lossy(&said);
    let line = said.lines().map(str::trim).find(|line| !line.is_empty());
    match status.success() {
        true => Ok(()),
        false => Err(line.map_or_else(|| status.to_string(), str::to_owned)),
    }
}

/// Release of the running kernel.
pub fn kernel() -> String {
    let read = || -> std::io::Result<String> {
        let mut text = String::new();
        File::open("/proc/sys/kernel/osrelease")?.take(SAID_MAX).read_to_string(&mut text)?;
        Ok(text.trim().to_owned())
    };
    read().unwrap_or_else(|_| "?".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_have_room_for_the_files_and_what_is_written_beside_them() {
        for one in FileSystem::ALL {
            assert_eq!(one.name().parse(), Ok(one));
            assert!(one.image_size(0) >= 64 * MEBIBYTE);
            assert_eq!(one.image_size(5_000_001) % MEBIBYTE, 0);
            assert!(one.image_size(MEBIBYTE << 10) > 3 * (MEBIBYTE << 10));
        }
        assert!("vfat".parse::<FileSystem>().unwrap_err().contains("ext4, xfs and btrfs are"));
    }

    #[test]
    fn program_that_fails_says_why() {
        let shell = |text: &str| run(Command::new("sh").args(["-c", text]));
        assert_eq!(shell("true"), Ok(()));
        assert_eq!(shell("echo >&2; echo no room >&2; exit 1"), Err("no room".into()));
        assert_eq!(shell("exit 3"), Err("exit status: 3".into()));
    }
}
