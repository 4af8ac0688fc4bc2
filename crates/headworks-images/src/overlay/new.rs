//! Makes a new overlay file.
//!
//! ```text
//!   FILE.new-PID: size, head, fsync --link--> FILE --unlink FILE.new-PID, fsync of the directory
//! ```
//!
//! The name appears when the file is whole and durable, and never replaces another file.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Component, Path, PathBuf};

use headworks_core::ConfigError;

use super::head::{
    BaseKind, BaseRecord, Head, PATH_MAX, Task, VOLUME_MAX, blocks_of, file_bytes, is_possible_size,
};
use super::ids::LAYERS_MAX;
use super::image::{BaseFormats, REMOTE_BASE};
use super::open::{
    OpenBase, OpenOverlay, OverlayOptions, find_base, is_overlay, of_file, open_image,
};
use headworks::house::{display_size, folder_of, sync_directory};
use headworks::{Direct, FileOptions, OpenFile};

/// An overlay that is to be made.
#[derive(Debug)]
pub struct NewOverlay {
    base: BaseRecord,
    /// The base's path without links, or a remote's specification.
    base_path: PathBuf,
    size: u64,
    /// The file whose owner and permissions the new one gets.
    like: Option<Metadata>,
    /// Keeps the base locked.
    _held: Option<HeldBase>,
}

#[derive(Debug)]
enum HeldBase {
    Raw(#[expect(dead_code, reason = "held for its lock")] Box<OpenFile>),
    Overlay(#[expect(dead_code, reason = "held for its lock")] Box<OpenOverlay>),
    Image(#[expect(dead_code, reason = "held for its locks")] OpenBase),
}

/// What a new overlay is to be made on.
#[derive(Clone, Copy, Debug)]
pub struct NewBase<'a> {
    /// The file or block device; of a remote its specification.
    pub path: &'a Path,
    /// Its format if it is an image of one, `qcow2` or `vmdk`, or [`REMOTE_BASE`]; else it is an overlay, or raw.
    pub format: Option<&'a str>,
    /// What opens images of formats.
    pub formats: BaseFormats,
}

impl<'a> NewBase<'a> {
    /// An overlay, or raw bytes.
    #[must_use]
    pub fn of(path: &'a Path) -> Self {
        Self { path, format: None, formats: BaseFormats::default() }
    }
}

/// A sentence about a path.
pub(super) fn refuse<T>(path: &Path, message: &str) -> Result<T, ConfigError> {
    Err(ConfigError::new("path", format!("{} {message}", path.display())))
}

pub(super) fn io_error(path: &Path, error: &io::Error) -> ConfigError {
    ConfigError::new("path", format!("{}: {error}", path.display())).caused_by(error.raw_os_error())
}

/// Refuses a base on which no further overlay can be.
pub(super) fn check_layers(path: &Path, open: &OpenOverlay) -> Result<(), ConfigError> {
    if open.overlays() < usize::from(LAYERS_MAX) {
        return Ok(());
    }
    let message = format!(
        "is the highest of {LAYERS_MAX} overlays, which is the most; commit one of them into its base"
    );
    refuse(path, &message)
}

/// When a file was last modified, in nanoseconds since 1970.
pub(super) fn modified(metadata: &Metadata) -> u64 {
    (metadata.mtime() as u64).wrapping_mul(1_000_000_000).wrapping_add(metadata.mtime_nsec() as u64)
}

/// Opens an overlay that is to be a base. What a killed server left in its here bits, or in the kernel's pages alone, is made durable
/// first, for a flush of an overlay on it covers nothing of its base.
fn open_settled(path: &Path, options: &OverlayOptions) -> Result<OpenOverlay, ConfigError> {
    let open = OpenOverlay::open(path, options, None)?;
    open.file().file().sync_all().map_err(|error| io_error(path, &error))?;
    if open.pending.is_empty() {
        return Ok(open);
    }
    drop(open);
    let writing = OverlayOptions { read_only: false, direct: Direct::Off, ..*options };
    let mut open = OpenOverlay::open(path, &writing, None)?;
    open.settle().map_err(|error| io_error(path, &error))?;
    drop(open);
    OpenOverlay::open(path, options, None)
}

impl NewOverlay {
    /// An overlay on a base, which stays locked against writers until this is dropped. Its size is that of the base,
    /// unless one is given.
    ///
    /// # Errors
    /// A sentence about a base that cannot be used, or a size that an overlay cannot have.
    pub fn new(base: &Path, size: Option<u64>) -> Result<Self, ConfigError> {
        Self::on(&NewBase::of(base), size)
    }

    /// As [`NewOverlay::new`], also on an image of another format.
    ///
    /// # Errors
    /// As [`NewOverlay::new`], and those of the image.
    pub fn on(new: &NewBase<'_>, size: Option<u64>) -> Result<Self, ConfigError> {
        let NewBase { path: base, format, formats } = *new;
        let is_remote = format == Some(REMOTE_BASE);
        let base_path = match is_remote {
            true => base.to_owned(),
            false => base.canonicalize().map_err(|error| io_error(base, &error))?,
        };
        let options = OverlayOptions {
            read_only: true,
            base_anywhere: true,
            formats,
            ..OverlayOptions::default()
        };
        let (record, held) = if let Some(format) = format {
            let Some(kind) = BaseKind::of_format(format) else {
                return refuse(base, &format!("cannot be a base of the format {format}"));
            };
            let open = open_image(&base_path, kind, &options, true)?;
            (open.record(&base_path)?, HeldBase::Image(open))
        } else if is_overlay(&base_path) {
            let open = open_settled(&base_path, &options)?;
            check_layers(&base_path, &open)?;
            (open.as_base()?, HeldBase::Overlay(Box::new(open)))
        } else {
            let options = FileOptions { read_only: true, ..FileOptions::default() };
            let open = OpenFile::open(&base_path, &options)?;
            (of_file(&base_path, &open)?, HeldBase::Raw(Box::new(open)))
        };
        let size = match size {
            None => record.size,
            Some(size) => size,
        };
        if !is_possible_size(size) || size < record.size {
            let (base_size, most) = (display_size(record.size), display_size(VOLUME_MAX));
            let message = format!(
                "{size} is no size of an overlay on {}, which has {base_size}: give one from that to {most}",
                base.display()
            );
            return Err(ConfigError::new("size", message));
        }
        Ok(Self { base: record, base_path, size, like: None, _held: Some(held) })
    }

    /// An overlay on one that is served and has nothing in flight, whose open file is `file` and whose name is `base` from now on: as
    /// large, with the owner and permissions of its file.
    ///
    /// # Errors
    /// The file cannot be asked.
    pub(super) fn over(served: &Path, file: &File, base: &Path) -> Result<Self, ConfigError> {
        let (head, _) = super::open::read_head(served, file)?;
        let like = file.metadata().map_err(|error| io_error(served, &error))?;
        let base_path = base.to_owned();
        let base = BaseRecord {
            kind: BaseKind::Overlay,
            path: PathBuf::new(),
            size: head.size(),
            changed: modified(&like),
            uuid: head.uuid,
        };
        Ok(Self { base, base_path, size: head.size(), like: Some(like), _held: None })
    }

    /// Bytes of its volume.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Checks that an overlay at `path` could be opened with these options: its base is where they permit.
    ///
    /// # Errors
    /// A sentence with the option that permits it.
    pub fn check_place(&self, path: &Path, options: &OverlayOptions) -> Result<(), ConfigError> {
        find_base(path, &self.base_for(path)?, options).map(drop)
    }

    /// Makes the file, durably. Returns the path of the base that was written into it.
    ///
    /// # Errors
    /// It exists, or cannot be made; no file is left.
    pub fn create(&self, path: &Path) -> Result<PathBuf, ConfigError> {
        let base = self.base_for(path)?;
        place_new_file(path, |file| self.write(file, &base))?;
        Ok(base.path)
    }

    /// The base as the head of `path` names it.
    pub(super) fn base_for(&self, path: &Path) -> Result<BaseRecord, ConfigError> {
        let folder = folder_of(path);
        let folder = folder.canonicalize().map_err(|error| io_error(folder, &error))?;
        let relative = match self.base.kind {
            BaseKind::Remote => self.base_path.clone(),
            _ => relative_path(&folder, &self.base_path),
        };
        if relative.as_os_str().len() > PATH_MAX {
            return refuse(&relative, "is too long a path for the head of an overlay");
        }
        Ok(BaseRecord { path: relative, ..self.base.clone() })
    }

    fn write(&self, file: &File, base: &BaseRecord) -> io::Result<()> {
        if let Some(like) = &self.like {
            // Without the right to give a file away it stays ours; a user that can serve the old one can serve this one.
            let _ = fchown(file, Some(like.uid()), Some(like.gid()));
            file.set_permissions(PermissionsExt::from_mode(like.mode() & 0o777))?;
        }
        file.set_len(file_bytes(self.size))?;
        let uuid = random_uuid()?;
        let (volume_size, beyond) = blocks_of(self.size);
        for number in [0, 1] {
            let base = base.clone();
            let head = Head { volume_size, beyond, number, task: Task::None, uuid, base };
            let (at, copy) = head.encode();
            file.write_all_at(&copy, at)?;
        }
        Ok(())
    }
}

/// Makes a file that appears under its name when `write` has filled it and it is durable; never replaces another.
pub(super) fn place_new_file<T>(
    path: &Path,
    write: impl FnOnce(&File) -> io::Result<T>,
) -> Result<T, ConfigError> {
    let error = |error: io::Error| {
        let path = path.display();
        let message = match error.kind() {
            io::ErrorKind::AlreadyExists => {
                format!("{path} exists already; give the name of a new file")
            }
            _ => format!("cannot make {path}: {error}"),
        };
        ConfigError::new("path", message).caused_by(error.raw_os_error())
    };
    if path.symlink_metadata().is_ok() {
        return Err(error(io::Error::from_raw_os_error(libc::EEXIST)));
    }
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".new-{}", std::process::id()));
    let temporary = PathBuf::from(temporary);
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(0o666);
    let made = options.open(&temporary).and_then(|file| {
        let made = write(&file).and_then(|made| file.sync_all().map(|()| made));
        let linked = made.and_then(|made| std::fs::hard_link(&temporary, path).map(|()| made));
        // If this fails, a file remains that nothing names.
        let _ = std::fs::remove_file(&temporary);
        linked
    });
    made.and_then(|made| sync_directory(path).map(|()| made)).map_err(error)
}

fn random_uuid() -> io::Result<[u8; 16]> {
    let mut uuid = [0; 16];
    // SAFETY: `uuid` lives through the call, which fills it; so few bytes come whole.
    match unsafe { libc::getrandom(uuid.as_mut_ptr().cast(), uuid.len(), 0) } {
        16 => Ok(uuid),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The way from a directory to a file, both without links.
fn relative_path(folder: &Path, file: &Path) -> PathBuf {
    let (from, to): (Vec<Component<'_>>, Vec<Component<'_>>) =
        (folder.components().collect(), file.components().collect());
    let common = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
    let up = from[common..].iter().map(|_| Component::ParentDir);
    up.chain(to[common..].iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_lead_from_directory_to_file() {
        for (folder, file, relative) in [
            ("/a/b", "/a/b/base.img", "base.img"),
            ("/a/b", "/a/b/c/base.img", "c/base.img"),
            ("/a/b", "/a/base.img", "../base.img"),
            ("/a/b", "/x/base.img", "../../x/base.img"),
            ("/", "/base.img", "base.img"),
        ] {
            assert_eq!(relative_path(folder.as_ref(), file.as_ref()), PathBuf::from(relative));
        }
    }
}
