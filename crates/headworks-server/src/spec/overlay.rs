//! `overlay:`: the keys of a disk on a shared base. The base is named in the file's head; `base` and `size` make a file that is not
//! there, and mean nothing for one that is.

use std::path::{Path, PathBuf};

use headworks_core::ConfigError;
use headworks_images::{NewBase, NewOverlay, OverlayOptions, REMOTE_BASE};

use super::keys::Keys;
use super::{BASES, BaseDevice, is_remote_base, parse_direct};
use crate::spec::units::{parse_size, parse_switch};

/// Keys of the type.
pub(super) const KEYS: [&str; 6] = ["path", "backing", "base", "size", "direct", "read-only"];

/// What an overlay that is not there is made as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewDisk {
    /// Its base: a raw image, an overlay, or the specification of a remote.
    pub base: PathBuf,
    /// Its size in bytes, if that is not the base's.
    pub size: Option<u64>,
}

impl NewDisk {
    /// The overlay that is to be made at `path` and could be opened with these options; its base is locked against writers as long as
    /// this lives.
    ///
    /// # Errors
    /// Why no overlay can be on the base or have the size, or why it could not be opened there.
    pub(crate) fn prepare(
        &self,
        path: &Path,
        options: &OverlayOptions,
    ) -> Result<NewOverlay, ConfigError> {
        let format = is_remote_base(&self.base).then_some(REMOTE_BASE);
        let base = NewBase { path: &self.base, format, formats: BASES };
        let overlay = NewOverlay::on(&base, self.size)?;
        overlay.check_place(path, options)?;
        Ok(overlay)
    }
}

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
    let size = keys.parse("size", parse_size)?;
    let new = keys.get("base").map(|base| NewDisk { base: base.into(), size });
    if size.is_some() && new.is_none() {
        let message = "it is the size of a new overlay, which needs its base, too: base=golden.img";
        return Err(ConfigError::new("size", message));
    }
    Ok(BaseDevice::Overlay { path, options, new })
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
        let plain = BaseDevice::Overlay { path: "a.hwo".into(), options, new: None };
        assert_eq!(base("overlay:path=a.hwo"), plain);
        assert_eq!(base("overlay:path=a.hwo,backing=beside"), plain);
        let options = OverlayOptions {
            read_only: true,
            direct: Direct::Off,
            base_anywhere: true,
            formats: BASES,
        };
        let new = Some(NewDisk { base: "g.img".into(), size: Some(1 << 30) });
        let made = BaseDevice::Overlay { path: "a.hwo".into(), options, new };
        assert_eq!(
            base("overlay:path=a.hwo,base=g.img,size=1G,read-only=on,direct=off,backing=allow"),
            made
        );
        let all = BaseDevice::Overlay { path: "a.hwo".into(), options, new: None };
        assert_eq!(base("overlay:path=a.hwo,read-only=on,direct=off,backing=allow"), all);
        for (wrong, words) in [
            ("overlay:", "an overlay needs one"),
            ("overlay:path=a,backing=yes", "none of beside and allow"),
            ("overlay:path=a,size=1G", "needs its base"),
            ("overlay:path=a,sise=1G", "overlay: has no key `sise`"),
        ] {
            let refused = Spec::parse(wrong).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }
}
