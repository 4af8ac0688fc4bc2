//! The parts of the pool that the device owns: frames under write-out are not changed, frames being filled are not accessed.

use headworks_core::{Action, Actions, Input, Op, RequestId};

use crate::harness::BLOCK;

/// The part of the pool under one command, in bytes.
#[derive(Clone, Copy, Debug)]
struct Part {
    id: RequestId,
    fills: bool,
    start: u64,
    end: u64,
}

#[derive(Debug, Default)]
pub struct DeviceFrames {
    parts: Vec<Part>,
}

impl DeviceFrames {
    /// Ends the ownership of the commands that complete.
    pub fn take_back(&mut self, inputs: &[Input]) {
        for input in inputs {
            if let Input::Complete { completion, .. } = input {
                self.parts.retain(|part| part.id != completion.id);
            }
        }
    }

    /// Checks the actions of a shard, in their order.
    pub fn check(&mut self, actions: &Actions) {
        for action in &actions.list {
            match *action {
                Action::Submit(submit) => {
                    for segment in actions.segments_of(&submit) {
                        let Some(unit) = segment.bio.unit() else { continue };
                        let start = u64::from(unit) * BLOCK + u64::from(segment.offset);
                        let end = start + u64::from(segment.len);
                        let fills = submit.op == Op::Read;
                        self.touch(action, (start, end), fills);
                        self.parts.push(Part { id: submit.id, fills, start, end });
                    }
                }
                Action::Copy { at, len, direction, .. } => {
                    let writes = direction == headworks_core::CopyDirection::ToPool;
                    self.touch(action, (at, at + u64::from(len)), writes);
                }
                Action::ReplyFrames { first, ranges, .. } => {
                    for range in actions.ranges_of(first, ranges) {
                        self.touch(action, (range.at, range.at + u64::from(range.len)), false);
                    }
                }
                Action::Zero { at, len } | Action::Release { at, len } => {
                    self.touch(action, (at, at + u64::from(len)), true)
                }
                Action::Move { from, to, len } => {
                    self.touch(action, (from, from + u64::from(len)), false);
                    self.touch(action, (to, to + u64::from(len)), true);
                }
                _ => {}
            }
        }
    }

    fn touch(&self, action: &Action, (start, end): (u64, u64), writes: bool) {
        let meets = |part: &&Part| part.start < end && start < part.end;
        let mut parts = self.parts.iter().filter(meets);
        let wrong = parts.find(|part| writes || part.fills);
        assert!(wrong.is_none(), "{action:?} while the device has {wrong:?}");
    }
}
