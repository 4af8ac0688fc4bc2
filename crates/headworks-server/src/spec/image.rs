//! `qcow2:` and `vmdk:`: images of a format, served read-only.

use std::path::PathBuf;

use headworks_core::ConfigError;
use headworks_images::formats::{ImageFormat, ImageOptions};

use super::keys::Keys;
use super::{BaseDevice, parse_direct};

/// Keys of both types.
pub(super) const KEYS: [&str; 3] = ["path", "backing", "direct"];

/// Parses the keys of an image.
pub(super) fn parse(format: ImageFormat, keys: Keys<'_>) -> Result<BaseDevice, ConfigError> {
    let path = keys.get("path").unwrap_or_default();
    if path.is_empty() {
        let name = format.name();
        return Err(ConfigError::new(
            "path",
            format!("{name}: needs one: {name}:path=base.{name}"),
        ));
    }
    let options = ImageOptions {
        format,
        outside: keys.parse("backing", parse_backing)?.unwrap_or(false),
        direct: keys.parse("direct", parse_direct)?.unwrap_or_default(),
    };
    Ok(BaseDevice::Image { path: PathBuf::from(path), options })
}

/// Whether files that the image names may lie anywhere.
fn parse_backing(word: &str) -> Result<bool, String> {
    match word {
        "beside" => Ok(false),
        "allow" => Ok(true),
        _ => Err(format!(
            "`{word}` is neither beside nor allow: whether backing and data files may lie outside of the image's directory"
        )),
    }
}

/// Parses the `format` of a `file:`, which can only say that its bytes are not interpreted.
pub(super) fn parse_raw(word: &str) -> Result<bool, String> {
    match word {
        "raw" => Ok(true),
        "qcow2" | "vmdk" => Err(format!("a file: is raw; {word}:path=... reads a {word} image")),
        _ => Err(format!("`{word}` is not raw, and a file: has no other format")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Spec;
    use super::*;
    use headworks::{Direct, FileOptions};

    #[test]
    fn images_have_a_path_and_options() {
        let parsed = |text: &str| Spec::parse(text).unwrap().base;
        let image = |format, outside, direct| BaseDevice::Image {
            path: "/a,b".into(),
            options: ImageOptions { format, outside, direct },
        };
        assert_eq!(parsed("qcow2:path=/a,,b"), image(ImageFormat::Qcow2, false, Direct::Auto));
        assert_eq!(
            parsed("vmdk:backing=allow,direct=off,path=/a,,b"),
            image(ImageFormat::Vmdk, true, Direct::Off)
        );
        let raw = BaseDevice::File { path: "x".into(), options: FileOptions::default(), raw: true };
        assert_eq!(parsed("file:path=x,format=raw"), raw);
        for (text, words) in [
            ("qcow2:", "path: qcow2: needs one: qcow2:path=base.qcow2"),
            (
                "qcow2:path=x,size=1G",
                "qcow2: has no key `size`; its keys are path, backing, direct",
            ),
            ("vmdk:path=x,backing=yes", "backing: `yes` is neither beside nor allow"),
            ("file:path=x,format=qcow2", "format: a file: is raw; qcow2:path=... reads"),
            ("file:path=x,format=vhdx", "format: `vhdx` is not raw"),
        ] {
            let said = Spec::parse(text).unwrap_err().to_string();
            assert!(said.contains(words), "{text}: {said}");
        }
    }
}
