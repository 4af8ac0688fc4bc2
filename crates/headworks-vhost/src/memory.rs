//! Guest memory: the regions that a front end shares, mapped, and the translation of its two kinds of addresses.
//!
//! ```text
//!   descriptor --guest physical address--> translate --> spans of this process (one for each region that is crossed)
//!   ring       --front-end virtual address--> user_range --> one pointer, the whole ring in one region
//! ```
//!
//! A table ([`GuestMemory`]) never changes. Adding, removing and replacing regions makes a new one, which shares the regions that
//! stay; the device uses it from its next turn on and returns the old one when no request in flight has spans of it (V4). A region is
//! unmapped with the last table that has it.
//!
//! Invariants: regions are sorted by guest physical address and do not overlap, in neither kind of address; no sum of an address and a
//! length of a region overflows; a region's file was as long as the region when it was mapped. A file that is not sealed against
//! shrinking is guarded, see `fault`; one whose pages another process provides is refused.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::fault::Guard;
use crate::wire::RegionDescription;

/// Most regions of a device, the answer to GET_MAX_MEM_SLOTS.
pub const REGIONS_MAX: usize = 509;

/// A range of guest memory in this process.
///
/// The bytes stay mapped while the device counts the request that they belong to as in flight. The virtual machine may change them at any
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    base: *mut u8,
    len: usize,
}

// SAFETY: a span only names memory; its bytes are used in unsafe code only.
unsafe impl Send for Span {}

impl Span {
    /// The span of zero bytes.
    pub const EMPTY: Self = Self { base: ptr::dangling_mut(), len: 0 };

    pub(crate) const fn new(base: *mut u8, len: usize) -> Self {
        Self { base, len }
    }

    /// The address of the first byte.
    #[must_use]
    pub const fn base(self) -> *mut u8 {
        self.base
    }

    /// The number of bytes.
    #[must_use]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Returns true if the span has no bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The bytes from `skip` on, at most `len`.
    #[must_use]
    pub(crate) fn part(self, skip: usize, len: usize) -> Self {
        assert!(skip <= self.len, "a part begins within its span");
        Self { base: self.base.wrapping_add(skip), len: len.min(self.len - skip) }
    }
}

/// A mapping of a file, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct SharedMapping {
    base: NonNull<u8>,
    len: usize,
    // Dropped before the range is unmapped, in `drop`.
    guard: Option<Guard>,
}

// SAFETY: the mapping is memory of the process; access is by raw pointers in unsafe code.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps `len` bytes of `file` from its beginning, shared, readable and writable, and guards them unless the file cannot shrink. Its
    /// pages are this kernel's to provide, see `page_of`.
    pub(crate) fn new(file: &File, len: u64) -> io::Result<Self> {
        let page = page_of(file)?;
        let is_short = || io::Error::new(io::ErrorKind::UnexpectedEof, "the file is too short");
        if len == 0 || file.metadata()?.len() < len {
            return Err(is_short());
        }
        let len = len.checked_next_multiple_of(page).and_then(|len| usize::try_from(len).ok());
        let len = len.filter(|len| isize::try_from(*len).is_ok()).ok_or_else(is_short)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses replaces nothing.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, access, flags, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).expect("mmap returns an address");
        let mut mapping = Self { base, len, guard: None };
        if !is_sealed(file) {
            let guard = Guard::new(mapping.base.as_ptr(), mapping.len);
            mapping.guard = Some(guard.ok_or_else(|| {
                io::Error::other("too many regions of files that are not sealed against shrinking")
            })?);
        }
        Ok(mapping)
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Whether the file may shrink, so that faults are looked for.
    pub(crate) fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    pub(crate) fn is_faulted(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_faulted)
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: the range was mapped by `new` and is used by nothing else: spans of it are counted, see the head.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// File systems whose pages come from memory or from a disk of this kernel. Those of FUSE, of networks and of layers over any of them come
/// from another process, which could withhold them: a shard that touches such a page would wait for it.
const OWN_FILE_SYSTEMS: [u64; 9] = [
    0x0102_1994, // tmpfs, memfd
    0x9584_58f6, // hugetlbfs
    0x8584_58f6, // ramfs
    0xef53,      // ext4
    0x5846_5342, // XFS
    0x9123_683e, // Btrfs
    0xf2f5_2010, // F2FS
    0x2fc1_2fc1, // ZFS
    0xca45_1a4e, // bcachefs
];
const HUGETLBFS: u64 = OWN_FILE_SYSTEMS[1];

/// The unit of a mapping of this file: huge pages are whole. A file that another process may keep from being read is refused.
fn page_of(file: &File) -> io::Result<u64> {
    // SAFETY: the structure lives until the call has returned; all zeros is a valid value of it.
    let (result, about) = unsafe {
        let mut about: libc::statfs = std::mem::zeroed();
        (libc::fstatfs(file.as_raw_fd(), &raw mut about), about)
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // 32 bits of a type that has a sign on some machines.
    let kind = about.f_type as u64 & 0xffff_ffff;
    if !OWN_FILE_SYSTEMS.contains(&kind) {
        return Err(io::Error::other(format!(
            "its file system (type {kind:#x}) may withhold pages; a memfd, /dev/shm or huge pages would do"
        )));
    }
    let is_huge = kind == HUGETLBFS;
    Ok(if is_huge { u64::try_from(about.f_bsize).unwrap_or(4096).max(4096) } else { 4096 })
}

/// Whether the file can never shrink.
fn is_sealed(file: &File) -> bool {
    // SAFETY: the call takes no memory.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

/// One mapped region.
#[derive(Debug)]
struct Region {
    about: RegionDescription,
    /// Device and inode: the same region of the same file is mapped once.
    file: (u64, u64),
    /// Where the region's first byte is.
    base: *mut u8,
    mapping: SharedMapping,
}

// SAFETY: the pointer is into the mapping, which may be used from any thread.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn map(about: RegionDescription, fd: OwnedFd) -> Result<Self, String> {
        let file = File::from(fd);
        let refuse = |error: io::Error| format!("cannot map a memory region: {error}");
        let end = about.file_offset.checked_add(about.size).ok_or("a memory region is too long")?;
        let identity = file.metadata().map_err(refuse)?;
        let mapping = SharedMapping::new(&file, end).map_err(refuse)?;
        let skip = usize::try_from(about.file_offset).map_err(|_| "a memory region is too long")?;
        let base = mapping.base().wrapping_add(skip);
        Ok(Self { about, file: (identity.dev(), identity.ino()), base, mapping })
    }
}

/// The table of a device's memory regions.
#[derive(Debug, Default)]
pub struct GuestMemory {
    // Sorted by guest physical address.
    regions: Vec<Entry>,
}

/// A region of a table, with what a translation reads beside it.
#[derive(Clone, Debug)]
struct Entry {
    guest: u64,
    size: u64,
    base: *mut u8,
    region: Arc<Region>,
}

// SAFETY: the pointer is that of the region.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

impl GuestMemory {
    /// Maps a whole table. Regions that `before` has with the same file and addresses are shared with it.
    ///
    /// The error is a sentence; every descriptor is closed then.
    pub fn map(
        regions: Vec<(RegionDescription, OwnedFd)>,
        before: &GuestMemory,
    ) -> Result<Self, String> {
        let mut table = Self::default();
        for (about, fd) in regions {
            table.insert(about, fd, before)?;
        }
        Ok(table)
    }

    /// This table and one region more.
    pub fn with(&self, about: RegionDescription, fd: OwnedFd) -> Result<Self, String> {
        let mut table = Self { regions: self.regions.clone() };
        table.insert(about, fd, self)?;
        Ok(table)
    }

    /// This table without the region of that size at both addresses.
    pub fn without(&self, about: &RegionDescription) -> Result<Self, String> {
        let same = |entry: &Entry| {
            let this = &entry.region.about;
            (this.guest, this.size, this.user) == (about.guest, about.size, about.user)
        };
        let place = self.regions.iter().position(same).ok_or_else(|| {
            format!("there is no memory region of {} bytes at {:#x}", about.size, about.guest)
        })?;
        let mut regions = self.regions.clone();
        regions.remove(place);
        Ok(Self { regions })
    }

    fn insert(
        &mut self,
        about: RegionDescription,
        fd: OwnedFd,
        before: &GuestMemory,
    ) -> Result<(), String> {
        if self.regions.len() == REGIONS_MAX {
            return Err(format!("at most {REGIONS_MAX} memory regions"));
        }
        let is_bounded = |address: u64| address.checked_add(about.size).is_some();
        if about.size == 0 || !is_bounded(about.guest) || !is_bounded(about.user) {
            return Err(format!("a memory region of {} bytes at {:#x}", about.size, about.guest));
        }
        let overlaps = |a: u64, b: u64, len: u64| a < b + len && b < a + about.size;
        if let Some(other) = self.regions.iter().find(|other| {
            let other = &other.region.about;
            overlaps(about.guest, other.guest, other.size)
                || overlaps(about.user, other.user, other.size)
        }) {
            return Err(format!(
                "memory regions at {:#x} and {:#x} overlap",
                about.guest, other.guest
            ));
        }
        let file = File::from(fd);
        let identity = file.metadata().map_err(|error| format!("a memory region: {error}"))?;
        let identity = (identity.dev(), identity.ino());
        let same = |entry: &&Entry| entry.region.about == about && entry.region.file == identity;
        let region = match before.regions.iter().find(same) {
            Some(entry) => Arc::clone(&entry.region),
            None => Arc::new(Region::map(about, file.into())?),
        };
        let place = self.regions.partition_point(|other| other.guest < about.guest);
        let entry = Entry { guest: about.guest, size: about.size, base: region.base, region };
        self.regions.insert(place, entry);
        Ok(())
    }

    /// The region that contains a guest physical address.
    #[inline]
    fn region_at(&self, address: u64) -> Option<&Entry> {
        // Most machines have one to four regions.
        let place = if self.regions.len() <= 4 {
            self.regions.iter().take_while(|entry| entry.guest <= address).count()
        } else {
            self.regions.partition_point(|entry| entry.guest <= address)
        };
        let entry = &self.regions[place.checked_sub(1)?];
        (address - entry.guest < entry.size).then_some(entry)
    }

    /// Appends the spans of `len` bytes at a guest physical address, one for each region that they cross; false if a byte of them is
    /// in no region. `add` returns false when there is no room, which ends the translation with false.
    #[inline]
    pub(crate) fn translate(
        &self,
        address: u64,
        len: u32,
        add: &mut impl FnMut(Span) -> bool,
    ) -> bool {
        let (mut at, mut left) = (address, u64::from(len));
        while left > 0 {
            let Some(region) = self.region_at(at) else { return false };
            let part = left.min(region.size - (at - region.guest));
            // A region's length fits usize, and so does an offset in it.
            let base = region.base.wrapping_add((at - region.guest) as usize);
            if !add(Span::new(base, part as usize)) {
                return false;
            }
            // A region ends at u64::MAX at most, so this overflows only when nothing is left.
            (at, left) = (at.wrapping_add(part), left - part);
        }
        true
    }

    /// The memory of `len` bytes at a guest physical address, if one region has them all.
    #[inline]
    pub(crate) fn range(&self, address: u64, len: u64) -> Option<*mut u8> {
        let region = self.region_at(address)?;
        let skip = address - region.guest;
        (len <= region.size - skip).then(|| region.base.wrapping_add(skip as usize))
    }

    /// The memory of `len` bytes at a virtual address of the front end, if one region has them all.
    pub(crate) fn user_range(&self, address: u64, len: u64) -> Option<*mut u8> {
        let has = |entry: &&Entry| {
            let user = entry.region.about.user;
            address >= user && address - user < entry.size
        };
        let region = self.regions.iter().find(has)?;
        let skip = address - region.region.about.user;
        (len <= region.size - skip).then(|| region.base.wrapping_add(skip as usize))
    }

    /// The guest physical address of memory of this process, with the bytes that the region has from there on.
    pub(crate) fn guest_address(&self, base: *const u8) -> Option<(u64, u64)> {
        self.regions.iter().find_map(|region| {
            let skip = (base.addr() as u64).checked_sub(region.base.addr() as u64)?;
            let left = region.size.checked_sub(skip).filter(|left| *left > 0)?;
            Some((region.guest + skip, left))
        })
    }

    pub(crate) fn is_guarded(&self) -> bool {
        self.regions.iter().any(|entry| entry.region.mapping.is_guarded())
    }

    /// Whether a file of guest memory was found truncated. The device has to end: what it reads there is not the driver's any more.
    #[must_use]
    pub fn is_faulted(&self) -> bool {
        self.regions.iter().any(|entry| entry.region.mapping.is_faulted())
    }

    /// Returns the number of regions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Returns true if the table has no region.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }
}
