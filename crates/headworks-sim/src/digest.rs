//! A running hash of everything that entered a shard and everything it decided.
//!
//! Fields are folded one by one as 64-bit words: no padding, no `usize`, no `Hash` implementation of somebody else, so the
//! number is the same in debug and release, on every machine, and for a replay of a recorded log.

use headworks_core::{
    Action, Actions, Bio, BioId, Completion, Control, Input, Instant, IoError, Message, Notice,
    ShardId, Status,
};

/// The hash so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self::new()
    }
}

impl Digest {
    /// The hash of nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self(0x6865_6164_776f_726b)
    }

    /// Folds one word in.
    #[inline]
    pub fn word(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// The number to print and compare.
    #[must_use]
    pub const fn value(&self) -> u64 {
        let z = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        z ^ (z >> 32)
    }

    /// A batch that `shard` takes at `now`.
    pub fn inputs(&mut self, shard: ShardId, now: Instant, inputs: &[Input]) {
        self.word(u64::from(shard.0) << 32 | inputs.len() as u64);
        self.word(now.0);
        for input in inputs {
            self.input(input);
        }
    }

    /// What it decided.
    pub fn actions(&mut self, actions: &Actions) {
        for action in &actions.list {
            self.action(action, actions);
        }
    }

    fn input(&mut self, input: &Input) {
        match *input {
            Input::Bio(bio) => {
                self.word(1);
                self.bio(&bio);
            }
            Input::Complete { device, completion } => {
                self.word(2 | u64::from(device.0) << 8);
                self.completion(&completion);
            }
            Input::Timer => self.word(3),
            Input::Message { from, message } => {
                self.word(4 | u64::from(from.0) << 8);
                self.message(&message);
            }
            Input::Control(Control::Acknowledge { volume }) => {
                self.word(5 | u64::from(volume.0) << 8);
            }
            Input::Control(Control::Resize { volume, size }) => {
                self.word(6 | u64::from(volume.0) << 8);
                self.word(size);
            }
        }
    }

    fn action(&mut self, action: &Action, actions: &Actions) {
        match *action {
            Action::Submit(submit) => {
                self.word(
                    11 | u64::from(submit.device.0) << 8
                        | u64::from(submit.volume.0) << 24
                        | u64::from(submit.op as u8) << 40
                        | u64::from(submit.flags.0) << 48,
                );
                self.word(u64::from(submit.id.slot) << 32 | u64::from(submit.id.generation));
                self.word(submit.offset);
                self.word(u64::from(submit.len) << 16 | u64::from(submit.segments));
                for segment in actions.segments_of(&submit) {
                    self.bio_id(segment.bio);
                    self.word(u64::from(segment.offset) << 32 | u64::from(segment.len));
                }
            }
            Action::Reply {
                id,
                status,
                hole,
                stage,
            } => {
                self.word(12 | code(status) << 8 | u64::from(hole) << 16 | (stage as u64) << 24);
                self.bio_id(id);
            }
            Action::Send { to, message } => {
                self.word(13 | u64::from(to.0) << 8);
                self.message(&message);
            }
            Action::Timer { at } => {
                self.word(14);
                self.word(at.0);
            }
            Action::Notice(notice) => self.notice(&notice),
        }
    }

    fn bio(&mut self, bio: &Bio) {
        self.bio_id(bio.id);
        self.word(bio.offset);
        self.word(
            u64::from(bio.len) << 16 | u64::from(bio.op as u8) << 8 | u64::from(bio.flags.0),
        );
    }

    fn bio_id(&mut self, id: BioId) {
        self.word(u64::from(id.connection) << 16 | u64::from(id.volume.0));
        self.word(id.sequence);
    }

    fn completion(&mut self, completion: &Completion) {
        self.word(u64::from(completion.id.slot) << 32 | u64::from(completion.id.generation));
        self.word(
            u64::from(completion.transferred) << 16
                | code(completion.status) << 8
                | u64::from(completion.hole),
        );
    }

    fn message(&mut self, message: &Message) {
        match *message {
            Message::Bio { bio, cookie, tags } => {
                self.word(21 | u64::from(tags) << 8 | u64::from(cookie) << 24);
                self.bio(&bio);
            }
            Message::Done {
                cookie,
                id,
                status,
                hole,
                stage,
            } => {
                self.word(22 | u64::from(cookie) << 8);
                self.word(code(status) | u64::from(hole) << 8 | (stage as u64) << 16);
                self.bio_id(id);
            }
            Message::TagWant { device, want } => self.tags(23, device.0, want),
            Message::TagGrant { device, count } => self.tags(24, device.0, count),
            Message::TagRevoke { device } => self.tags(25, device.0, 0),
            Message::TagReturn { device, count } => self.tags(26, device.0, count),
        }
    }

    fn tags(&mut self, kind: u64, device: u16, count: u16) {
        self.word(kind | u64::from(device) << 8 | u64::from(count) << 24);
    }

    fn notice(&mut self, notice: &Notice) {
        match *notice {
            Notice::Suspect { volume, status } => {
                self.word(31 | u64::from(volume.0) << 8 | code(status) << 24);
            }
            Notice::TimedOut {
                volume,
                op,
                offset,
                len,
            } => {
                self.word(32 | u64::from(volume.0) << 8 | u64::from(op as u8) << 24);
                self.word(offset);
                self.word(u64::from(len));
            }
            Notice::UnknownCompletion { device, id } => {
                self.word(33 | u64::from(device.0) << 8);
                self.word(u64::from(id.slot) << 32 | u64::from(id.generation));
            }
            Notice::ShortRead { volume, offset } => {
                self.word(34 | u64::from(volume.0) << 8);
                self.word(offset);
            }
        }
    }
}

fn code(status: Status) -> u64 {
    u64::from(IoError::code(status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_a_bio_counts() {
        let digest = |bio: Bio| {
            let mut digest = Digest::new();
            digest.inputs(ShardId(0), Instant(1), &[Input::Bio(bio)]);
            digest.value()
        };
        let bio = Bio::default();
        let (mut other, mut seen) = (bio, vec![digest(bio)]);
        other.offset = 1;
        seen.push(digest(other));
        other = bio;
        other.len = 1;
        seen.push(digest(other));
        other = bio;
        other.flags.0 = 1;
        seen.push(digest(other));
        other = bio;
        other.id.sequence = 1;
        seen.push(digest(other));
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 5);
    }

    #[test]
    fn the_number_is_the_same_everywhere() {
        let mut digest = Digest::new();
        (0..1000).for_each(|word| digest.word(word));
        assert_eq!(digest.value(), 0x0);
    }
}
