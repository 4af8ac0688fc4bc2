//! Opens an image and resolves it: what each byte of its disk is, as runs.
//!
//! Direct I/O is decided for each file: the runs of a file are read with O_DIRECT if every one begins and ends, on the disk and in
//! the file, at a multiple of the file's block, and through the page cache of the kernel if one does not (a cluster that the end
//! of the file cuts, clusters of 512 bytes on a disk of 4096). `direct=on` refuses the latter.

use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use headworks::Direct;
use headworks::house::display_size;
use headworks_core::{ConfigError, QueueOptions, VolumeOptions};
use headworks_house::{Identity, ImageHandles};
use imago::file::File as Storage;
use imago::{FormatAccess, Mapping};

use crate::formats::chain::{Chain, ImageFile, refused, unreadable};
use crate::formats::decode::Decoder;
use crate::formats::device::FormatDevice;
use crate::formats::magic::ImageFormat;
use crate::formats::map::{MAP_BYTES_MAX, RUN_BYTES, Run, RunMap, Source};

/// How an image is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageOptions {
    /// Format of the image; it is not guessed.
    pub format: ImageFormat,
    /// Whether files that the image names may lie anywhere, and not only beside it.
    pub outside: bool,
    /// Whether to go past the kernel's page cache.
    pub direct: Direct,
}

/// An image that is open, locked and resolved.
pub struct OpenImage {
    options: ImageOptions,
    path: PathBuf,
    map: RunMap,
    files: Vec<ImageFile>,
    /// Reads compressed clusters; none if there are no such.
    compressed: Option<Arc<FormatAccess<Storage>>>,
    cluster_size: u64,
    block_size: u32,
}

impl OpenImage {
    /// Opens and resolves an image; may take seconds.
    ///
    /// # Errors
    /// Every reason why it cannot be read, as one sentence.
    pub fn open(path: &Path, options: &ImageOptions) -> Result<Self, ConfigError> {
        Self::by(path, options, true)
    }

    /// As [`OpenImage::open`], without locks: an image that is written meanwhile is no error.
    ///
    /// # Errors
    /// As [`OpenImage::open`].
    pub fn inspect(path: &Path, options: &ImageOptions) -> Result<Self, ConfigError> {
        Self::by(path, options, false)
    }

    fn by(path: &Path, options: &ImageOptions, locks: bool) -> Result<Self, ConfigError> {
        let mut chain = Chain::new(path, options, locks);
        let access = chain.open(path, options.format)?;
        let cluster_size = chain.cluster_size;
        let mut files = chain.files;
        let map = walk(path, &access, &files, cluster_size)?;
        let block_size = settle_direct(path, options, &map, &mut files, locks)?;
        let compressed = map.runs().any(|run| run.source == Source::Compressed);
        Ok(Self {
            options: *options,
            path: path.to_owned(),
            map,
            files,
            compressed: compressed.then(|| Arc::new(access)),
            cluster_size,
            block_size,
        })
    }

    /// What its volume should be: its size and smallest block; it is read-only.
    #[must_use]
    pub fn volume_options(&self) -> VolumeOptions {
        VolumeOptions {
            size: self.map.size(),
            read_only: true,
            block_size: self.block_size,
            ..VolumeOptions::default()
        }
    }

    /// What its queue should know.
    #[must_use]
    pub fn queue_options(&self) -> QueueOptions {
        let rotational = self.files.iter().any(|file| file.file.queue_options().rotational);
        QueueOptions {
            write_cache: false,
            fua: false,
            discard: false,
            write_zeroes: false,
            rotational,
            ..QueueOptions::default()
        }
    }

    /// Which file the image is; of its backing files nothing is told.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.files[0].file.identity()
    }

    /// The image for people: path, format, other files, fragments of its data, and how it is read.
    #[must_use]
    pub fn description(&self) -> String {
        let others = match self.files.len() {
            1 => String::new(),
            2 => ", with 1 other file".to_owned(),
            count => format!(", with {} other files", count - 1),
        };
        let direct = self.files.iter().filter(|file| file.file.is_direct()).count();
        let access = match direct {
            0 => "through the kernel's page cache",
            all if all == self.files.len() => "direct I/O",
            _ => "partly direct I/O",
        };
        let fragments = match self.map.len() {
            1 => "1 fragment".to_owned(),
            count => format!("{count} fragments"),
        };
        let (path, format) = (self.path.display(), self.options.format.name());
        format!("{path} ({format}{others}, {fragments}, {access})")
    }

    /// The image, its backing files and its data files.
    pub(crate) fn files(&self) -> &[ImageFile] {
        &self.files
    }

    pub(crate) fn map(&self) -> &RunMap {
        &self.map
    }

    /// Reads bytes of the disk, which it has, and waits for them. Files must not be open for direct I/O.
    pub(crate) fn read_waiting(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        for Run { start, len, source } in self.map.runs_from(offset, bytes.len() as u64) {
            let from = (start - offset) as usize;
            let part = &mut bytes[from..from + len as usize];
            match (source, &self.compressed) {
                (Source::Zeros, _) => part.fill(0),
                (Source::File(file, at), _) => {
                    self.files[usize::from(file)].file.file().read_exact_at(part, at)?;
                }
                (Source::Compressed, Some(access)) => access.read(part, start)?,
                (Source::Compressed, None) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(())
    }

    /// Memory of the map in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.map.memory()
    }

    /// The files whose filesystems have no locks, so that nothing keeps a writer away.
    pub fn unlocked(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().filter(|file| !file.file.locked()).map(|file| file.path.as_path())
    }

    /// Makes the device, whose one volume is the disk. Starts its threads if there are compressed clusters.
    ///
    /// # Errors
    /// There is no descriptor or thread left for them.
    pub fn into_device(self) -> Result<FormatDevice, ConfigError> {
        let decoder = self.start_threads()?;
        Ok(self.into_device_with(decoder))
    }

    /// Starts the threads that read compressed clusters, if there are such.
    pub(crate) fn start_threads(&self) -> Result<Option<Decoder>, ConfigError> {
        let access = self.compressed.as_ref();
        let decoder = access.map(|access| Decoder::new(Arc::clone(access), self.cluster_size));
        decoder.transpose().map_err(|error| {
            refused(&self.path, &format!("needs threads for its compressed clusters: {error}"))
        })
    }

    pub(crate) fn into_device_with(self, decoder: Option<Decoder>) -> FormatDevice {
        FormatDevice::new(self.map, self.files, decoder)
    }
}

/// Asks what each byte of the disk is.
fn walk(
    path: &Path,
    access: &FormatAccess<Storage>,
    files: &[ImageFile],
    cluster_size: u64,
) -> Result<RunMap, ConfigError> {
    let numbers = Numbers::new(access, files);
    let sizes: Vec<u64> = files.iter().map(|file| file.file.volume_options().size).collect();
    let (mut map, size) = (RunMap::default(), access.size());
    while map.size() < size {
        let at = map.size();
        let (mapping, len) =
            access.get_mapping(at, size - at).map_err(|error| unreadable(path, &error))?;
        let len = len.min(size - at);
        if len == 0 {
            return Err(refused(path, &format!("is damaged: its disk ends at {at} of {size}")));
        }
        let (len, source) = match mapping {
            Mapping::Zero { .. } => (len, Source::Zeros),
            Mapping::Special { .. } => (len, Source::Compressed),
            Mapping::Raw { storage, offset, .. } => {
                let file = numbers.of(storage);
                let room = sizes[usize::from(file)].saturating_sub(offset);
                let missing = len.saturating_sub(room);
                if room == 0 || missing >= cluster_size {
                    let at = at + room.min(len);
                    let offset = offset + room.min(len);
                    let name = files[usize::from(file)].path.display();
                    let message = format!(
                        "is truncated: byte {at} of its disk is at {offset} of {name}, beyond its end; copy the image again"
                    );
                    return Err(refused(path, &message));
                }
                map.push(len.min(room), Source::File(file, offset)).map_err(|_| full(path))?;
                // The end of the file cuts the last cluster; the rest of it reads as zeros.
                (missing, Source::Zeros)
            }
            _ => return Err(refused(path, &format!("is damaged: its disk ends at {at}"))),
        };
        map.push(len, source).map_err(|_| full(path))?;
    }
    Ok(map.finish())
}

fn full(path: &Path) -> ConfigError {
    let most = MAP_BYTES_MAX / RUN_BYTES;
    let message = format!(
        "needs a map of more than {}, for {most} fragments; make a copy, which has fewer: qemu-img convert -O qcow2 IMAGE COPY",
        display_size(MAP_BYTES_MAX as u64)
    );
    refused(path, &message)
}

/// Numbers of files by the address of their storage objects, which stay where they are while the image is open.
struct Numbers(Vec<(*const Storage, u16)>);

impl Numbers {
    fn new(access: &FormatAccess<Storage>, files: &[ImageFile]) -> Self {
        use imago::Storage as _;
        let all = access.inner().collect_storage_dependencies().into_iter();
        let numbered = all.filter_map(|storage| {
            let path = storage.get_filename()?;
            let number = files.iter().position(|file| file.path == path)?;
            Some((std::ptr::from_ref(storage), number as u16))
        });
        Self(numbered.collect())
    }

    fn of(&self, storage: &Storage) -> u16 {
        let found = self.0.iter().find(|(address, _)| std::ptr::eq(*address, storage));
        found.expect("every storage object is one of the image's files").1
    }
}

/// Decides which files are read with O_DIRECT; returns the smallest block of the disk.
fn settle_direct(
    path: &Path,
    options: &ImageOptions,
    map: &RunMap,
    files: &mut [ImageFile],
    locks: bool,
) -> Result<u32, ConfigError> {
    let mut fits: Vec<bool> = files.iter().map(|file| file.file.is_direct()).collect();
    let blocks: Vec<u64> =
        files.iter().map(|file| file.file.volume_options().block_size.into()).collect();
    for Run { start, len, source } in map.runs() {
        if let Source::File(file, offset) = source {
            let file = usize::from(file);
            fits[file] &= (start | len | offset).is_multiple_of(blocks[file]);
        }
    }
    let mut block_size = 1;
    for (index, fits) in fits.into_iter().enumerate() {
        let file = &mut files[index..=index];
        match (file[0].file.is_direct(), fits) {
            (true, true) => block_size = block_size.max(file[0].file.volume_options().block_size),
            (true, false) if options.direct == Direct::On => {
                let name = file[0].path.display();
                let message = format!(
                    "has clusters that direct I/O cannot read from {name} (blocks of {} bytes); give direct=auto",
                    blocks[index]
                );
                return Err(refused(path, &message));
            }
            (true, false) => Chain::reopen_buffered(file, locks)?,
            (false, _) => {}
        }
    }
    Ok(block_size)
}
