//! The encoding of inputs as words, and the hash of inputs and actions.
//!
//! Every field has a fixed position in a word, so the encoding does not depend on layout, padding or build. A record of a shard's
//! inputs with the `now` of each batch replays to the same actions, which are compared by hash.

use crate::action::{Action, Actions, Notice};
use crate::bio::{
    Bio, BioFlags, BioId, DeviceId, ExportId, Ioprio, Op, ShardId, TenantId, VolumeId,
};
use crate::device_cost::{DeviceCost, ShareUnit};
use crate::error::{IoError, Status};
use crate::input::{Completion, Control, Input, Message, ReplyStage, RequestId};
use crate::options::{TenantMemory, Tunable};
use crate::queue::DeviceState;
use crate::wait_times::WaitTimes;
use crate::writeback::DirtyTunable;

/// An encoded input: six words.
pub type InputWords = [u64; 6];

/// A running hash of inputs and actions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunHash(pub u64);

impl Default for RunHash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl RunHash {
    /// Adds one word: rotate, exclusive or, multiply.
    #[inline]
    pub fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// Adds a list of actions, in order, with their segments.
    pub fn add_actions(&mut self, actions: &Actions) {
        for action in &actions.list {
            self.add_action(action);
        }
        for segment in &actions.segments {
            self.add_id(segment.bio);
            self.add(pair(segment.offset, segment.len));
        }
        for range in &actions.ranges {
            self.add(range.at);
            self.add(range.len.into());
        }
    }

    /// Adds an encoded input.
    pub fn add_input(&mut self, input: &Input) {
        encode(input).into_iter().for_each(|word| self.add(word));
    }

    fn add_id(&mut self, id: BioId) {
        self.add(id_word(id));
        self.add(id.sequence);
    }

    fn add_action(&mut self, action: &Action) {
        match *action {
            Action::Submit(submit) => {
                self.add(1);
                self.add(pair(submit.id.slot, submit.id.generation));
                self.add(pair(
                    u32::from(submit.device.0) << 16 | u32::from(submit.volume.0),
                    submit.len,
                ));
                self.add(pair(submit.first_segment, submit.segments.into()));
                self.add(u64::from(submit.op as u8) << 8 | u64::from(submit.flags.0));
                self.add(submit.offset);
            }
            Action::Reply { id, status, hole, stage, wait_times } => {
                self.add(2);
                self.add_id(id);
                self.add(outcome(status, hole, stage));
                self.add(wait_times.word());
            }
            Action::Send { to, message } => {
                self.add(3);
                self.add_input(&Input::Message { from: to, message });
            }
            Action::Timer { at } => {
                self.add(4);
                self.add(at.0);
            }
            Action::Notice(notice) => self.add_notice(notice),
            Action::Copy { bio, offset, len, at, direction } => {
                self.add(10 | (direction as u64) << 8);
                self.add_id(bio);
                self.add(pair(offset, len));
                self.add(at);
            }
            Action::Zero { at, len } => {
                self.add(11);
                self.add(at);
                self.add(len.into());
            }
            Action::Move { from, to, len } => {
                self.add(12);
                self.add(from);
                self.add(to);
                self.add(len.into());
            }
            Action::Prepare { at, len } => {
                self.add(18);
                self.add(at);
                self.add(len.into());
            }
            Action::Release { at, len } => {
                self.add(17);
                self.add(at);
                self.add(len.into());
            }
            Action::SetDirty { unit, count, entry } => {
                self.add(14);
                self.add(pair(unit, count));
                self.add(entry.0);
            }
            Action::ReplyFrames { id, first, ranges, wait_times } => {
                self.add(15);
                self.add_id(id);
                self.add(pair(first, ranges.into()));
                self.add(wait_times.word());
            }
            Action::NeedsBuffer { id, wait_times } => {
                self.add(16);
                self.add_id(id);
                self.add(wait_times.word());
            }
            Action::Data { bio, len } => {
                self.add(13);
                self.add_id(bio);
                self.add(len.into());
            }
        }
    }

    fn add_notice(&mut self, notice: Notice) {
        match notice {
            Notice::Suspect { volume, status } => {
                self.add(5);
                self.add(pair(volume.0.into(), IoError::code(status).into()));
            }
            Notice::TimedOut { volume, op, offset, len } => {
                self.add(6);
                self.add(pair(u32::from(volume.0) << 8 | u32::from(op as u8), len));
                self.add(offset);
            }
            Notice::UnknownCompletion { device, id } => {
                self.add(7);
                self.add(device.0.into());
                self.add(pair(id.slot, id.generation));
            }
            Notice::Set { token, status } => {
                self.add(9);
                self.add(pair(token, IoError::code(status).into()));
            }
            Notice::DeviceState { device, state } => {
                self.add(14);
                self.add(pair(device.0.into(), state as u32));
            }
            Notice::ShortRead { volume, offset } => {
                self.add(8);
                self.add(volume.0.into());
                self.add(offset);
            }
        }
    }
}

const fn pair(high: u32, low: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

fn outcome(status: Status, hole: bool, stage: ReplyStage) -> u64 {
    u64::from(IoError::code(status)) << 16 | u64::from(hole) << 8 | u64::from(stage as u8)
}

/// Encodes a bio as four words.
fn bio_words(bio: &Bio) -> [u64; 4] {
    [
        id_word(bio.id),
        bio.id.sequence,
        bio.offset,
        pair(
            bio.len,
            u32::from(bio.ioprio.code()) << 16
                | u32::from(bio.op as u8) << 8
                | u32::from(bio.flags.0),
        ),
    ]
}

fn bio_of(words: &[u64]) -> Option<Bio> {
    let op = *Op::ALL.get((words[3] >> 8 & 0xff) as usize)?;
    Some(Bio {
        id: id_of(words[0], words[1]),
        offset: words[2],
        len: (words[3] >> 32) as u32,
        op,
        flags: BioFlags(words[3] as u8),
        ioprio: Ioprio::from_code((words[3] >> 16) as u8)?,
    })
}

fn id_of(who: u64, sequence: u64) -> BioId {
    BioId {
        connection: (who >> 32) as u32,
        volume: VolumeId(who as u16),
        export: ExportId((who >> 16) as u16),
        sequence,
    }
}

const fn id_word(id: BioId) -> u64 {
    pair(id.connection, (id.export.0 as u32) << 16 | id.volume.0 as u32)
}

/// Encodes an input; the low byte of the first word is its kind.
#[must_use]
pub fn encode(input: &Input) -> InputWords {
    match *input {
        Input::Bio(bio) => {
            let [a, b, c, d] = bio_words(&bio);
            [0, a, b, c, d, 0]
        }
        Input::Complete { device, completion } => [
            1 | u64::from(device.0) << 16,
            pair(completion.id.slot, completion.id.generation),
            u64::from(completion.transferred),
            outcome(completion.status, completion.hole, ReplyStage::Final),
            0,
            0,
        ],
        Input::Timer => [2, 0, 0, 0, 0, 0],
        Input::Message { from, message } => {
            let mut words = encode_message(&message);
            words[0] |= u64::from(from.0) << 16;
            words
        }
        Input::Control(Control::Acknowledge { volume }) => [8, volume.0.into(), 0, 0, 0, 0],
        Input::Control(Control::Suspect { volume }) => [18, volume.0.into(), 0, 0, 0, 0],
        Input::Control(Control::Void { volume }) => [26, volume.0.into(), 0, 0, 0, 0],
        Input::Control(Control::Resize { volume, size }) => [9, volume.0.into(), size, 0, 0, 0],
        Input::Control(Control::Set { device, tunable, value, token }) => {
            [11, device.0.into(), tunable.code().into(), value, token.into(), 0]
        }
        Input::Control(Control::Weight { export, weight }) => {
            [12, export.0.into(), weight.into(), 0, 0, 0]
        }
        Input::Control(Control::TenantWeight { tenant, weight }) => {
            [20, tenant.0.into(), weight.into(), 0, 0, 0]
        }
        Input::Control(Control::ExportTenant { export, tenant }) => {
            [21, export.0.into(), tenant.0.into(), 0, 0, 0]
        }
        Input::Control(Control::ExportTarget { export, target_us }) => {
            [22, export.0.into(), target_us.into(), 0, 0, 0]
        }
        Input::Control(Control::TenantMemory { tenant, memory }) => {
            let TenantMemory { dirty_max, cache_min, cache_max } = memory;
            [23, tenant.0.into(), dirty_max.into(), cache_min.into(), cache_max.into(), 0]
        }
        Input::Control(Control::ExportDirty { export, dirty_max }) => {
            [24, export.0.into(), dirty_max.into(), 0, 0, 0]
        }
        Input::Control(Control::SetDirty { tunable, value, token }) => {
            [16, tunable.code().into(), value, token.into(), 0, 0]
        }
        Input::Control(Control::Freeze { on }) => [19, on.into(), 0, 0, 0, 0],
        Input::Control(Control::CacheLimit { units, dirtyable }) => {
            [25, units.into(), dirtyable.into(), 0, 0, 0]
        }
        Input::Control(Control::CacheMemory { first, units, had }) => {
            [27, first.into(), units.into(), had.into(), 0, 0]
        }
        Input::Close { connection } => [14, connection.into(), 0, 0, 0, 0],
    }
}

fn encode_message(message: &Message) -> InputWords {
    match *message {
        Message::Bio { bio, cookie, tags, waited } => {
            let [a, b, c, d] = bio_words(&bio);
            [3, a, b, c, d, pair(cookie, u32::from(waited) << 16 | u32::from(tags))]
        }
        Message::Done { cookie, id, status, hole, stage, wait_times } => {
            let outcome = outcome(status, hole, stage);
            [4, id_word(id), id.sequence, outcome, cookie.into(), wait_times.word()]
        }
        Message::TagWant { device, want, bytes, cost, tenant, weight, target_us } => {
            // Inverted: a request without a tenant is written as in records that had none.
            let payer = u64::from(!tenant.0) << 16 | u64::from(weight);
            let bytes = u64::from(target_us) << 32 | u64::from(bytes);
            [5, device.0.into(), want.into(), bytes, payer, cost]
        }
        Message::TagGrant { device, count, cost } => {
            let [a, b, c, d] = cost.words();
            [6 | u64::from(count) << 32, device.0.into(), a, b, c, d]
        }
        Message::TagRevoke { device } => [7, device.0.into(), 0, 0, 0, 0],
        Message::TagReturn { device, count } => [10, device.0.into(), count.into(), 0, 0, 0],
        Message::Caching { device, read_ahead_kb, max_folio_order } => {
            [15, device.0.into(), read_ahead_kb.into(), max_folio_order.into(), 0, 0]
        }
        Message::Limits { device, nr_requests, max_sectors_kb, share, io_timeout_ns } => {
            let share = share as u64;
            [13, device.0.into(), nr_requests.into(), max_sectors_kb.into(), share, io_timeout_ns]
        }
        Message::DeviceState { device, state, unresponsive } => {
            [17, device.0.into(), state as u64, unresponsive.into(), 0, 0]
        }
    }
}

/// Decodes an input; `None` for words of a damaged record.
#[must_use]
pub fn decode(words: &InputWords) -> Option<Input> {
    let from = ShardId((words[0] >> 16) as u16);
    let device = DeviceId(words[1] as u16);
    let count = words[2] as u16;
    let message = match words[0] & 0xff {
        0 => return bio_of(&words[1..]).map(Input::Bio),
        1 => {
            return Some(Input::Complete {
                device: DeviceId(from.0),
                completion: completion_of(words),
            });
        }
        2 => return Some(Input::Timer),
        3 => Message::Bio {
            bio: bio_of(&words[1..])?,
            cookie: (words[5] >> 32) as u32,
            tags: words[5] as u16,
            waited: (words[5] >> 16) as u8,
        },
        4 => Message::Done {
            cookie: words[4] as u32,
            id: id_of(words[1], words[2]),
            status: IoError::from_code((words[3] >> 16) as u8),
            hole: words[3] >> 8 & 1 != 0,
            stage: stage_of(words[3])?,
            wait_times: WaitTimes::from_word(words[5]),
        },
        5 => Message::TagWant {
            device,
            want: count,
            bytes: words[3] as u32,
            cost: words[5],
            tenant: TenantId(!((words[4] >> 16) as u16)),
            weight: words[4] as u16,
            target_us: (words[3] >> 32) as u32,
        },
        6 => Message::TagGrant {
            device,
            count: (words[0] >> 32) as u16,
            cost: DeviceCost::from_words([words[2], words[3], words[4], words[5]])?,
        },
        7 => Message::TagRevoke { device },
        8 => {
            return Some(Input::Control(Control::Acknowledge { volume: VolumeId(device.0) }));
        }
        18 => return Some(Input::Control(Control::Suspect { volume: VolumeId(device.0) })),
        26 => return Some(Input::Control(Control::Void { volume: VolumeId(device.0) })),
        19 => return Some(Input::Control(Control::Freeze { on: words[1] != 0 })),
        25 => {
            let (units, dirtyable) = (words[1] as u32, words[2] as u32);
            return Some(Input::Control(Control::CacheLimit { units, dirtyable }));
        }
        27 => {
            let (first, units, had) = (words[1] as u32, words[2] as u32, words[3] != 0);
            return Some(Input::Control(Control::CacheMemory { first, units, had }));
        }
        9 => {
            let (volume, size) = (VolumeId(device.0), words[2]);
            return Some(Input::Control(Control::Resize { volume, size }));
        }
        10 => Message::TagReturn { device, count },
        13 => Message::Limits {
            device,
            nr_requests: words[2] as u32,
            max_sectors_kb: words[3] as u32,
            share: *ShareUnit::ALL.get(usize::try_from(words[4]).ok()?)?,
            io_timeout_ns: words[5],
        },
        17 => Message::DeviceState {
            device,
            state: DeviceState::of(words[2])?,
            unresponsive: words[3] != 0,
        },
        11 => {
            let tunable = Tunable::from_code(words[2].try_into().ok()?)?;
            let (value, token) = (words[3], words[4] as u32);
            return Some(Input::Control(Control::Set { device, tunable, value, token }));
        }
        12 => {
            let (export, weight) = (ExportId(device.0), count);
            return Some(Input::Control(Control::Weight { export, weight }));
        }
        20 => {
            let (tenant, weight) = (TenantId(device.0), count);
            return Some(Input::Control(Control::TenantWeight { tenant, weight }));
        }
        21 => {
            let (export, tenant) = (ExportId(device.0), TenantId(count));
            return Some(Input::Control(Control::ExportTenant { export, tenant }));
        }
        22 => {
            let (export, target_us) = (ExportId(device.0), words[2] as u32);
            return Some(Input::Control(Control::ExportTarget { export, target_us }));
        }
        23 => {
            let [dirty_max, cache_min, cache_max] = [2, 3, 4].map(|at| words[at] as u32);
            let memory = TenantMemory { dirty_max, cache_min, cache_max };
            return Some(Input::Control(Control::TenantMemory {
                tenant: TenantId(device.0),
                memory,
            }));
        }
        24 => {
            let (export, dirty_max) = (ExportId(device.0), words[2] as u32);
            return Some(Input::Control(Control::ExportDirty { export, dirty_max }));
        }
        16 => {
            let tunable = DirtyTunable::from_code(words[1].try_into().ok()?)?;
            let (value, token) = (words[2], words[3] as u32);
            return Some(Input::Control(Control::SetDirty { tunable, value, token }));
        }
        14 => return Some(Input::Close { connection: words[1] as u32 }),
        15 => Message::Caching {
            device,
            read_ahead_kb: words[2] as u32,
            max_folio_order: words[3] as u8,
        },
        _ => return None,
    };
    Some(Input::Message { from, message })
}

fn stage_of(word: u64) -> Option<ReplyStage> {
    match word & 0xff {
        0 => Some(ReplyStage::Final),
        1 => Some(ReplyStage::Early),
        2 => Some(ReplyStage::Released),
        _ => None,
    }
}

fn completion_of(words: &InputWords) -> Completion {
    Completion {
        id: RequestId { slot: (words[1] >> 32) as u32, generation: words[1] as u32 },
        transferred: words[2] as u32,
        status: IoError::from_code((words[3] >> 16) as u8),
        hole: words[3] >> 8 & 1 != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    fn some_input(prng: &mut Prng) -> Input {
        let id = BioId {
            connection: prng.next() as u32,
            volume: VolumeId(prng.next() as u16),
            export: ExportId(prng.next() as u16),
            sequence: prng.next(),
        };
        let bio = Bio {
            id,
            offset: prng.next(),
            len: prng.next() as u32,
            op: Op::ALL[prng.below(Op::COUNT as u64) as usize],
            flags: BioFlags(prng.next() as u8),
            ioprio: Ioprio::from_code(prng.between(8, 31) as u8).unwrap(),
        };
        let device = DeviceId(prng.next() as u16);
        let status = IoError::from_code(prng.below(10) as u8);
        let (cookie, count) = (prng.next() as u32, prng.next() as u16);
        let hole = prng.below(2) == 0;
        let message = match prng.below(27) {
            0 => return Input::Bio(bio),
            1 => {
                let request = RequestId { slot: cookie, generation: bio.len };
                let completion = Completion { id: request, transferred: bio.len, status, hole };
                return Input::Complete { device, completion };
            }
            2 => return Input::Timer,
            3 => return Input::Control(Control::Acknowledge { volume: id.volume }),
            17 => return Input::Control(Control::Suspect { volume: id.volume }),
            18 => return Input::Control(Control::Freeze { on: hole }),
            24 => {
                let dirtyable = bio.len;
                return Input::Control(Control::CacheLimit { units: cookie, dirtyable });
            }
            25 => return Input::Control(Control::Void { volume: id.volume }),
            26 => {
                let (first, units) = (cookie, bio.len);
                return Input::Control(Control::CacheMemory { first, units, had: hole });
            }
            4 => {
                return Input::Control(Control::Resize { volume: id.volume, size: bio.offset });
            }
            5 => Message::Bio { bio, cookie, tags: count, waited: bio.len as u8 },
            6 => {
                let wait_times = WaitTimes::from_word(prng.next());
                Message::Done { cookie, id, status, hole, stage: ReplyStage::Early, wait_times }
            }
            7 => Message::TagWant {
                device,
                want: count,
                bytes: cookie,
                cost: prng.next(),
                tenant: TenantId(id.export.0),
                weight: id.volume.0,
                target_us: prng.next() as u32,
            },
            8 => Message::TagGrant { device, count, cost: DeviceCost::default() },
            9 => Message::TagRevoke { device },
            10 => {
                let tunable = Tunable::ALL[prng.below(Tunable::ALL.len() as u64) as usize];
                let (value, token) = (bio.offset, cookie);
                return Input::Control(Control::Set { device, tunable, value, token });
            }
            12 => Message::Limits {
                device,
                nr_requests: cookie,
                max_sectors_kb: bio.len,
                share: ShareUnit::Bytes,
                io_timeout_ns: bio.offset,
            },
            13 => return Input::Close { connection: cookie },
            15 => {
                let tunable = DirtyTunable::from_code(prng.below(8) as u8).unwrap();
                let (value, token) = (bio.offset, cookie);
                return Input::Control(Control::SetDirty { tunable, value, token });
            }
            14 => Message::Caching { device, read_ahead_kb: cookie, max_folio_order: 9 },
            11 => {
                let (export, weight) = (id.export, count);
                return Input::Control(Control::Weight { export, weight });
            }
            19 => {
                let (tenant, weight) = (TenantId(id.export.0), count);
                return Input::Control(Control::TenantWeight { tenant, weight });
            }
            20 => {
                let (export, tenant) = (id.export, TenantId(count));
                return Input::Control(Control::ExportTenant { export, tenant });
            }
            16 => Message::DeviceState { device, state: DeviceState::Stuck, unresponsive: true },
            22 => {
                let (tenant, dirty_max) = (TenantId(count), cookie);
                let memory = TenantMemory { dirty_max, cache_min: bio.len, cache_max: !cookie };
                return Input::Control(Control::TenantMemory { tenant, memory });
            }
            23 => {
                let (export, dirty_max) = (id.export, cookie);
                return Input::Control(Control::ExportDirty { export, dirty_max });
            }
            21 => {
                let (export, target_us) = (id.export, cookie);
                return Input::Control(Control::ExportTarget { export, target_us });
            }
            _ => Message::TagReturn { device, count },
        };
        Input::Message { from: ShardId(prng.next() as u16), message }
    }

    #[test]
    fn inputs_round_trip_through_words() {
        let mut prng = Prng::new(3);
        for _ in 0..20_000 {
            let input = some_input(&mut prng);
            assert_eq!(decode(&encode(&input)), Some(input));
        }
        assert_eq!(decode(&[99, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn hash_depends_on_every_word_and_their_order() {
        let hash = |words: &[u64]| {
            let mut hash = RunHash::default();
            words.iter().for_each(|&word| hash.add(word));
            hash.0
        };
        assert_ne!(hash(&[1, 2]), hash(&[2, 1]));
        assert_ne!(hash(&[0]), hash(&[0, 0]));
        assert_eq!(hash(&[7, 9]), hash(&[7, 9]));
    }
}
