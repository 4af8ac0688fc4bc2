//! Live upgrade: another process takes over the service, and clients stay connected.
//!
//! ```text
//!   ctl upgrade, SIGUSR2 --> successor: starts the program through the spawner, hands the standing state over
//!                                |                      new process: predecessor --> opens, starts, Prepared
//!                                v
//!                            pause, live state, Adopted, Go, exit        (limit: 5 s)
//!                                `--any failure--> kill, then resume: this process serves on
//! ```
//!
//! Modules: `spawner` the helper process that starts programs, `packet` packets with descriptors, `channel` the messages,
//! `process_state` what the program hands over beside the server's record, `successor` the side of the old process,
//! `predecessor` that of the new one.
//!
//! Invariants: until Go the new process changes nothing that the old one needs; the old one serves again only when the new one has
//! ended; the old one exits without removing a file.

mod channel;
mod packet;
mod spawner;

pub(in crate::serve) use spawner::Spawner;
pub use spawner::{COMMAND as SPAWNER_COMMAND, run as run_spawner};

/// Environment variable with the number of the descriptor that connects a new process with the one that it replaces.
const VARIABLE: &str = "HEADWORKS_UPGRADE_FD";

/// Variables that are addressed to one process and mislead a process that replaces it.
const VARIABLES_OF_ONE_PROCESS: [&str; 5] =
    ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "LISTEN_PIDFDID", "WATCHDOG_PID"];
