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
//! Modules: `spawner` the helper process that starts programs (`helper`: what such processes do at their start), `packet` packets with descriptors, `channel` the messages,
//! `process_state` what the program hands over beside the server's record, `successor` the side of the old process,
//! `predecessor` that of the new one, `changes` what `ctl` had changed. `restart` and `left` do the same across a stop: what this process leaves
//! with the service manager, and what the next one finds.
//!
//! Invariants: until Go the new process changes nothing that the old one needs; the old one serves again only when the new one has
//! ended; the old one exits without removing a file.

mod changes;
mod channel;
pub(super) mod helper;
pub(super) mod left;
pub(super) mod packet;
mod predecessor;
mod process_state;
pub(super) mod restart;
mod spawner;
mod successor;

pub(super) use changes::with_changes;
pub(super) use predecessor::Predecessor;
pub(super) use process_state::ProcessState;
pub(super) use spawner::Spawner;
pub use spawner::{COMMAND as SPAWNER_COMMAND, run as run_spawner};
pub(super) use successor::{HandedOver, Upgrades};

/// Environment variable with the number of the descriptor that connects a new process with the one that it replaces.
const VARIABLE: &str = "HEADWORKS_UPGRADE_FD";

/// Variables that are addressed to one process and mislead a process that replaces it.
const VARIABLES_OF_ONE_PROCESS: [&str; 5] =
    ["LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "LISTEN_PIDFDID", "WATCHDOG_PID"];

#[cfg(test)]
pub(super) mod tests {
    use super::channel::{Channel, Message};
    use super::packet::PacketSocket;
    use headworks_server::Handover;
    use std::time::{Duration, Instant};

    /// All that a server behind the seccomp filter does for an upgrade.
    pub fn hand_over_once() {
        let until = Instant::now() + Duration::from_secs(60);
        let (old, new) = PacketSocket::pair().unwrap();
        let (old, new) = (Channel::new(old), Channel::new(new));
        let descriptors = vec![std::fs::File::open("/dev/null").unwrap().into()];
        let live = Message::Live(Handover { record: vec![1; 5000], descriptors });
        let sender = std::thread::spawn(move || {
            old.send(live, until).unwrap();
            old.send(Message::Go, until).unwrap();
        });
        let Ok(Message::Live(received)) = new.receive(until) else { panic!("another message") };
        assert_eq!((received.record, received.descriptors.len()), (vec![1; 5000], 1));
        assert!(matches!(new.receive(until), Ok(Message::Go)));
        sender.join().unwrap();
    }
}
