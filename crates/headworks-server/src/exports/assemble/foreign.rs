//! Refuses to serve a file as raw bytes that begins or ends like an image of another format: clients would see the format's tables, and a
//! client that writes would ruin them.
//!
//! A client may put such an image on its raw disk, so what is served already goes on: a disk that a running server hands over, and
//! one that bears the mark of a server that was killed while it served it for writing. Otherwise `format=raw` says that the bytes
//! are meant. Of an overlay the mark says nothing: the server may have served it as one.

use std::path::Path;

use headworks_house::Identity;
use headworks_images::formats::format_of;
use headworks_images::is_overlay;

use crate::spec::BaseDevice;
use crate::successor::leftovers::Leftovers;
use crate::successor::marker::Marker;

/// What makes raw images of other formats.
const QEMU_IMG: &str = "qemu-img convert -O raw";
const FLATTEN: &str = "headworks image flatten";

/// Why a device is not served, as a clause that begins with the path; `None` if it may be.
pub(crate) fn refusal(base: &BaseDevice, leftovers: &Leftovers) -> Option<String> {
    let BaseDevice::File { path, raw: false, .. } = base else { return None };
    let shown = path.display();
    let served_by =
        |kind: &str, how: &str| format!("{kind}:path={shown} serves what is in it{how}");
    let (resembles, remedy, convert) = match format_of(path) {
        _ if leftovers.lock_of(path).is_some() => return None,
        Some(_) if was_served(path) => return None,
        Some(found) => {
            let read = found.format.map(|format| served_by(format.name(), ", read-only"));
            let remedy = read.unwrap_or_else(|| "it is not read here".to_owned());
            (found.resemblance(), remedy, QEMU_IMG)
        }
        None if path.is_file() && is_overlay(path) => {
            let resembles = "begins like a Headworks overlay image".to_owned();
            (resembles, served_by("overlay", ""), FLATTEN)
        }
        None => return None,
    };
    Some(format!(
        "{shown} {resembles}: {remedy}; file:path={shown},format=raw serves its bytes as they are; {convert} makes a raw image of it"
    ))
}

/// Whether a server that was killed served the file for writing.
fn was_served(path: &Path) -> bool {
    let absolute = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    Identity::of(path).is_ok_and(|image| Marker::of(&absolute).may_tell_of(image))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::assemble::{Assembly, ExportSpec};
    use crate::options::MissingImage;
    use crate::spec::Spec;
    use headworks_testing::TempDir;

    #[test]
    fn foreign_image_is_served_as_raw_only_by_name_or_if_it_was() {
        let folder = TempDir::new("foreign");
        let path = folder.join("disk");
        let mut bytes = vec![0; 1 << 20];
        bytes[..4].copy_from_slice(b"QFI\xfb");
        std::fs::write(&path, &bytes).unwrap();
        let export = |name: &str, text: &str| {
            let text = text.replace("PATH", &path.display().to_string());
            ExportSpec::new(name.to_owned(), Spec::parse(&text).unwrap(), false)
        };
        let serve = |text: &str| {
            let made = Assembly::new(&[export("a", text)]);
            made.map(|assembly| assembly.exports.len()).map_err(|error| error.to_string())
        };
        for text in ["PATH", "file:path=PATH,size=1M", "delay:of=PATH"] {
            let said = serve(text).unwrap_err();
            for part in ["begins like a qcow2 image", "qcow2:path=", ",format=raw", "convert"] {
                assert!(said.contains(part), "{said}");
            }
        }
        assert_eq!(serve("file:path=PATH,format=raw"), Ok(1));
        // Beside others it is absent, and they are served.
        let both = [export("a", "PATH"), export("b", "null:size=1M")];
        let open = |missing| Assembly::open(&both, missing, &Leftovers::default());
        let assembly = open(MissingImage::Absent).unwrap();
        assert_eq!((assembly.exports.len(), assembly.absent.len()), (1, 1));
        assert!(assembly.absent[0].reason.contains("begins like a qcow2 image"));
        assert!(open(MissingImage::Refuse).is_err());
        // The mark of a server that was killed.
        let marker = Marker::of(&std::fs::canonicalize(&path).unwrap());
        let marker = marker.make(Identity::of(&path).unwrap(), 1).unwrap();
        assert_eq!(serve("PATH"), Ok(1));
        marker.remove().unwrap();
        // Other formats are not read.
        bytes[..8].copy_from_slice(b"vhdxfile");
        std::fs::write(&path, &bytes).unwrap();
        let said = serve("PATH").unwrap_err();
        assert!(said.contains("VHDX image: it is not read here"), "{said}");
        bytes[..8].fill(0);
        bytes[(1 << 20) - 512..][..8].copy_from_slice(b"conectix");
        std::fs::write(&path, &bytes).unwrap();
        let said = serve("PATH").unwrap_err();
        assert!(said.contains("ends like a VHD image: it is not read here"), "{said}");
        // An overlay has a type of its own.
        let (base, overlay) = (folder.join("base"), folder.join("overlay"));
        std::fs::write(&base, [1; 8192]).unwrap();
        headworks_images::NewOverlay::new(&base, None).unwrap().create(&overlay).unwrap();
        let marker = Marker::of(&std::fs::canonicalize(&overlay).unwrap());
        let marker = marker.make(Identity::of(&overlay).unwrap(), 1).unwrap();
        let overlay = overlay.display();
        let said = serve(&overlay.to_string()).unwrap_err();
        assert!(said.contains("overlay image: overlay:path="), "{said}");
        assert!(said.contains("image flatten makes"), "{said}");
        marker.remove().unwrap();
        assert_eq!(serve(&format!("file:path={overlay},format=raw")), Ok(1));
    }
}
