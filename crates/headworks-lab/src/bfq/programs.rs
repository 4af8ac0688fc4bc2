//! The programs of the S suite by the counts of their reads.
//!
//! The suite's records are not part of this repository; any list of the same shape does (see `harness::Program`).

use crate::harness::Program;

/// A terminal: 2 processes.
pub(super) const XTERM: Program =
    Program { name: "xterm", reads: 718, bytes: 1_510 * 4096, far: 121, ahead_percent: 40 };
/// A terminal of a desktop: 7 processes.
pub(super) const GNOME_TERMINAL: Program = Program {
    name: "gnome-terminal",
    reads: 2781,
    bytes: 5_146 * 4096,
    far: 507,
    ahead_percent: 70,
};
/// An office program: 4 processes.
pub(super) const LOWRITER: Program =
    Program { name: "lowriter", reads: 1268, bytes: 11_878 * 4096, far: 414, ahead_percent: 50 };
