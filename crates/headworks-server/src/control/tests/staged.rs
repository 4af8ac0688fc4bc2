//! Staged cases for `why`, 25 in virtual time: each says the state, the stage and whom to blame. Twenty more are in `tests/interop/blame.py`, with real disks.
//! And a hundred servers without contention, of which none is accused of anything.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use headworks_control::answers;
use headworks_core::prng::Prng;
use headworks_core::writeback::DirtyOptions;
use headworks_core::{DepthMode, DeviceState, Op, QueueOptions, Scheduler, WaitKind};
use serde_json::{Value, json};

use super::recorded::{Disk, FLASH, Load, MS, Recording, US, bulk, flushes, reads, record, writes};
use super::{inventory, shard_query};
use crate::control::service::ControlService;
use crate::control::shards::ShardLink;
use crate::control::tree::Tree;
use crate::control::tree::tests::tree;
use crate::reactor::messages::ControlMessage;
use crate::reactor::shared::ServerShared;
use crate::spec::RemoteLink;

/// A shard with a recording, or one without clients.
fn shard(mails: Receiver<ControlMessage>, recording: Option<Recording>) {
    for mail in mails {
        let ControlMessage::Query(query) = mail else { continue };
        let left = match &recording {
            Some(recording) => recording.answer(query),
            None => Some(query),
        };
        left.into_iter().for_each(shard_query);
    }
}

/// A server that has recorded something.
struct Recorded {
    service: Option<ControlService>,
    shards: Vec<std::thread::JoinHandle<()>>,
}

impl Recorded {
    fn new(recording: Recording, tree: Tree) -> Self {
        let (boxes, mails): (Vec<_>, Vec<_>) = (0..2).map(|_| channel()).unzip();
        let recordings = [Some(recording), None];
        let shards = mails.into_iter().zip(recordings);
        let shards =
            shards.map(|(mails, recording)| std::thread::spawn(|| shard(mails, recording)));
        let shards = shards.collect();
        let link = ShardLink::new(Arc::new(ServerShared::new(boxes, 3, Box::new(|| ()))), 2);
        let service = ControlService::new(link, tree, DirtyOptions::default(), inventory());
        Self { service: Some(service), shards }
    }

    fn call(&self, method: &str, params: Value) -> Value {
        let service = self.service.as_ref().unwrap();
        service.call(method, params.as_object().unwrap()).unwrap()
    }

    /// What is said of the requests of an operation, or of all; of an export, or of the worst.
    fn why(&self, export: Option<&str>, op: Option<&str>) -> answers::Why {
        let given = [("export", export), ("op", op)].into_iter();
        let params = given.filter_map(|(key, value)| Some((key.to_owned(), json!(value?))));
        serde_json::from_value(self.call("why", Value::Object(params.collect()))).unwrap()
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        drop(self.service.take());
        self.shards.drain(..).for_each(|shard| shard.join().unwrap());
    }
}

/// A server, its loads, and what `why db` must say.
struct Case {
    name: &'static str,
    queue: QueueOptions,
    disk: Disk,
    loads: Vec<Load>,
    op: Option<&'static str>,
    device_state: DeviceState,
    is_remote: bool,
    /// State, stage of the hint, the export to blame; an empty stage is no hint.
    wanted: (&'static str, &'static str, Option<&'static str>),
    /// What the sentence, the hint and the notes say.
    says: &'static str,
}

impl Case {
    fn new(
        name: &'static str,
        loads: impl Into<Vec<Load>>,
        wanted: (&'static str, &'static str, Option<&'static str>),
    ) -> Self {
        Self {
            name,
            queue: QueueOptions::default(),
            disk: FLASH,
            loads: loads.into(),
            op: None,
            device_state: DeviceState::Live,
            is_remote: false,
            wanted,
            says: "",
        }
    }

    fn queue(self, change: impl FnOnce(&mut QueueOptions)) -> Self {
        let mut queue = self.queue;
        change(&mut queue);
        Self { queue, ..self }
    }

    fn disk(self, change: impl FnOnce(&mut Disk)) -> Self {
        let mut disk = self.disk;
        change(&mut disk);
        Self { disk, ..self }
    }

    fn op(self, op: &'static str) -> Self {
        Self { op: Some(op), ..self }
    }

    fn says(self, says: &'static str) -> Self {
        Self { says, ..self }
    }

    /// What `why` says instead, if it is something else.
    fn wrong(&self) -> Option<String> {
        let disks = [self.disk, FLASH];
        let queues = [self.queue, QueueOptions::default()];
        let mut recording = record(queues, disks, &self.loads, (3, 1));
        recording.states[0] = self.device_state;
        let mut tree = tree();
        if self.is_remote {
            let uri = "nbd://store/db".to_owned();
            let (status, export) = Default::default();
            tree.devices[0].remote = Some(RemoteLink { uri, status, export });
        }
        let server = Recorded::new(recording, tree);
        let limited = |load: &Load| load.wait.is_some_and(|(wait, _)| wait == WaitKind::Limit);
        if self.loads.iter().any(limited) {
            for export in ["db", "logs"] {
                let path = format!("exports/{export}/iops-total");
                server.call("set", json!({ "path": path, "value": "100" }));
            }
        }
        let told = server.why(Some("db"), self.op);
        let hint = told.hints.first().map_or("", |hint| hint.split(':').next().unwrap_or_default());
        let guilty = told.by_whom.as_ref().and_then(|blame| blame.guilty.as_deref());
        let found = (&*told.state, hint, guilty);
        let text =
            [vec![told.sentence.clone()], told.notes, told.hints.clone()].concat().join("\n");
        let (state, stages, blamed) = self.wanted;
        let is_right = found.0 == state
            && stages.split('|').any(|stage| stage == found.1)
            && found.2 == blamed
            && text.contains(self.says)
            && told.slow == (state == "slow");
        (!is_right).then(|| {
            format!(
                "{}: {found:?}, wanted {:?} and `{}`\n{text}",
                self.name, self.wanted, self.says
            )
        })
    }
}

/// A load of which each request waits before the shard.
fn waiting(load: Load, wait: WaitKind, ns: u64) -> Load {
    Load { wait: Some((wait, ns)), ..load }
}

/// A load that has bytes dirty and in buffers.
fn holding(load: Load, dirty: u64, buffers: u64) -> Load {
    Load { holds: [dirty, buffers], ..load }
}

const LOGS: Option<&str> = Some("logs");
/// A device that works on one command at a time.
fn one_head(disk: &mut Disk) {
    (disk.at_once, disk.times_ns) = (1, [2 * MS, 2 * MS, 4 * MS]);
}

fn cases() -> Vec<Case> {
    let limit = WaitKind::Limit;
    let fixed = |queue: &mut QueueOptions| queue.hw_depth = DepthMode::Fixed;
    vec![
        // Limits are not slowness, whatever goes on beside them.
        Case::new("own limit", [waiting(reads(0, 4), limit, 40 * MS)], ("limited", "limit", None))
            .says("exports/db/iops-total 200` doubles it"),
        Case::new(
            "own limit, a busy neighbour",
            [waiting(reads(0, 4), limit, 400 * MS), bulk(1, 8)],
            ("limited", "limit", None),
        )
        .says("limited, not slow"),
        Case::new(
            "own limit, a slow device",
            [waiting(reads(0, 2), limit, 150 * MS)],
            ("limited", "limit", None),
        )
        .disk(|disk| disk.times_ns[0] = 30 * MS),
        Case::new(
            "a small limit, and a slower neighbour",
            [waiting(reads(0, 4), limit, 2 * MS), bulk(1, 32)],
            ("slow", "device|tag", LOGS),
        )
        .disk(|disk| disk.at_once = 1),
        Case::new(
            "the neighbour is limited, the device is not busy",
            [reads(0, 2), waiting(reads(1, 2), limit, 100 * MS)],
            ("quiet", "", None),
        ),
        // Flushes, of which the writes beside them say nothing.
        Case::new("slow flushes", [writes(0, 2), flushes(0, 2)], ("slow", "device", None))
            .disk(|disk| disk.times_ns[2] = 50 * MS)
            .op("flush"),
        Case::new(
            "slow flushes, and quick writes",
            [Load { think_ns: MS, ..writes(0, 1) }, Load { think_ns: 100 * MS, ..flushes(0, 1) }],
            ("quiet", "", None),
        )
        .disk(|disk| disk.times_ns[2] = 50 * MS)
        .op("write"),
        Case::new(
            "flushes behind the bulk of a neighbour",
            [writes(0, 1), flushes(0, 1), bulk(1, 16)],
            ("slow", "device|tag", LOGS),
        )
        .disk(one_head)
        .op("flush"),
        Case::new(
            "limited writes, slow flushes",
            [waiting(writes(0, 4), limit, 20 * MS), flushes(0, 4)],
            ("slow", "device", None),
        )
        .disk(|disk| disk.times_ns[2] = 60 * MS)
        .op("flush"),
        Case::new(
            "slow flushes, limited writes",
            [waiting(writes(0, 4), limit, 20 * MS), flushes(0, 1)],
            ("limited", "limit", None),
        )
        .disk(|disk| disk.times_ns[2] = 60 * MS)
        .op("write"),
        // Devices that are slow, fail or hang.
        Case::new("a slow device, one request at a time", [reads(0, 1)], ("slow", "device", None))
            .disk(|disk| disk.times_ns[0] = 30 * MS)
            .says("for one request at a time"),
        Case::new("a device that takes 5 ms for each", [reads(0, 8)], ("quiet", "", None))
            .disk(|disk| disk.times_ns[0] = 5 * MS)
            .says("nothing is slow"),
        Case::new(
            "a device that hung for a second",
            [reads(0, 2), reads(1, 1)],
            ("slow", "device", None),
        )
        .disk(|disk| disk.pause = (1_000 * MS, 2_000 * MS)),
        Case {
            device_state: DeviceState::Stuck,
            ..Case::new("a device that hangs", [reads(0, 2)], ("stuck", "", None))
        }
        .says("does not answer"),
        Case::new(
            "a device that fails at once",
            [Load { think_ns: MS, ..reads(0, 2) }],
            ("quiet", "", None),
        )
        .disk(|disk| disk.fails = true),
        Case::new(
            "a device that fails late, beside a neighbour",
            [reads(0, 1), reads(1, 1)],
            ("slow", "device", None),
        )
        .disk(|disk| (disk.fails, disk.times_ns[0]) = (true, 120 * MS)),
        Case {
            is_remote: true,
            ..Case::new("a slow remote", [reads(0, 4)], ("slow", "device", None))
        }
        .disk(|disk| disk.times_ns[0] = 40 * MS)
        .says("the server behind device hw0"),
        Case {
            is_remote: true,
            ..Case::new(
                "a remote that did not answer for a second",
                [reads(0, 1)],
                ("slow", "device", None),
            )
        }
        .disk(|disk| disk.pause = (500 * MS, 1_500 * MS))
        .says("its server, or the network to it"),
        // What is used up before the device.
        Case::new(
            "few tags, two neighbours",
            [reads(0, 2), bulk(1, 16), bulk(2, 16)],
            ("slow", "tag|device", LOGS),
        )
        .queue(|queue| queue.nr_requests = 2)
        .disk(one_head),
        Case::new(
            "hw_inflight_kb, a neighbour",
            [reads(0, 2), bulk(1, 16)],
            ("slow", "tag|device", LOGS),
        )
        .queue(|queue| queue.hw_inflight_kb = 512)
        .disk(one_head)
        .disk(|disk| disk.kib_ns = 5 * US),
        Case::new("own requests beyond queue_depth", [reads(0, 32)], ("slow", "tag", None))
            .queue(fixed)
            .queue(|queue| queue.queue_depth = 2)
            .disk(|disk| (disk.at_once, disk.times_ns[0]) = (2, MS))
            .says("queue_depth"),
        Case::new(
            "own requests beyond the measured depth",
            [reads(0, 64)],
            ("slow", "tag|device", None),
        )
        .disk(one_head),
        Case::new(
            "the elevator, a neighbour",
            [reads(0, 2), bulk(1, 16)],
            ("slow", "sched|device|tag", LOGS),
        )
        .queue(|queue| (queue.scheduler, queue.queue_depth) = (Scheduler::MqDeadline, 2))
        .disk(one_head),
        // What is used up before that.
        Case::new(
            "dirty data of a neighbour, a slow device",
            [waiting(writes(0, 2), WaitKind::Dirty, 80 * MS), holding(writes(1, 8), 64 << 20, 0)],
            ("slow", "dirty", LOGS),
        )
        .disk(one_head),
        Case::new(
            "buffers of a neighbour",
            [waiting(reads(0, 4), WaitKind::Buffer, 30 * MS), holding(bulk(1, 8), 0, 48 << 20)],
            ("slow", "buffer", LOGS),
        ),
    ]
}

#[test]
fn staged_cases_name_state_stage_and_holder() {
    let all = cases();
    let wrong: Vec<String> = all.iter().filter_map(Case::wrong).collect();
    assert!(wrong.is_empty(), "{} of {} are wrong\n{}", wrong.len(), all.len(), wrong.join("\n\n"));
}

/// A disk of some kind, and loads that it serves without a queue; some disks pause once for a moment.
fn without_contention(seed: u64) -> (Disk, Vec<Load>) {
    let mut prng = Prng::new(seed);
    let (at_once, ns) = match seed % 4 {
        0 => (32, 20 * US + prng.below(200) * US),
        1 => (16, 60 * US + prng.below(1000) * US),
        2 => (1, 2 * MS + prng.below(4) * MS),
        _ => (8, 500 * US + prng.below(4000) * US),
    };
    let flush = ns * (1 + prng.below(3));
    let mut disk = Disk { at_once, times_ns: [ns, ns, flush], kib_ns: 0, jitter: 60, ..FLASH };
    let mut loads = Vec::new();
    let mut left = at_once as u32;
    for export in 0..2 {
        for op in [Op::Read, Op::Write, Op::Flush] {
            let depth = (1 + prng.below(4) as u32).min(left);
            left -= depth;
            let think_ns = prng.below(20) * MS;
            loads.extend((depth > 0).then_some(Load { op, think_ns, ..reads(export, depth) }));
        }
    }
    if loads.iter().map(|load| load.depth).sum::<u32>() < 5 {
        disk.pause = (700 * MS, 700 * MS + prng.below(60) * MS);
    }
    (disk, loads)
}

#[test]
fn hundred_servers_without_contention_are_not_accused() {
    let mut accused = Vec::new();
    for seed in 0..100 {
        let (disk, loads) = without_contention(seed);
        let recording = record(Default::default(), [disk, FLASH], &loads, (2, seed));
        let server = Recorded::new(recording, tree());
        for op in [None, Some("flush")] {
            let told = server.why(None, op);
            if told.slow
                || told.state == "limited"
                || !told.hints.is_empty()
                || told.by_whom.is_some()
            {
                accused.push(format!(
                    "seed {seed}, {op:?}: {}\n{:?} {:?}",
                    told.sentence, told.notes, told.hints
                ));
            }
        }
    }
    assert!(accused.is_empty(), "{} of 100:\n{}", accused.len(), accused.join("\n"));
}
