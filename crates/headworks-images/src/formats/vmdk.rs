//! VMDK descriptors as VMware and others write them, made into what the format's code reads.
//!
//! A descriptor is text: what it says of the disk are the lines of its extents. VMware writes more keys than the format's code knows
//! (`encoding`, `isNativeSnapshot`, `changeTrackPath`), and calls the flat extents of ESXi `VMFS`. So the code is given a copy with the version
//! and the extents alone, and what cannot be read is refused here.

use std::fs::File;
use std::io::{self, Read as _, Write as _};

use headworks::house::memory_file;

use crate::formats::header::Refusal;

/// Longest descriptor; the format's code has the same limit.
const BYTES_MAX: u64 = 2 << 20;
/// Advice for images whose data are not plain bytes.
const COPY: &str = "make a copy: qemu-img convert -O qcow2 IMAGE COPY";

/// A copy of a descriptor that the format's code reads.
pub(crate) fn readable_copy(descriptor: &File) -> Result<File, Refusal> {
    let unreadable = |error: io::Error| format!("cannot be read: {error}");
    let mut bytes = Vec::new();
    descriptor.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err("is no VMDK descriptor: it has more than 2 MiB".to_owned());
    }
    let text = plain(&bytes)?;
    let mut copy = memory_file(c"headworks-vmdk").map_err(unreadable)?;
    copy.write_all(text.as_bytes()).map_err(unreadable)?;
    Ok(copy)
}

/// The lines of a descriptor that say what the disk is.
fn plain(bytes: &[u8]) -> Result<String, Refusal> {
    let mut text = String::from("# Disk DescriptorFile\n");
    // Some writers fill the last sector up.
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    for (index, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let at = |refusal: &str| format!("is a VMDK descriptor whose line {} {refusal}", index + 1);
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let is_extent = line
            .split(u8::is_ascii_whitespace)
            .next()
            .is_some_and(|word| matches!(word, b"RW" | b"RDONLY" | b"NOACCESS"));
        let Ok(line) = std::str::from_utf8(line) else {
            match is_extent {
                true => {
                    return Err(at(
                        "names a file in another encoding than UTF-8; rename the file, and write its name there in UTF-8",
                    ));
                }
                false => continue,
            }
        };
        if is_extent {
            text += &extent(line).map_err(|refusal| at(&refusal))?;
            text.push('\n');
        } else if let Some((key, value)) = line.split_once('=') {
            let (key, value) = (key.trim(), value.trim().trim_matches('"'));
            check_key(key, value).map_err(|refusal| at(&refusal))?;
            if key == "version" {
                text += &format!("version={value}\n");
            }
        }
    }
    Ok(text)
}

/// Refuses keys by which the image is more than its extents. Others say nothing of its bytes.
fn check_key(key: &str, value: &str) -> Result<(), Refusal> {
    match key {
        "parentFileNameHint" => Err(format!(
            "says that it is a snapshot on {value}, and images without a parent are read; {COPY}"
        )),
        "isNativeSnapshot" if !value.eq_ignore_ascii_case("no") => {
            Err(format!("says that it is a snapshot in a storage array; {COPY}"))
        }
        _ => Ok(()),
    }
}

/// The line of an extent, as the format's code knows it.
fn extent(line: &str) -> Result<String, Refusal> {
    let mut words = line.split_whitespace();
    let (access, sectors, kind) = (words.next(), words.next(), words.next());
    match kind {
        Some("FLAT" | "ZERO") => Ok(line.to_owned()),
        // Flat, on a filesystem of ESXi.
        Some("VMFS") => {
            let name = line.find('"').map_or("", |at| &line[at..]);
            Ok(format!(
                "{} {} FLAT {name}",
                access.unwrap_or_default(),
                sectors.unwrap_or_default()
            ))
        }
        _ if access == Some("NOACCESS") => Ok(line.to_owned()),
        Some(kind) => Err(format!(
            "has an extent of the type {kind}, and FLAT, VMFS and ZERO are read; {COPY}"
        )),
        None => Err("has an extent without a type".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_of_vmware_is_reduced_to_its_extents() {
        let text = b"# Disk DescriptorFile\r\nversion=3\r\nencoding=\"UTF-8\"\r\nCID=1a2b3c4d\r\nparentCID=ffffffff\r\n\
                    isNativeSnapshot=\"no\"\r\ncreateType=\"vmfs\"\r\n\r\n# Extent description\r\n\
                    RW 8 VMFS \"a disk-flat.vmdk\"\r\nRW 16 FLAT \"b.img\" 8\r\nRW 8 ZERO\r\nNOACCESS 8\r\n\
                    # Change Tracking File\r\nchangeTrackPath=\"a-ctk.vmdk\"\r\n\
                    #DDB\r\nddb.adapterType = \"lsilogic\"\r\nddb.\xfc = \"1\"\r\n\0\0\0";
        let plain = plain(text).unwrap();
        let lines = "# Disk DescriptorFile\nversion=3\nRW 8 FLAT \"a disk-flat.vmdk\"\nRW 16 FLAT \"b.img\" 8\nRW 8 ZERO\nNOACCESS 8\n";
        assert_eq!(plain, lines);
    }

    #[test]
    fn what_is_not_read_is_refused_with_its_line() {
        for (line, words) in [
            (
                &b"RW 8 SPARSE \"a-s001.vmdk\""[..],
                "line 2 has an extent of the type SPARSE, and FLAT, VMFS and ZERO are read; make a copy",
            ),
            (b"RW 8 VMFSSPARSE \"a-delta.vmdk\"", "the type VMFSSPARSE"),
            (b"RW 8 SESPARSE \"a\"", "the type SESPARSE"),
            (b"RW 8 VMFSRDM \"a-rdm.vmdk\"", "the type VMFSRDM"),
            (b"RW 8", "an extent without a type"),
            (b"parentFileNameHint=\"base.vmdk\"", "is a snapshot on base.vmdk"),
            (b"isNativeSnapshot=\"yes\"", "a snapshot in a storage array"),
            (b"RW 8 FLAT \"gr\xf6\xdfe.img\" 0", "another encoding than UTF-8"),
        ] {
            let text = [&b"# Disk DescriptorFile\n"[..], line].concat();
            let said = plain(&text).unwrap_err();
            assert!(said.contains(words) && said.contains("line 2"), "{said}");
        }
    }
}
