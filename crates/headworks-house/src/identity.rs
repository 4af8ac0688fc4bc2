//! Which image a file or block device is, also after a process has died or the host was started again.
//!
//! Device and inode numbers are given out again: on ext4 and XFS the next file gets the inode of the one that was deleted, and the
//! next disk gets the number of the one that was detached. What the kernel gives out once only tells two such apart:
//!
//! ```text
//!   file          device, inode | file handle (its generation), time of birth      no handle: time of birth; neither: not known
//!   block device  rdev, 0       | sequence of the disk, partition, dm uuid         no sequence (before Linux 5.15): not known
//! ```
//!
//! Rule: data of one process are given to an image of another one only if [`Identity::is_known`] and the identities are equal. Two
//! identities that were taken while the image was open all the time are equal whenever the numbers are. The number of the device is
//! not the same after a start of the host: [`Identity::is_same_file`] leaves it out.

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Which image it is, whatever its paths are. Two exports of one identity are one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// The disk or filesystem it is on (`st_dev`, or `st_rdev` of a block device): files that share it share one queue.
    pub filesystem: u64,
    /// Its number there; 0 for a block device.
    pub inode: u64,
    /// Time of birth of a file in nanoseconds since 1970, or the sequence of a disk; 0 if that is not known.
    born: u64,
    /// Digest of the file's handle, of the partition and device-mapper uuid of a block device, or of a name; 0 for none.
    name: u128,
}

impl Identity {
    /// Bytes of the serialised form.
    pub const BYTES: usize = 40;

    /// The identity of what is at `path`, without opening it for reading or writing.
    ///
    /// # Errors
    /// When there is nothing.
    pub fn of(path: &Path) -> io::Result<Self> {
        // Such a descriptor needs no permission, waits for nothing, and changes nothing.
        let place = File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
        Self::of_file(&place)
    }

    /// The identity of an open file or block device.
    ///
    /// # Errors
    /// The kernel does not tell its numbers.
    pub fn of_file(file: &File) -> io::Result<Self> {
        Ok(Self::of_open(file, &file.metadata()?))
    }

    /// As [`Identity::of_file`], with what the kernel told of the file before.
    pub(crate) fn of_open(file: &File, metadata: &Metadata) -> Self {
        if metadata.file_type().is_block_device() {
            return Self::of_disk(metadata.rdev());
        }
        let (filesystem, inode) = (metadata.dev(), metadata.ino());
        let (born, name) = (birth_of(file).unwrap_or(0), handle_of(file).unwrap_or(0));
        Self { filesystem, inode, born, name }
    }

    fn of_disk(device: u64) -> Self {
        let folder = folder_of_disk(device);
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
        let partition = read("partition");
        let disk = if partition.is_some() { "../diskseq" } else { "diskseq" };
        let born = read(disk).and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let parts = [partition, read("start"), read("dm/uuid")].map(Option::unwrap_or_default);
        Self { filesystem: device, inode: 0, born, name: digest(parts.join("\0").as_bytes()) }
    }

    /// The identity of what has a name of its own, as an export of another server: `kind` is that of no filesystem.
    #[must_use]
    pub const fn named(kind: u64, digest: u64) -> Self {
        let inode = if digest == 0 { 1 } else { digest };
        Self { filesystem: kind, inode, born: 0, name: inode as u128 }
    }

    /// What earlier versions of this program know of an image: its numbers.
    #[must_use]
    pub const fn of_numbers(filesystem: u64, inode: u64) -> Self {
        Self { filesystem, inode, born: 0, name: 0 }
    }

    /// Whether it has the numbers of another: the same image while that is open, perhaps its successor otherwise.
    #[must_use]
    pub fn has_numbers_of(&self, other: &Self) -> bool {
        (self.filesystem, self.inode) == (other.filesystem, other.inode)
    }

    /// Whether no later image can have this identity.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.born != 0 || self.inode != 0 && self.name != 0
    }

    /// Whether it is the same file, perhaps on a filesystem that got another number since.
    #[must_use]
    pub fn is_same_file(&self, other: &Self) -> bool {
        Self { filesystem: 0, ..*self } == Self { filesystem: 0, ..*other }
    }

    /// Whether it is a block device.
    #[must_use]
    pub fn is_disk(&self) -> bool {
        self.inode == 0
    }

    /// Whether it is a partition of a disk.
    #[must_use]
    pub fn is_partition(&self) -> bool {
        self.is_disk() && folder_of_disk(self.filesystem).join("partition").exists()
    }

    /// Sequence of the disk that a file's filesystem is on; 0 where that is no disk, or is not known. A copy of a whole filesystem has
    /// the same files, on another disk.
    #[must_use]
    pub fn disk_of_filesystem(&self) -> u64 {
        if self.is_disk() { 0 } else { Self::of_disk(self.filesystem).born }
    }

    /// When a file was born, in nanoseconds of real time since 1970.
    #[must_use]
    pub fn birth(&self) -> Option<u64> {
        (!self.is_disk() && self.born != 0).then_some(self.born)
    }

    /// The serialised form, of fixed length.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.filesystem.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.inode.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.born.to_le_bytes());
        bytes[24..].copy_from_slice(&self.name.to_le_bytes());
        bytes
    }

    /// Reads what [`Identity::to_bytes`] makes.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Self {
        let word = |at: usize| {
            u64::from_le_bytes(std::array::from_fn::<u8, 8, _>(|index| bytes[at + index]))
        };
        let name = u128::from(word(32)) << 64 | u128::from(word(24));
        Self { filesystem: word(0), inode: word(8), born: word(16), name }
    }
}

/// The serialised form in hexadecimal digits, for records and marks.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Identity {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no identity of an image");
        if text.len() != 2 * Self::BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; Self::BYTES];
        for (index, byte) in bytes.iter_mut().enumerate() {
            let digits = &text[2 * index..2 * index + 2];
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        Ok(Self::from_bytes(&bytes))
    }
}

fn folder_of_disk(device: u64) -> PathBuf {
    let (major, minor) = (libc::major(device), libc::minor(device));
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

/// FNV-1a of 128 bits, never 0. The bytes are the kernel's: a user cannot search for two of one digest.
fn digest(bytes: &[u8]) -> u128 {
    let step = |hash: u128, byte: &u8| {
        (hash ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b)
    };
    bytes.iter().fold(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d, step).max(1)
}

/// Calls `statx` by its number: not every C library has it.
fn birth_of(file: &File) -> Option<u64> {
    const BIRTH: u32 = 0x800;
    let mut found = [0_u8; 256];
    // SAFETY: the kernel writes the 256 bytes of its structure, which live through the call; the path is empty.
    let status = unsafe {
        let (fd, path) = (file.as_raw_fd(), c"".as_ptr());
        libc::syscall(libc::SYS_statx, fd, path, libc::AT_EMPTY_PATH, BIRTH, found.as_mut_ptr())
    };
    let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|index| found[at + index]));
    let seconds = i64::from_ne_bytes(std::array::from_fn(|index| found[0x50 + index]));
    // A file from before 1970 counts as one without a birth.
    let seconds = u64::try_from(seconds).ok()?;
    let born = seconds.checked_mul(1_000_000_000)?.checked_add(word(0x58).into())?;
    (status == 0 && word(0) & BIRTH != 0).then_some(born)
}

/// Digest of the handle that the kernel gives to NFS servers: it has the generation of the inode.
fn handle_of(file: &File) -> Option<u128> {
    const MOST: usize = 128;
    // Length and type, then the handle; aligned for the kernel's structure.
    let mut handle = [0_u32; 2 + MOST / 4];
    handle[0] = MOST as u32;
    let mut mount: libc::c_int = 0;
    // SAFETY: the kernel writes at most `MOST` bytes behind the two words, and the number of the mount; both live through the call.
    let status = unsafe {
        let (fd, path, mount) = (file.as_raw_fd(), c"".as_ptr(), &raw mut mount);
        let call = libc::SYS_name_to_handle_at;
        libc::syscall(call, fd, path, handle.as_mut_ptr(), mount, libc::AT_EMPTY_PATH)
    };
    let len = (handle[0] as usize).min(MOST);
    let bytes: Vec<u8> = handle.iter().flat_map(|word| word.to_ne_bytes()).take(8 + len).collect();
    (status == 0 && len > 0).then(|| digest(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_testing::{TempFile, memory_directory};

    #[test]
    fn hard_links_of_one_file_have_one_identity() {
        let (image, other) = (TempFile::new("identity"), TempFile::new("identity"));
        let link = TempFile::absent("identity-link");
        std::fs::hard_link(image.path(), link.path()).unwrap();
        let of = |file: &TempFile| Identity::of(file.path()).unwrap();
        assert_eq!(of(&image), of(&link));
        assert_ne!(of(&image), of(&other));
        assert_eq!(of(&image).filesystem, of(&other).filesystem);
        assert_eq!(Identity::of_file(&File::open(link.path()).unwrap()).unwrap(), of(&image));
    }

    #[test]
    fn file_knows_the_sequence_of_its_disk_where_there_is_one() {
        use std::os::unix::fs::MetadataExt;
        for directory in [Some(std::env::temp_dir()), memory_directory()].into_iter().flatten() {
            let image = TempFile::absent_in(&directory, "disk-of");
            std::fs::write(image.path(), [1; 512]).unwrap();
            let device = std::fs::metadata(image.path()).unwrap().dev();
            let name = format!("{}:{}", libc::major(device), libc::minor(device));
            // The kernel's own name of the disk, by way of the partition that lies on it.
            let block = std::fs::canonicalize(Path::new("/sys/dev/block").join(name)).ok();
            let sequence = |folder: &Path| std::fs::read_to_string(folder.join("diskseq")).ok();
            let disk = block.and_then(|at| sequence(&at).or_else(|| sequence(at.parent()?)));
            let expected = disk.map_or(0, |text| text.trim().parse().unwrap());
            let found = Identity::of(image.path()).unwrap();
            assert_eq!(found.disk_of_filesystem(), expected, "{directory:?}");
        }
    }

    #[test]
    fn file_that_gets_the_inode_of_a_deleted_one_has_another_identity() {
        let mut reused = 0;
        for directory in [Some(std::env::temp_dir()), memory_directory()].into_iter().flatten() {
            let mut before: Vec<Identity> = Vec::new();
            for _ in 0..50 {
                let image = TempFile::absent_in(&directory, "reused");
                std::fs::write(image.path(), [1; 512]).unwrap();
                let found = Identity::of(image.path()).unwrap();
                assert!(found.is_known(), "{directory:?} has handles or times of birth");
                reused += usize::from(before.iter().any(|other| other.has_numbers_of(&found)));
                assert!(!before.contains(&found), "{found:?}");
                before.push(found);
            }
        }
        println!("inodes were used again {reused} times");
    }

    #[test]
    fn identity_is_kept_through_renames_writes_and_growth() {
        let (image, moved) = (TempFile::new("identity-kept"), TempFile::absent("identity-moved"));
        let before = Identity::of(image.path()).unwrap();
        std::fs::write(image.path(), [1; 8192]).unwrap();
        File::options().write(true).open(image.path()).unwrap().set_len(1 << 20).unwrap();
        std::fs::rename(image.path(), moved.path()).unwrap();
        assert_eq!(Identity::of(moved.path()).unwrap(), before);
    }

    #[test]
    fn serialised_form_is_read_back() {
        let image = TempFile::new("identity-bytes");
        let all = [
            Identity::of(image.path()).unwrap(),
            Identity::named(7, 8),
            Identity::of_numbers(u64::MAX, 1),
        ];
        for identity in all {
            assert_eq!(Identity::from_bytes(&identity.to_bytes()), identity);
            assert_eq!(identity.to_string().parse(), Ok(identity));
        }
        for wrong in ["", "00", &"0g".repeat(Identity::BYTES), &"\u{e9}".repeat(Identity::BYTES)] {
            assert!(wrong.parse::<Identity>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_alone_make_no_known_identity() {
        assert!(!Identity::of_numbers(1, 2).is_known());
        assert!(Identity::named(1, 0).is_known());
        let disk = Identity { inode: 0, born: 0, name: 9, filesystem: 1 };
        assert!(!disk.is_known(), "a partition at the same place may be of another disk");
        assert!(Identity { born: 4, ..disk }.is_known());
        let other = Identity { filesystem: 2, ..Identity::named(1, 5) };
        assert!(other.is_same_file(&Identity::named(1, 5)) && other != Identity::named(1, 5));
    }

    #[test]
    fn filesystem_is_on_the_disk_whose_sequence_the_kernel_shows() {
        let image = TempFile::new("identity-disk");
        let identity = Identity::of(image.path()).unwrap();
        let (major, minor) = (libc::major(identity.filesystem), libc::minor(identity.filesystem));
        // A partition has no sequence of its own: it is in the folder of its disk.
        let folder = format!("/sys/dev/block/{major}:{minor}");
        let shown = ["diskseq", "../diskseq"].iter().find_map(|name| {
            std::fs::read_to_string(format!("{folder}/{name}")).ok()?.trim().parse().ok()
        });
        // 0 on filesystems without a disk of their own: those in memory, and those over others.
        assert_eq!(identity.disk_of_filesystem(), shown.unwrap_or(0));
        let memory = memory_directory().map(|folder| TempFile::absent_in(&folder, "identity-disk"));
        if let Some(image) = memory {
            std::fs::write(image.path(), [1; 512]).unwrap();
            assert_eq!(Identity::of(image.path()).unwrap().disk_of_filesystem(), 0);
        }
    }

    #[test]
    fn loop_device_that_is_attached_anew_has_another_identity() {
        let run = |program: &str, arguments: &[&str]| {
            let output = std::process::Command::new(program).args(arguments).output().ok()?;
            let text = String::from_utf8(output.stdout).ok()?;
            output.status.success().then(|| text.trim().to_owned())
        };
        let image = TempFile::absent("identity-loop");
        std::fs::write(image.path(), vec![0; 1 << 20]).unwrap();
        let attach = || run("losetup", &["-f", "--show", image.path().to_str()?]);
        let Some(first) = attach() else {
            println!("no loop devices here");
            return;
        };
        let one = Identity::of(Path::new(&first)).unwrap();
        let opened = Identity::of_file(&File::open(&first).unwrap()).unwrap();
        run("losetup", &["-d", &first]).unwrap();
        let second = attach().unwrap();
        let other = Identity::of(Path::new(&second)).unwrap();
        run("losetup", &["-d", &second]).unwrap();
        assert_eq!(one, opened);
        assert!(one.is_disk() && one.birth().is_none() && !one.is_partition());
        assert_ne!(one, other);
        assert!(one.is_known() && other.is_known(), "this kernel has sequences of disks");
    }
}
