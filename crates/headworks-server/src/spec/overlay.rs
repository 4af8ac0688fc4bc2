//! `overlay:`: the keys of a disk on a shared base. The base is named in the file's head.

use std::path::PathBuf;

use headworks_core::ConfigError;
use headworks_images::OverlayOptions;

use super::keys::Keys;
use super::{BASES, BaseDevice, parse_direct};
use crate::units::parse_switch;

/// Keys of the type.
pub(super) const KEYS: [&str; 4] = ["path", "backing", "direct", "read-only"];

pub(super) fn parse(keys: Keys<'_>) -> Result<BaseDevice, ConfigError> {
    let path = PathBuf::from(keys.get("path").unwrap_or_default());
    if path.as_os_str().is_empty() {
        return Err(ConfigError::new("path", "an overlay needs one: overlay:path=tenant.hwo"));
    }
    let options = OverlayOptions {
        read_only: keys.parse("read-only", parse_switch)?.unwrap_or(false),
        direct: keys.parse("direct", parse_direct)?.unwrap_or_default(),
        base_anywhere: keys.parse("backing", parse_backing)?.unwrap_or(false),
        formats: BASES,
    };
    Ok(BaseDevice::Overlay { path, options })
}

/// Whether a base may be outside the overlay's directory.
fn parse_backing(word: &str) -> Result<bool, String> {
    match word {
        "beside" => Ok(false),
        "allow" => Ok(true),
        _ => Err(format!("`{word}` is none of beside and allow")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Spec;
    use headworks::Direct;

    #[test]
    fn keys_are_read() {
        let base = |text: &str| Spec::parse(text).unwrap().base;
        let options = OverlayOptions::default();
        let plain = BaseDevice::Overlay { path: "a.hwo".into(), options };
        assert_eq!(base("overlay:path=a.hwo"), plain);
        assert_eq!(base("overlay:path=a.hwo,backing=beside"), plain);
        let options = OverlayOptions {
            read_only: true,
            direct: Direct::Off,
            base_anywhere: true,
            formats: BASES,
        };
        let all = BaseDevice::Overlay { path: "a.hwo".into(), options };
        assert_eq!(base("overlay:path=a.hwo,read-only=on,direct=off,backing=allow"), all);
        for (wrong, words) in [
            ("overlay:", "an overlay needs one"),
            ("overlay:path=a,backing=yes", "none of beside and allow"),
            ("overlay:path=a,size=1G", "overlay: has no key `size`"),
        ] {
            let refused = Spec::parse(wrong).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }
}
