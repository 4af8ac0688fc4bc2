//! First and last bytes by which image formats are known, and the formats that are read.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
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

/// The format that a file looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundFormat {
    /// Its name for people.
    pub name: &'static str,
    /// How it is read; none if it is not.
    pub format: Option<ImageFormat>,
    /// Whether its mark is in the file's last sector, and not at its beginning.
    pub is_at_end: bool,
}

impl FoundFormat {
    /// What the file does as an image of the format does: a clause with a verb.
    #[must_use]
    pub fn resemblance(&self) -> String {
        let how = if self.is_at_end { "ends" } else { "begins" };
        format!("{how} like a {} image", self.name)
    }
}

/// First bytes of formats, their names, and how they are read.
const FIRST: [(&[u8], &str, Option<ImageFormat>); 10] = [
    (b"QFI\xfb\0\0\0\x01", "qcow (version 1)", None),
    (QCOW2, "qcow2", Some(ImageFormat::Qcow2)),
    (SPARSE_VMDK, "VMDK", None),
    (b"# Disk DescriptorFile", "VMDK", Some(ImageFormat::Vmdk)),
    (b"vhdxfile", "VHDX", None),
    (b"conectix", "VHD", None),
    (b"<<< ", "VDI", None),
    (b"QED\0", "QED", None),
    (b"WithoutFreeSpace", "Parallels", None),
    (b"WithouFreSpacExt", "Parallels", None),
];
/// First bytes of the last sector, for formats whose data come first: a VHD of fixed size, and a DMG, with what their first version says.
const LAST: [(&[u8], &str); 2] = [(b"conectix", "VHD"), (b"koly\0\0\0\x04\0\0\x02\0", "DMG")];
pub(crate) const QCOW2: &[u8] = b"QFI\xfb";
pub(crate) const SPARSE_VMDK: &[u8] = b"KDMV";
const SECTOR: u64 = 512;

/// The format that a regular file begins or ends like. None for a raw image, for a block device, and where the file cannot be read.
#[must_use]
pub fn format_of(path: &Path) -> Option<FoundFormat> {
    if !path.is_file() {
        return None;
    }
    let file = open_image(path, File::options().read(true)).ok()?;
    let bytes_at = |at: u64| {
        let mut bytes = [0; 32];
        let len = file.read_at(&mut bytes, at).unwrap_or_default();
        bytes[..len].to_vec()
    };
    let first = bytes_at(0);
    let known = FIRST.into_iter().find(|(magic, ..)| first.starts_with(magic));
    if let Some((_, name, format)) = known {
        return Some(FoundFormat { name, format, is_at_end: false });
    }
    let last = bytes_at(file.metadata().ok()?.len().checked_sub(SECTOR)?);
    let (_, name) = LAST.into_iter().find(|(magic, _)| last.starts_with(magic))?;
    Some(FoundFormat { name, format: None, is_at_end: true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_testing::TempFile;

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
            (b"QFI\xfb\0\0\0\x01", Some("qcow (version 1)")),
            (b"QED\0\0\0\x01\0", Some("QED")),
            (b"WithouFreSpacExt\x02", Some("Parallels")),
            (b"QFI", None),
            (b"", None),
            (b"\0QFI\xfb", None),
        ] {
            std::fs::write(file.path(), bytes).unwrap();
            assert_eq!(format_of(file.path()).map(|found| found.name), name, "{bytes:?}");
        }
        for (mark, resemblance) in [
            (&b"conectix\0\0\0\x02"[..], Some("ends like a VHD image")),
            (b"koly\0\0\0\x04\0\0\x02\0\0\0\0\x01", Some("ends like a DMG image")),
            (b"koly, a word", None),
        ] {
            for before in [0, 4096, 5000] {
                let mut bytes = vec![7; before + 512];
                bytes[before..][..mark.len()].copy_from_slice(mark);
                // Where it is all of the file, its beginning counts.
                let is_first = before == 0 && mark.starts_with(b"conectix");
                let expected = if is_first { Some("begins like a VHD image") } else { resemblance };
                std::fs::write(file.path(), bytes).unwrap();
                let found = format_of(file.path()).map(|found| found.resemblance());
                assert_eq!(found.as_deref(), expected, "{mark:?}");
            }
        }
        assert_eq!(format_of(Path::new("/dev/zero")), None);
        assert_eq!(format_of(Path::new("/nowhere")), None);
    }
}
