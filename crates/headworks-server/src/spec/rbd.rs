//! `rbd:`: the keys of an image of a Ceph cluster.

use std::path::{Path, PathBuf};

use headworks_core::ConfigError;
use headworks_house::Identity;
use headworks_rbd::{ImageName, RbdOptions};

use super::BaseDevice;
use super::keys::Keys;
use crate::spec::units::parse_switch;

/// Keys of the type.
pub(super) const KEYS: [&str; 5] = ["image", "conf", "user", "takeover", "read-only"];

/// How an image is written.
const EXAMPLE: &str = "rbd:image=POOL/IMAGE";

/// The filesystem of identities that are of images of clusters, and not of files.
const CLUSTERS: u64 = u64::MAX - 1;

/// An image of a cluster as a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rbd {
    /// Name of the image.
    pub name: ImageName,
    /// How its cluster is reached, and what happens to another owner of its lock.
    pub options: RbdOptions,
    /// Nothing is written to the image.
    pub read_only: bool,
}

impl Rbd {
    /// Refuses `rbd:POOL/IMAGE`, with what it means here.
    pub(super) fn check_form(text: &str) -> Result<(), ConfigError> {
        if text.is_empty() || text.split(',').next().unwrap_or_default().contains('=') {
            return Ok(());
        }
        let message = format!("an image is written {EXAMPLE}, here rbd:image={text}");
        Err(ConfigError::new("rbd", message))
    }

    pub(super) fn parse(keys: Keys<'_>) -> Result<BaseDevice, ConfigError> {
        let name = keys.parse("image", str::parse::<ImageName>)?;
        let name = name.ok_or_else(|| {
            ConfigError::new("image", format!("an image of a cluster needs one: {EXAMPLE}"))
        })?;
        let usual = RbdOptions::default();
        let options = RbdOptions {
            conf: keys.get("conf").map(PathBuf::from),
            user: keys.get("user").map_or(usual.user, str::to_owned),
            takeover: keys.parse("takeover", parse_switch)?.unwrap_or(false),
        };
        let read_only = keys.parse("read-only", parse_switch)?.unwrap_or(false);
        Ok(BaseDevice::Rbd(Box::new(Self { name, options, read_only })))
    }

    /// Whether clients cannot write: snapshots never change.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only || self.name.snapshot.is_some()
    }

    /// Whether both have the same image, opened in the same way.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.name == other.name
            && RbdOptions { takeover: false, ..self.options.clone() }
                == RbdOptions { takeover: false, ..other.options.clone() }
    }

    /// Makes a relative path of the configuration start at `folder`.
    pub(super) fn set_folder(&mut self, folder: &Path) {
        if let Some(conf) = &mut self.options.conf {
            *conf = folder.join(&*conf);
        }
    }

    /// The same for every export of this image with this configuration; equal ones are one volume.
    #[must_use]
    pub fn identity(&self) -> Identity {
        // FNV-1a: the same in every process.
        let key = format!("{}\0{:?}", self.name, self.options.conf);
        let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let inode = key.bytes().fold(0xcbf2_9ce4_8422_2325, step);
        Identity::named(CLUSTERS, inode)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Spec;
    use super::*;

    fn rbd(text: &str) -> Rbd {
        match Spec::parse(text).unwrap().base {
            BaseDevice::Rbd(rbd) => *rbd,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn keys_parse_with_their_defaults() {
        let usual = rbd("rbd:image=rbd/vol");
        assert_eq!((usual.options.clone(), usual.read_only), (RbdOptions::default(), false));
        assert!(!usual.is_read_only());
        let all = rbd("rbd:image=p/n/i@s,conf=/etc/ceph/x.conf,user=me,takeover=on,read-only=on");
        let options =
            RbdOptions { conf: Some("/etc/ceph/x.conf".into()), user: "me".into(), takeover: true };
        assert_eq!((all.options.clone(), all.read_only), (options, true));
        assert_eq!(all.name.to_string(), "p/n/i@s");
        assert!(rbd("rbd:image=p/i@s").is_read_only());
        assert_eq!(Spec::parse("rbd:image=p/i@s").unwrap().short_name(), "i");
    }

    #[test]
    fn mistakes_say_what_is_right() {
        for (text, part) in [
            ("rbd:", "needs one: rbd:image=POOL/IMAGE"),
            ("rbd:rbd/vol", "here rbd:image=rbd/vol"),
            ("rbd:image=vol", "it is POOL/IMAGE"),
            ("rbd:image=a/b,size=1G", "has no key `size`"),
            ("rbd:image=a/b,takeover=perhaps", "takeover"),
        ] {
            let error = Spec::parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn identity_is_of_image_and_cluster() {
        let one = rbd("rbd:image=a/b");
        let same = rbd("rbd:image=a/b,takeover=on,read-only=on");
        assert!(one.is_same(&same) && one.identity() == same.identity());
        for other in ["rbd:image=a/c", "rbd:image=a/b@s", "rbd:image=a/b,conf=/x"] {
            let other = rbd(other);
            assert!(!one.is_same(&other) && one.identity() != other.identity());
        }
    }
}
