//! Opens an image with all the files that it needs: backing files, files of its data, extents.
//!
//! An image is not trusted with the choice of files: a hostile one would name /etc/shadow as its backing file, and clients would
//! read it. So another file is opened only if it lies beside the image or below its directory, after symbolic links are
//! resolved, unless the user allows any file. Every file is locked shared before it is read. A chain has at most
//! [`LAYERS_MAX`] images, and no image twice.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use headworks::house::safe_open::open_image;
use headworks::{Direct, FileOptions, OpenFile};
use headworks_core::ConfigError;
use headworks_house::{Identity, ImageHandles};
use imago::file::File as Storage;
use imago::format::gate::ImplicitOpenGate;
use imago::qcow2::Qcow2;
use imago::raw::Raw;
use imago::vmdk::Vmdk;
use imago::{FormatAccess, FormatDriverBuilder, StorageOpenOptions};

use crate::formats::header::{self, Header};
use crate::formats::magic::{ImageFormat, SPARSE_VMDK, format_of};
use crate::formats::open::ImageOptions;
use crate::formats::vmdk;

/// Most images of a chain.
const LAYERS_MAX: usize = 8;
/// Most files of an image; a flat VMDK of 2 TiB has 1024 extents.
const FILES_MAX: usize = 1100;

/// A file of an image.
pub(crate) struct ImageFile {
    /// The open file with its lock.
    pub file: OpenFile,
    /// Path that it was opened by.
    pub path: PathBuf,
    /// Whether its holes are holes of the disk: a raw image or a flat extent.
    pub plain: bool,
}

/// The files of an image while it is opened.
pub(crate) struct Chain<'a> {
    options: &'a ImageOptions,
    /// Whether files are locked; an inspection locks none.
    locks: bool,
    /// Canonical directories in which other files may lie.
    homes: Vec<PathBuf>,
    /// The files, the image itself first.
    pub files: Vec<ImageFile>,
    /// Images of the chain from the top.
    layers: Vec<Identity>,
    /// Largest cluster of its qcow2 images, in bytes.
    pub cluster_size: u64,
    /// The refusal behind an error that passed through the format's code.
    refusal: Option<ConfigError>,
}

impl<'a> Chain<'a> {
    pub fn new(path: &Path, options: &'a ImageOptions, locks: bool) -> Self {
        let mut homes = Vec::new();
        for home in [path.to_owned(), std::fs::canonicalize(path).unwrap_or_default()] {
            homes.extend(std::fs::canonicalize(folder_of(&home)));
        }
        Self {
            options,
            locks,
            homes,
            files: Vec::new(),
            layers: Vec::new(),
            cluster_size: 1,
            refusal: None,
        }
    }

    /// Opens an image and everything below it.
    pub fn open(
        &mut self,
        path: &Path,
        format: ImageFormat,
    ) -> Result<FormatAccess<Storage>, ConfigError> {
        match format {
            ImageFormat::Qcow2 => self.open_qcow2(path),
            ImageFormat::Vmdk => self.open_vmdk(path),
        }
    }

    fn open_qcow2(&mut self, path: &Path) -> Result<FormatAccess<Storage>, ConfigError> {
        let storage = self.open_layer(path, false)?;
        let file_size = self.files[self.files.len() - 1].file.volume_options().size;
        let header = header::check(&reopen(path)?, file_size);
        let header = header.map_err(|refusal| refused(path, &refusal))?;
        self.cluster_size = self.cluster_size.max(header.cluster_size);
        let mut image =
            Qcow2::open_image(storage, false).map_err(|error| unreadable(path, &error))?;
        let data_file = match header.has_data_file {
            true => Some(self.open_data_file(path, &header)?),
            false => None,
        };
        image.set_data_file(data_file);
        image.set_backing(match &header.backing {
            Some(name) => self.open_backing(path, name, header.backing_format.as_deref())?,
            None => None,
        });
        Ok(FormatAccess::new(image))
    }

    fn open_data_file(&mut self, image: &Path, header: &Header) -> Result<Storage, ConfigError> {
        let Some(name) = &header.data_file else {
            return Err(refused(image, "has its data in another file and does not name it"));
        };
        let path = self.beside(image, name, "data file")?;
        self.open_file(&path, false)
    }

    fn open_backing(
        &mut self,
        image: &Path,
        name: &str,
        format: Option<&str>,
    ) -> Result<Option<FormatAccess<Storage>>, ConfigError> {
        if name.is_empty() {
            return Ok(None);
        }
        let path = self.beside(image, name, "backing file")?;
        let format = match format {
            Some(format) => format,
            // Bytes of a raw image are chosen by its writer, which may begin them like an image of another format.
            None if format_of(&path).is_some() => {
                return Err(refused(
                    image,
                    &format!(
                        "does not say the format of its backing file {}; set it: qemu-img rebase -u -b {name} -F qcow2 IMAGE",
                        path.display()
                    ),
                ));
            }
            None => "raw",
        };
        match format {
            "qcow2" => self.open_qcow2(&path).map(Some),
            "vmdk" => self.open_vmdk(&path).map(Some),
            "raw" | "file" | "host_device" => self.open_raw(&path).map(Some),
            other => Err(refused(
                image,
                &format!(
                    "has a backing file of the format `{other}`, and raw, qcow2 and vmdk are read; make a copy without one: qemu-img convert -O qcow2 IMAGE COPY"
                ),
            )),
        }
    }

    fn open_raw(&mut self, path: &Path) -> Result<FormatAccess<Storage>, ConfigError> {
        let storage = self.open_layer(path, true)?;
        let raw = Raw::open_image(storage, false).map_err(|error| unreadable(path, &error))?;
        Ok(FormatAccess::new(raw))
    }

    fn open_vmdk(&mut self, path: &Path) -> Result<FormatAccess<Storage>, ConfigError> {
        let storage = self.open_layer(path, false)?;
        if starts_with(path, SPARSE_VMDK) {
            return Err(refused(
                path,
                "is a sparse VMDK image, and VMDK images of flat files alone are read; make a copy: qemu-img convert -O qcow2 IMAGE COPY",
            ));
        }
        let copy =
            vmdk::readable_copy(&reopen(path)?).map_err(|refusal| refused(path, &refusal))?;
        // The descriptor stays open under its own name; extents are named relative to it.
        drop(storage);
        let storage = Storage::from_open_file(copy, StorageOpenOptions::new().filename(path));
        let image = storage.and_then(|storage| Vmdk::<Storage>::open_image(storage, false));
        let mut image = image.map_err(|error| unreadable(path, &error))?;
        let opened = image.open_implicit_dependencies_gated(Gate { chain: self, image: path });
        match (self.refusal.take(), opened) {
            (Some(refusal), _) => Err(refusal),
            (None, opened) => {
                opened.map_err(|error| unreadable(path, &error))?;
                Ok(FormatAccess::new(image))
            }
        }
    }

    /// Path of another file that `image` names, if it may be opened.
    fn beside(&self, image: &Path, name: &str, what: &str) -> Result<PathBuf, ConfigError> {
        let name = name.strip_prefix("file:").unwrap_or(name);
        let scheme = name.split_once(':').is_some_and(|(scheme, _)| !scheme.contains('/'));
        if scheme {
            let message = format!(
                "has a {what} `{name}` that is no path; make a copy without it: qemu-img convert -O qcow2 IMAGE COPY"
            );
            return Err(refused(image, &message));
        }
        let named = folder_of(image).join(name);
        let path = std::fs::canonicalize(&named).map_err(|error| {
            refused(image, &format!("needs its {what} {}: {error}", named.display()))
        })?;
        let at_home = self.homes.iter().any(|home| path.starts_with(home));
        if !at_home && !self.options.outside {
            let message = format!(
                "names the {what} {}, which is not beside it; backing=allow opens it, if the image is trusted",
                path.display()
            );
            return Err(refused(image, &message));
        }
        Ok(path)
    }

    /// Opens the file of an image of the chain.
    fn open_layer(&mut self, path: &Path, plain: bool) -> Result<Storage, ConfigError> {
        if self.layers.len() == LAYERS_MAX {
            let message = format!(
                "is image {} of a chain, and {LAYERS_MAX} are read; make a copy of the first one without backing files: qemu-img convert -O qcow2 IMAGE COPY",
                LAYERS_MAX + 1
            );
            return Err(refused(path, &message));
        }
        let storage = self.open_file(path, plain)?;
        let identity = self.files[self.files.len() - 1].file.identity();
        if self.layers.contains(&identity) {
            return Err(refused(path, "is its own backing file, by way of others or at once"));
        }
        self.layers.push(identity);
        Ok(storage)
    }

    /// Opens and locks a file, and opens it again for the format's code.
    fn open_file(&mut self, path: &Path, plain: bool) -> Result<Storage, ConfigError> {
        if self.files.len() == FILES_MAX {
            let message = format!("is one file too many: an image has at most {FILES_MAX}");
            return Err(refused(path, &message));
        }
        let there = std::fs::metadata(path).map_err(|error| unreadable(path, &error))?;
        if there.is_file() && there.len() == 0 {
            return Err(refused(path, "is empty"));
        }
        let options =
            FileOptions { read_only: true, direct: self.options.direct, ..FileOptions::default() };
        let file = match self.locks {
            true => OpenFile::open(path, &options),
            false => OpenFile::inspect(path, &options),
        }?;
        let again = reopen(path)?;
        if Identity::of_file(&again).map_err(|error| unreadable(path, &error))? != file.identity() {
            return Err(refused(path, "was replaced while it was opened; try again"));
        }
        self.files.push(ImageFile { file, path: path.to_owned(), plain });
        Storage::from_open_file(again, StorageOpenOptions::new().filename(path))
            .map_err(|error| unreadable(path, &error))
    }

    /// The files again, without direct I/O.
    pub fn reopen_buffered(files: &mut [ImageFile], locks: bool) -> Result<(), ConfigError> {
        let options =
            FileOptions { read_only: true, direct: Direct::Off, ..FileOptions::default() };
        for ImageFile { file, path, .. } in files {
            let again = match locks {
                true => OpenFile::open(path, &options),
                false => OpenFile::inspect(path, &options),
            }?;
            if again.identity() != file.identity() {
                return Err(refused(path, "was replaced while it was opened; try again"));
            }
            *file = again;
        }
        Ok(())
    }
}

/// Opens the extents of a VMDK image by the rules of the chain.
struct Gate<'c, 'a> {
    chain: &'c mut Chain<'a>,
    image: &'c Path,
}

impl ImplicitOpenGate<Storage> for Gate<'_, '_> {
    fn open_format<F: FormatDriverBuilder<Storage>>(
        &mut self,
        _builder: F,
    ) -> io::Result<FormatAccess<Storage>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn open_storage(&mut self, options: StorageOpenOptions) -> io::Result<Storage> {
        let named = options.get_filename().unwrap_or(Path::new("")).to_string_lossy().into_owned();
        let path = self.chain.beside(self.image, &named, "extent");
        path.and_then(|path| self.chain.open_file(&path, true)).map_err(|refusal| {
            self.chain.refusal = Some(refusal);
            io::ErrorKind::PermissionDenied.into()
        })
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

fn reopen(path: &Path) -> Result<File, ConfigError> {
    open_image(path, File::options().read(true)).map_err(|error| unreadable(path, &error))
}

fn starts_with(path: &Path, magic: &[u8]) -> bool {
    use std::io::Read as _;
    let mut bytes = vec![0; magic.len()];
    let opened = open_image(path, File::options().read(true));
    let read = opened.and_then(|mut file| file.read_exact(&mut bytes));
    read.is_ok() && bytes == magic
}

/// An error about an image: its path, and a clause.
pub(crate) fn refused(path: &Path, refusal: &str) -> ConfigError {
    ConfigError::new("path", format!("{} {refusal}", path.display()))
}

pub(crate) fn unreadable(path: &Path, error: &io::Error) -> ConfigError {
    refused(path, &format!("cannot be read: {error}")).caused_by(error.raw_os_error())
}
