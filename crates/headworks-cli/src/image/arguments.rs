//! Arguments of `headworks image`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use headworks_server::parse_size;

/// Makes overlays (disks on a shared base), and commits, flattens and resets those that are not served
#[derive(Args)]
#[command(after_help = "\
Examples:
  headworks image create --base golden.img tenant.hwo   a disk that begins as golden.img, of the same size
  headworks image create --base golden.img --size 100G big.hwo
  headworks image create --base golden.qcow2 --base-format qcow2 vm.hwo
  headworks image create --base nbd:uri=nbd://host/golden vm.hwo
  headworks image create --base rbd:image=rbd/golden@v1 vm.hwo
  headworks serve overlay:path=tenant.hwo               serve it
  headworks image info tenant.hwo                       its layers, and what of it is its own
  headworks image check tenant.hwo                      exit 0 if it can be served
  headworks image commit tenant.hwo                     move its blocks into golden.img
  headworks image flatten tenant.hwo whole.img          one raw image of all layers
  headworks image reset tenant.hwo                      bytes that would be lost; --yes gives them up

An overlay is a sparse file with the blocks that were written; all others are the base's, which nothing may change meanwhile. The
base may be an overlay, up to 8 of them, and the lowest one an image of another format or a remote, which is only read. A commit changes the base: other overlays on it would be lost, so it is refused if there are some.

Exit status: 0 done, 1 refused or failed, or a check found something, 2 usage.")]
pub struct ImageArgs {
    #[command(subcommand)]
    pub(super) command: ImageCommand,
    /// Print one JSON object
    #[arg(long, global = true)]
    pub(super) json: bool,
}

#[derive(Subcommand)]
pub enum ImageCommand {
    /// Makes an overlay on a base; the base is a raw image, a block device, an overlay, a qcow2 or VMDK image, an export of an NBD server,
    /// or a snapshot of an image of a Ceph cluster
    Create {
        /// Image whose bytes it begins with, or nbd:uri=URI or rbd:image=POOL/IMAGE@SNAPSHOT
        #[arg(long, value_name = "BASE")]
        base: PathBuf,
        /// Format of the base; without it an overlay or raw bytes
        #[arg(long, value_name = "FORMAT")]
        base_format: Option<BaseFormat>,
        /// Its size, if it shall be larger than the base; what is behind the base reads as zeros
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        size: Option<u64>,
        /// File to make
        file: PathBuf,
    },
    /// Shows an overlay and its bases, also while it is served
    Info {
        /// Overlay to show
        file: PathBuf,
        /// Where its bases may be
        #[arg(long, value_name = "WHERE", default_value = "beside")]
        backing: Backing,
    },
    /// Checks head, size, bitmap and bases of an overlay, also while it is served
    Check {
        /// DESTROYS DATA: first give up writes that a killed server acknowledged and no flush covered; for a file system that lost data and
        /// was mounted again without a reboot
        #[arg(long)]
        forget_here: bool,
        /// Overlay to check
        file: PathBuf,
        /// Where its bases may be
        #[arg(long, value_name = "WHERE", default_value = "beside")]
        backing: Backing,
    },
    /// CHANGES THE BASE: moves the blocks of an overlay into its base, and empties the overlay
    ///
    /// Neither may be in use. Killed, it can be begun again. Other overlays on the base would be lost: if there are some in its directory or
    /// in that of the overlay, it is refused.
    Commit {
        /// Go on although other overlays lie on the base
        #[arg(long)]
        others_are_lost: bool,
        /// Overlay to commit
        file: PathBuf,
        /// Where its bases may be
        #[arg(long, value_name = "WHERE", default_value = "beside")]
        backing: Backing,
    },
    /// Writes an overlay with its bases to a new raw image
    ///
    /// The image appears under its name when it is complete; until then it is OUT.new-PID.
    Flatten {
        /// Overlay to read
        file: PathBuf,
        /// Raw image to make
        out: PathBuf,
        /// Where its bases may be
        #[arg(long, value_name = "WHERE", default_value = "beside")]
        backing: Backing,
    },
    /// DESTROYS DATA: gives up the blocks of an overlay; it begins anew with its base as that is now
    ///
    /// Without --yes it prints how many bytes would be lost, changes nothing and exits with 1.
    Reset {
        /// Give them up
        #[arg(long)]
        yes: bool,
        /// Also when a commit was interrupted, which leaves the base with some of the blocks
        #[arg(long)]
        keep_mixture: bool,
        /// Overlay to empty
        file: PathBuf,
        /// Where its bases may be
        #[arg(long, value_name = "WHERE", default_value = "beside")]
        backing: Backing,
    },
    /// Tells an overlay that its base is another file with the same bytes, of which only the size is compared
    ///
    /// After the base was moved or copied, or after a layer between was committed.
    Rebase {
        /// Image that is its base from now on, or nbd:uri=URI or rbd:image=POOL/IMAGE@SNAPSHOT
        #[arg(long, value_name = "BASE")]
        base: PathBuf,
        /// Format of the base; without it an overlay or raw bytes
        #[arg(long, value_name = "FORMAT")]
        base_format: Option<BaseFormat>,
        /// Overlay to change
        file: PathBuf,
    },
}

/// Formats that a base may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BaseFormat {
    /// The bytes of the file
    Raw,
    /// What is in a qcow2 image
    Qcow2,
    /// What is in a VMDK image of flat files
    Vmdk,
}

impl BaseFormat {
    /// The name of an image's format.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Raw => None,
            Self::Qcow2 => Some("qcow2"),
            Self::Vmdk => Some("vmdk"),
        }
    }
}

/// Where the bases of an overlay may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backing {
    /// In the directory of the overlay or below it
    Beside,
    /// Anywhere: the head of a hostile overlay may name any file
    Allow,
}

impl Backing {
    /// Whether a base may be in any directory.
    pub fn is_anywhere(self) -> bool {
        self == Self::Allow
    }
}
