//! First bytes by which image formats are known, and the formats that are read.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use headworks::house::safe_open::open_image;

/// A format that can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// QEMU's copy-on-write format, versions 2 and 3.
    Qcow2,
    /// A VMDK descriptor whose extents are flat files or zeros.
    Vmdk,
}

impl ImageFormat {
    /// Every format that is read.
    pub const ALL: [Self; 2] = [Self::Qcow2, Self::Vmdk];

    /// Its name in specifications and messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Vmdk => "vmdk",
        }
    }
}

/// First bytes of formats, their names, and how they are read.
const FORMATS: [(&[u8], &str, Option<ImageFormat>); 6] = [
    (QCOW2, "qcow2", Some(ImageFormat::Qcow2)),
    (SPARSE_VMDK, "VMDK", None),
    (b"# Disk DescriptorFile", "VMDK", Some(ImageFormat::Vmdk)),
    (b"vhdxfile", "VHDX", None),
    (b"conectix", "VHD", None),
    (b"<<< ", "VDI", None),
];
pub(crate) const QCOW2: &[u8] = b"QFI\xfb";
pub(crate) const SPARSE_VMDK: &[u8] = b"KDMV";

/// Name of the format that a regular file begins like, and how it is read if it is. None for a raw image, for a block device,
/// and where the file cannot be read.
#[must_use]
pub fn format_of(path: &Path) -> Option<(&'static str, Option<ImageFormat>)> {
    if !path.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    open_image(path, File::options().read(true)).ok()?.take(32).read_to_end(&mut bytes).ok()?;
    let known = FORMATS.into_iter().find(|(magic, ..)| bytes.starts_with(magic));
    known.map(|(_, name, format)| (name, format))
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks::testing::TempFile;

    #[test]
    fn first_bytes_name_the_format() {
        let file = TempFile::new("magic");
        for (bytes, name) in [
            (&b"QFI\xfb\0\0\0\x03"[..], Some("qcow2")),
            (b"KDMV", Some("VMDK")),
            (b"# Disk DescriptorFile\nversion=1\n", Some("VMDK")),
            (b"vhdxfile", Some("VHDX")),
            (b"conectix", Some("VHD")),
            (b"<<< Oracle VM VirtualBox", Some("VDI")),
            (b"QFI", None),
            (b"", None),
            (b"\0QFI\xfb", None),
        ] {
            std::fs::write(file.path(), bytes).unwrap();
            assert_eq!(format_of(file.path()).map(|(name, _)| name), name, "{bytes:?}");
        }
        assert_eq!(format_of(Path::new("/dev/zero")), None);
        assert_eq!(format_of(Path::new("/nowhere")), None);
    }
}
