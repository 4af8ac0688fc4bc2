//! `freeze` and `thaw`: the images of some exports are of one point in time, and stay so until they are thawed.
//!
//! ```text
//!   freeze   gate of every image -> wait for writes in flight -> write back, flush -> answer
//!               `-- any of them fails, or takes longer than the freeze may last: all are thawed again --'
//!   thaw     every image; an error if one had been thawed by its time limit
//! ```
//!
//! All gates are closed before the first write-back, so that several images are of one time as far as their clients wait for
//! acknowledgements of one before they write to another. Each shard ends its freezes by itself (`reactor/freezes.rs`): neither a
//! script that dies nor this process's threads can leave one behind. While an image is frozen its export is not removed or resized;
//! the lock of the inventory orders these.

use std::time::{Duration, Instant};

use headworks_core::IoError;

use super::chosen::{chosen_exports, known_exports};
use super::drain::WriteOut;
use super::drain::write_out;
use super::remove::being_removed;
use super::{LiveChanges, PAUSE};
use crate::control::exports::ExportState;
use crate::control::tree::{ExportNode, lock};
use crate::observe::latency::errors::errno_name;
use crate::reactor::messages::query::{ControlQuery, Thawed};
use headworks_control::param::Names;
use headworks_control::{RpcFault, answers, methods};

/// Length of a freeze if none is given.
const LIMIT: Duration = Duration::from_secs(60);

/// The method `freeze`, with the parameters of a client.
pub fn freeze(live: &LiveChanges, asked: &methods::Freeze) -> Result<answers::Frozen, RpcFault> {
    let limit = asked.timeout.0.map_or(LIMIT, Duration::from_secs_f64);
    let chosen = chosen_exports(&live.tree.current(), &asked.exports)?;
    let images = images(&chosen);
    let since = Instant::now();
    let done = close_gates(live, &images, limit).and_then(|()| {
        let frozen = bring_to_rest(live, &images, since + limit);
        if frozen.is_err() {
            reopen(live, &images);
        }
        frozen
    });
    let bytes = done?;
    let (exports, seconds) = (super::names(&chosen), since.elapsed().as_secs_f64());
    Ok(answers::Frozen { exports, bytes, seconds, timeout: limit.as_secs_f64() })
}

/// The method `thaw`. All are thawed that there are, whatever is said of one, or of a name or pattern that fits none.
pub fn thaw(live: &LiveChanges, exports: &Names) -> Result<answers::Thawed, RpcFault> {
    let (chosen, unknown) = known_exports(&live.tree.current(), exports);
    let images = images(&chosen);
    let (mut late, mut never, mut seconds) = (Vec::new(), Vec::new(), 0.0_f64);
    // Before an error of one ends this.
    let answers: Vec<_> = images.iter().map(|image| thaw_image(live, image)).collect();
    for (image, answer) in images.iter().zip(answers) {
        let name = image.shown_name();
        match answer? {
            Thawed::Now { after_ns } => seconds = seconds.max(after_ns as f64 / 1e9),
            Thawed::HadEnded { after_ns } => {
                late.push(format!("{name} after {} s", after_ns as f64 / 1e9));
            }
            Thawed::WasNot => never.push(name),
        }
    }
    if !late.is_empty() {
        let late = late.join(", ");
        let message = format!(
            "the freeze had ended by itself: {late}; what was copied is not of one point in time, give `freeze` a longer --timeout"
        );
        return Err(RpcFault::refused("ETIMEDOUT", message));
    }
    if !never.is_empty() {
        let message = format!("not frozen: {}", never.join(", "));
        return Err(RpcFault::refused("EINVAL", message));
    }
    let thawed = super::names(&chosen);
    match unknown.into_iter().next() {
        None => Ok(answers::Thawed { exports: thawed, seconds }),
        Some(fault) if thawed.is_empty() => Err(fault),
        Some(fault) => Err(fault.with_note(&format!("thawed: {}", thawed.join(", ")))),
    }
}

/// Freezes all images, or none.
pub(super) fn close_gates(
    live: &LiveChanges,
    images: &[ExportNode],
    limit: Duration,
) -> Result<(), RpcFault> {
    let inventory = lock(&live.inventory);
    let limit_ns = limit.as_nanos() as u64;
    for (index, image) in images.iter().enumerate() {
        let (name, volume) = (image.shown_name(), image.volume);
        let state = inventory.exports.lock().get(&image.id.0).map(|record| record.state.clone());
        let closed = match state {
            Some(ExportState::Serving) => {
                let freeze = |answer| ControlQuery::Freeze { volume, limit_ns, answer };
                live.shards.ask(image.home, freeze).and_then(|frozen| {
                    frozen
                        .map_err(|why| RpcFault::refused("EBUSY", format!("export {name}: {why}")))
                })
            }
            _ => Err(being_removed(name)),
        };
        if let Err(fault) = closed {
            reopen(live, &images[..index]);
            return Err(fault);
        }
    }
    Ok(())
}

/// Waits for what was accepted before the gates closed, writes it back and flushes; returns the bytes that were dirty.
pub(super) fn bring_to_rest(
    live: &LiveChanges,
    images: &[ExportNode],
    until: Instant,
) -> Result<u64, RpcFault> {
    for image in images {
        wait_for_writes(live, image, until)?;
    }
    let mut bytes = 0;
    for written in write_out(live, images.to_vec(), until)? {
        let WriteOut { entry, bytes: dirty, outcome, .. } = &written;
        bytes += dirty;
        match outcome {
            None => return Err(too_slow(entry, "write-back")),
            Some(Err(error)) => return Err(not_written(entry, *error)),
            Some(Ok(())) => {}
        }
    }
    for image in images {
        // It may have ended by itself meanwhile.
        count_writes(live, image)?;
    }
    Ok(bytes)
}

pub(super) fn wait_for_writes(
    live: &LiveChanges,
    image: &ExportNode,
    until: Instant,
) -> Result<(), RpcFault> {
    while count_writes(live, image)? > 0 {
        if Instant::now() >= until {
            return Err(too_slow(image, "writes in flight"));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Requests in flight that change a frozen image.
fn count_writes(live: &LiveChanges, image: &ExportNode) -> Result<usize, RpcFault> {
    let volume = image.volume;
    let count = |answer| ControlQuery::FrozenWrites { volume, answer };
    live.shards.ask(image.home, count)?.ok_or_else(|| too_slow(image, "write-back"))
}

fn thaw_image(live: &LiveChanges, image: &ExportNode) -> Result<Thawed, RpcFault> {
    let volume = image.volume;
    live.shards.ask(image.home, |answer| ControlQuery::Thaw { volume, answer })
}

/// Thaws images after a failure, which is what the client is told.
pub(super) fn reopen(live: &LiveChanges, images: &[ExportNode]) {
    for image in images {
        // A shard that does not answer ends its freeze by itself.
        let _ = thaw_image(live, image);
    }
}

/// Refuses a change of an export whose image is frozen.
pub(super) fn check_not_frozen(name: &str, frozen: bool) -> Result<(), RpcFault> {
    match frozen {
        false => Ok(()),
        true => {
            let message = format!("export {name} is frozen; `thaw {name}` ends that");
            Err(RpcFault::refused("EBUSY", message))
        }
    }
}

/// One export for each image of these exports.
fn images(chosen: &[ExportNode]) -> Vec<ExportNode> {
    let mut images: Vec<ExportNode> = Vec::new();
    for entry in chosen {
        if !images.iter().any(|known| known.volume == entry.volume) {
            images.push(entry.clone());
        }
    }
    images
}

/// The error for an image that is not at rest before its freeze ends.
fn too_slow(image: &ExportNode, what: &str) -> RpcFault {
    let message = format!(
        "export {} is not frozen: {what} took longer than the freeze may last; give a longer --timeout",
        image.shown_name()
    );
    RpcFault::refused("ETIMEDOUT", message)
}

/// The error for an image whose dirty data could not be written.
fn not_written(image: &ExportNode, error: IoError) -> RpcFault {
    let name = image.shown_name();
    let message = format!(
        "export {name} is not frozen: it could not be written out ({error}); `failed {name}` lists the bytes, `discard-failed {name}` discards them"
    );
    RpcFault::refused(errno_name(error), message)
}
