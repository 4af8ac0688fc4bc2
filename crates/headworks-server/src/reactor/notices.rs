//! Lines of the log about what a shard has noticed: losses, devices that do not answer, requests that timed out.

use headworks::house::Loss;
use headworks_core::{Control, DeviceState, Instant, Notice};
use tracing::{error, warn};

use super::TICK_NS;
use super::exports::ExportTable;
use super::shard_io::ShardIo;
use crate::reactor::messages::ControlMessage;
use crate::reactor::shared::ServerShared;

/// What of notices was not logged yet.
#[derive(Debug)]
pub(super) struct NoticeLog {
    /// Commands that timed out.
    timed_out: u64,
    /// When the next line about them may be logged, one a second.
    next_timed_out: Instant,
}

impl Default for NoticeLog {
    fn default() -> Self {
        Self { timed_out: 0, next_timed_out: Instant(0) }
    }
}

impl NoticeLog {
    /// Logs what the shard has noticed, and notes what the next process is to know.
    pub fn log(&mut self, exports: &ExportTable, io: &mut ShardIo, shared: &ServerShared) {
        log_device_states(exports, io);
        let now = io.now;
        for notice in io.notices.drain(..) {
            if let Notice::Suspect { volume, .. } = notice {
                // The next process is to know, too.
                shared.keeper().set_suspect(volume, true);
            }
            match notice {
                Notice::Suspect { volume, status } => error!(
                    "{}: a device flush failed ({}): its flushes and FUA fail until the server restarts or the error is \
                     cleared (headworks ctl SOCKET discard-failed EXPORT)",
                    exports.name_of(volume),
                    status.err().map_or_else(String::new, |error| error.to_string())
                ),
                Notice::TimedOut { volume, op, offset, len } => {
                    self.timed_out += 1;
                    if now < self.next_timed_out {
                        continue;
                    }
                    self.next_timed_out = now.after(TICK_NS);
                    warn!(
                        offset,
                        len,
                        commands = std::mem::take(&mut self.timed_out),
                        "{}: {} timed out; the client got an error, its buffer stays in use until the device completes the command",
                        exports.name_of(volume),
                        op.name()
                    );
                }
                Notice::UnknownCompletion { device, .. } => {
                    error!(
                        "device hw{} completed a command that is not in flight; ignored",
                        device.0
                    );
                }
                // `ShardIo` keeps these apart.
                Notice::Set { .. } | Notice::DeviceState { .. } => {}
                Notice::ShortRead { volume, offset } => {
                    error!(
                        offset,
                        "{}: short read: the image was truncated below its size",
                        exports.name_of(volume)
                    );
                }
            }
        }
        let lost = std::mem::take(&mut io.notices_lost);
        if lost > 0 {
            warn!("{lost} more messages of this kind suppressed");
        }
    }
}

/// Notes that acknowledged data of volumes may be gone, for this process and the next one.
pub fn note_losses(losses: &[Loss], exports: &ExportTable, shared: &ServerShared) {
    for &loss in losses {
        let volume = loss.volume();
        shared.keeper().set_suspect(volume, true);
        if let Loss::Everything(volume) = loss {
            // Its cache may be on another shard. The device has said what happened.
            shared.send_all(|| ControlMessage::Control(Control::Void { volume }));
            continue;
        }
        error!(
            "{}: its device may have lost writes that it had acknowledged since the last flush: flushes and FUA fail until the \
             server restarts or the error is cleared (headworks ctl SOCKET discard-failed EXPORT)",
            exports.name_of(volume)
        );
    }
}

/// Logs that a device ceased to answer, or answers again: a line each.
fn log_device_states(exports: &ExportTable, io: &mut ShardIo) {
    for (device, state) in io.device_states.drain(..) {
        let names = exports.names_on(device);
        match state {
            DeviceState::Stuck => error!(
                device = device.0,
                "{names}: the device does not answer, or refuses everything: requests for it fail until it answers"
            ),
            DeviceState::Live => {
                warn!(device = device.0, "{names}: the device answers again");
            }
        }
    }
}
