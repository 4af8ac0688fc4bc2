//! A test bench: one shard, whose inputs and actions are short words, and a device that the test completes by hand.
//!
//! ```text
//!   bios      R0+4k  W64k+4k!fua  F  D0+1m  Z0+1m!fast  v1:R0+4k     numbered from 1 in the order of submission
//!   commands  the same words; numbered from 0 in the order in which they were sent; zeros as data are 0W
//!   replies   1:ok  2:medium  3:timeout/early  3:released  4:ok/hole
//!   flags     fua nomerge sync hole fast nounmap, and on bios a priority: rt, be,7, idle
//! ```
//!
//! `sent`, `replies` and `notices` return what was added since they were last called. One call of `bios` is one batch.

use headworks_core::writeback::DirtyOptions;
use headworks_core::{
    Action, Bio, BioFlags, BioId, CacheOptions, Completion, Control, DeviceConfig, DeviceId,
    ExportConfig, Input, Instant, IoError, Ioprio, Message, Notice, Op, QueueOptions, ReplyStage,
    RequestId, Segment, Shard, ShardConfig, ShardId, Status, Submit, VolumeConfig, VolumeId,
    VolumeOptions, WaitTimes,
};

/// The failure that most devices report.
pub const EIO: Status = Err(IoError::Medium);
/// A refusal by the device.
pub const BUSY: Status = Err(IoError::Busy);
pub const NOT_FLUSHED: Status = Err(IoError::NotFlushed);

/// A command that the shard sent.
#[derive(Clone, Debug)]
pub struct Command {
    pub submit: Submit,
    pub segments: Vec<Segment>,
}

/// A shard, its clock, and its actions so far.
pub struct Bench {
    pub shard: Shard,
    pub now: u64,
    pub timer: Option<u64>,
    pub outbox: Vec<(ShardId, Message)>,
    commands: Vec<Command>,
    shown: usize,
    replies: Vec<String>,
    /// The wait times of each reply.
    pub wait_times: Vec<WaitTimes>,
    notices: Vec<String>,
    sequence: u64,
}

impl Bench {
    /// Creates a bench with one device and one volume of 1 GiB in blocks of 512; `change` changes the queue options.
    pub fn new(change: impl FnOnce(&mut QueueOptions)) -> Self {
        Self::with(|config| change(&mut config.devices[0].queue))
    }

    /// Creates a bench with one device and one volume; `change` changes the configuration.
    pub fn with(change: impl FnOnce(&mut ShardConfig)) -> Self {
        let mut config = ShardConfig::single(QueueOptions::default(), disk(), 1024);
        change(&mut config);
        Self::of(config)
    }

    pub fn of(config: ShardConfig) -> Self {
        Self {
            shard: Shard::new(config).expect("the test's configuration is valid"),
            now: 1_000_000,
            timer: None,
            outbox: Vec::new(),
            commands: Vec::new(),
            shown: 0,
            replies: Vec::new(),
            wait_times: Vec::new(),
            notices: Vec::new(),
            sequence: 0,
        }
    }

    /// Runs one batch of inputs.
    pub fn turn(&mut self, inputs: &[Input]) {
        self.shard.handle(Instant(self.now), inputs);
        let actions = self.shard.actions();
        for action in &actions.list {
            match *action {
                Action::Submit(submit) => self
                    .commands
                    .push(Command { submit, segments: actions.segments_of(&submit).to_vec() }),
                Action::Reply { id, status, hole, stage, wait_times } => {
                    self.replies.push(reply_word(id, status, hole, stage));
                    self.wait_times.push(wait_times);
                }
                Action::Send { to, message } => self.outbox.push((to, message)),
                Action::Timer { at } => self.timer = Some(at.0),
                Action::Notice(notice) => self.notices.push(notice_word(notice)),
                Action::Data { .. }
                | Action::Copy { .. }
                | Action::Zero { .. }
                | Action::Move { .. }
                | Action::ReplyFrames { .. }
                | Action::NeedsBuffer { .. }
                | Action::SetDirty { .. }
                | Action::Prepare { .. }
                | Action::Release { .. } => {}
            }
        }
        self.shard.clear_actions();
    }

    /// Submits one batch of bios.
    pub fn bios(&mut self, words: &str) {
        let inputs: Vec<Input> = words.split_whitespace().map(|w| self.bio(w)).collect();
        self.turn(&inputs);
    }

    /// Submits each bio in a batch of its own.
    pub fn each(&mut self, words: &str) {
        words.split_whitespace().for_each(|word| self.bios(word));
    }

    /// Returns the next bio as an input.
    pub fn bio(&mut self, word: &str) -> Input {
        self.sequence += 1;
        Input::Bio(bio_of(word, self.sequence))
    }

    /// Completes command `n`, all of it transferred.
    pub fn done(&mut self, n: usize) {
        let input = self.answer(n, Ok(()), self.commands[n].submit.len);
        self.turn(&[input]);
    }

    /// Completes these commands in one batch, all of them transferred.
    pub fn all_done(&mut self, which: impl IntoIterator<Item = usize>) {
        let inputs: Vec<Input> = which
            .into_iter()
            .map(|n| self.answer(n, Ok(()), self.commands[n].submit.len))
            .collect();
        self.turn(&inputs);
    }

    /// Completes command `n` with `bytes` transferred.
    pub fn moved(&mut self, n: usize, bytes: u32) {
        let input = self.answer(n, Ok(()), bytes);
        self.turn(&[input]);
    }

    /// Fails command `n`.
    pub fn failed(&mut self, n: usize, status: Status) {
        let input = self.answer(n, status, 0);
        self.turn(&[input]);
    }

    /// Completes command `n` with `bytes` of zeros that were not written to the buffer.
    pub fn hole(&mut self, n: usize, bytes: u32) {
        let Input::Complete { device, mut completion } = self.answer(n, Ok(()), bytes) else {
            unreachable!()
        };
        completion.hole = true;
        self.turn(&[Input::Complete { device, completion }]);
    }

    /// Returns the completion of command `n` as an input.
    pub fn answer(&self, n: usize, status: Status, transferred: u32) -> Input {
        let submit = &self.commands[n].submit;
        complete(submit.device, submit.id, status, transferred)
    }

    /// Completes all commands from `n` on, and those that follow, in the order of sending.
    pub fn finish_from(&mut self, mut n: usize) {
        while n < self.commands.len() {
            self.done(n);
            n += 1;
        }
    }

    pub fn control(&mut self, control: Control) {
        self.turn(&[Input::Control(control)]);
    }

    /// Advances the time; timers fire when they are due.
    pub fn pass(&mut self, ns: u64) {
        let end = self.now + ns;
        let mut timers_left = 10_000;
        while let Some(at) = self.timer.filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.timer = None;
            self.turn(&[Input::Timer]);
            timers_left -= 1;
            assert!(timers_left > 0, "a timer is set without end");
        }
        self.now = end;
    }

    /// Returns the commands that were sent since the last call.
    pub fn sent(&mut self) -> String {
        let words: Vec<String> = self.commands[self.shown..].iter().map(command_word).collect();
        self.shown = self.commands.len();
        words.join(" ")
    }

    /// Returns the number of commands that were sent since the last call.
    pub fn sent_count(&mut self) -> usize {
        let count = self.commands.len() - self.shown;
        self.shown = self.commands.len();
        count
    }

    pub fn command(&self, n: usize) -> &Command {
        &self.commands[n]
    }

    pub fn commands(&self) -> usize {
        self.commands.len()
    }

    /// Returns the memory of command `n`: `1:0+4k 2:0+4k` for 4 KiB of bio 1, then of bio 2.
    pub fn segments(&self, n: usize) -> String {
        let words: Vec<String> = self.commands[n]
            .segments
            .iter()
            .map(|s| {
                let (offset, len) = (size(s.offset.into()), size(s.len.into()));
                format!("{}:{offset}+{len}", s.bio.sequence)
            })
            .collect();
        words.join(" ")
    }

    /// Returns the replies since the last call.
    pub fn replies(&mut self) -> String {
        std::mem::take(&mut self.replies).join(" ")
    }

    /// Returns the notices since the last call.
    pub fn notices(&mut self) -> String {
        std::mem::take(&mut self.notices).join(" ")
    }

    /// Returns the free tags of device 0.
    pub fn tags_free(&self) -> u32 {
        self.shard.tags_free(DeviceId(0)).expect("device 0 is this shard's")
    }

    /// Checks that every bio was answered and every tag is free.
    pub fn assert_quiet(&self) {
        assert!(self.shard.is_quiet(), "a request is outstanding, or a tag is lost");
    }
}

/// Several shards; device 0 belongs to shard 0, volume `n` lives on shard `n`.
pub struct Shards {
    pub at: Vec<Bench>,
}

impl Shards {
    pub fn new(count: u16, change: impl FnOnce(&mut QueueOptions)) -> Self {
        Self::with_exports(count, 0, change)
    }

    /// The same with exports of equal weight.
    pub fn with_exports(
        count: u16,
        exports: usize,
        change: impl FnOnce(&mut QueueOptions),
    ) -> Self {
        let mut queue = QueueOptions::default();
        change(&mut queue);
        let config = |id| ShardConfig {
            id: ShardId(id),
            shards: count,
            bios_max: 256,
            devices: vec![DeviceConfig { owner: ShardId(0), queue }],
            volumes: (0..count)
                .map(|home| VolumeConfig {
                    home: ShardId(home),
                    device: DeviceId(0),
                    options: disk(),
                })
                .collect(),
            exports: vec![ExportConfig::default(); exports],
            tenants: Vec::new(),
            cache: CacheOptions::default(),
            dirty: DirtyOptions::default(),
            spare: headworks_core::SpareSlots::default(),
        };
        Self { at: (0..count).map(|id| Bench::of(config(id))).collect() }
    }

    /// Delivers the messages that wait now, those of each pair of shards as one batch; returns `1>0 want2, 0>1 grant2`.
    pub fn deliver_once(&mut self) -> String {
        let count = self.at.len();
        let mut words = Vec::new();
        let boxes: Vec<_> = self.at.iter_mut().map(|b| std::mem::take(&mut b.outbox)).collect();
        for (from, outbox) in boxes.into_iter().enumerate() {
            for to in 0..count {
                let inputs: Vec<Input> = outbox
                    .iter()
                    .filter(|(shard, _)| usize::from(shard.0) == to)
                    .map(|&(_, message)| Input::Message { from: ShardId(from as u16), message })
                    .collect();
                words.extend(inputs.iter().map(|input| message_word(from, to, input)));
                if !inputs.is_empty() {
                    self.at[to].turn(&inputs);
                }
            }
        }
        words.join(", ")
    }

    /// Delivers messages until none is left.
    pub fn deliver(&mut self) -> String {
        let mut words = Vec::new();
        for _ in 0..1000 {
            let round = self.deliver_once();
            if round.is_empty() {
                return words.join(", ");
            }
            words.push(round);
        }
        panic!("the shards send messages without end: {}", words[990..].join(", "))
    }

    /// Advances the time of all shards.
    pub fn pass(&mut self, ns: u64) {
        self.at.iter_mut().for_each(|bench| bench.pass(ns));
    }
}

fn disk() -> VolumeOptions {
    VolumeOptions { size: 1 << 30, block_size: 512, ..VolumeOptions::default() }
}

/// Returns a completion with any contents, true or not.
pub fn complete(device: DeviceId, id: RequestId, status: Status, transferred: u32) -> Input {
    let completion = Completion { id, transferred, status, hole: false };
    Input::Complete { device, completion }
}

const FLAGS: [(&str, BioFlags); 6] = [
    ("fua", BioFlags::FUA),
    ("nomerge", BioFlags::NOMERGE),
    ("sync", BioFlags::SYNC),
    ("hole", BioFlags::HOLE_OK),
    ("fast", BioFlags::FAST_ZERO),
    ("nounmap", BioFlags::NO_UNMAP),
];

const OPS: [(&str, Op); 5] = [
    ("R", Op::Read),
    ("W", Op::Write),
    ("F", Op::Flush),
    ("D", Op::Discard),
    ("Z", Op::WriteZeroes),
];

fn bio_of(word: &str, sequence: u64) -> Bio {
    let (volume, rest) = match word.strip_prefix('v') {
        Some(rest) => rest.split_once(':').expect("v1:R0+4k"),
        None => ("0", word),
    };
    let mut parts = rest.split('!');
    let body = parts.next().expect("a word");
    let (op, range) = body.split_at(1);
    let (offset, len) = range.split_once('+').unwrap_or(("0", "0"));
    let mut ioprio = Ioprio::default();
    let mut find_flag = |name| match Ioprio::parse(name) {
        Some(known) => {
            ioprio = known;
            BioFlags::NONE
        }
        None => FLAGS.iter().find(|flag| flag.0 == name).expect(name).1,
    };
    let flags = parts.map(&mut find_flag).fold(BioFlags::NONE, BioFlags::with);
    Bio {
        id: BioId { volume: VolumeId(volume.parse().expect(word)), sequence, ..BioId::default() },
        offset: bytes(offset),
        len: bytes(len) as u32,
        op: OPS.iter().find(|known| known.0 == op).expect(word).1,
        flags,
        ioprio,
    }
}

fn bytes(text: &str) -> u64 {
    let shift = match text.bytes().last() {
        Some(b'k') => 10,
        Some(b'm') => 20,
        Some(b'g') => 30,
        _ => 0,
    };
    let digits = text.trim_end_matches(['k', 'm', 'g']);
    digits.parse::<u64>().expect(text) << shift
}

fn size(bytes: u64) -> String {
    match bytes {
        0 => "0".into(),
        b if b % (1 << 20) == 0 => format!("{}m", b >> 20),
        b if b % (1 << 10) == 0 => format!("{}k", b >> 10),
        b => b.to_string(),
    }
}

fn command_word(command: &Command) -> String {
    let submit = &command.submit;
    let mut word = String::new();
    if submit.device.0 > 0 || submit.volume.0 > 0 {
        word += &format!("v{}:", submit.volume.0);
    }
    if submit.op == Op::Write && submit.segments == 0 {
        word += "0";
    }
    word += OPS[submit.op as usize].0;
    if submit.op != Op::Flush {
        word += &format!("{}+{}", size(submit.offset), size(submit.len.into()));
    }
    for (name, flag) in FLAGS {
        if submit.flags.contains(flag) {
            word += &format!("!{name}");
        }
    }
    word
}

pub fn error_word(status: Status) -> &'static str {
    match status {
        Ok(()) => "ok",
        Err(IoError::Medium) => "medium",
        Err(IoError::NoSpace) => "nospace",
        Err(IoError::TimedOut) => "timeout",
        Err(IoError::Invalid) => "invalid",
        Err(IoError::ReadOnly) => "readonly",
        Err(IoError::Unsupported) => "unsupported",
        Err(IoError::NoMemory) => "nomemory",
        Err(IoError::Busy) => "busy",
        Err(IoError::ShutDown) => "shutdown",
        Err(IoError::NotFlushed) => "notflushed",
    }
}

fn reply_word(id: BioId, status: Status, hole: bool, stage: ReplyStage) -> String {
    let hole = if hole { "/hole" } else { "" };
    match stage {
        ReplyStage::Final => format!("{}:{}{hole}", id.sequence, error_word(status)),
        ReplyStage::Early => format!("{}:{}/early", id.sequence, error_word(status)),
        ReplyStage::Released => format!("{}:released", id.sequence),
    }
}

fn notice_word(notice: Notice) -> String {
    match notice {
        Notice::Set { token, status } => match status {
            Ok(()) => format!("set{token}:ok"),
            Err(_) => format!("set{token}:{}", error_word(status)),
        },
        Notice::Suspect { status, .. } => format!("suspect:{}", error_word(status)),
        Notice::TimedOut { op, offset, len, .. } => {
            let (op, offset, len) = (OPS[op as usize].0, size(offset), size(len.into()));
            format!("timedout:{op}{offset}+{len}")
        }
        Notice::DeviceState { state, .. } => state.name().into(),
        Notice::UnknownCompletion { .. } => "unknown".into(),
        Notice::ShortRead { offset, .. } => format!("shortread:{}", size(offset)),
    }
}

fn message_word(from: usize, to: usize, input: &Input) -> String {
    let Input::Message { message, .. } = input else { unreachable!() };
    let word = match message {
        Message::Bio { tags, .. } => format!("bio{tags}"),
        Message::Done { status, stage, .. } => match stage {
            ReplyStage::Final => error_word(*status).into(),
            ReplyStage::Early => "early".into(),
            ReplyStage::Released => "released".into(),
        },
        Message::TagWant { want, .. } => format!("want{want}"),
        Message::TagGrant { count, .. } => format!("grant{count}"),
        Message::Limits { .. } => "limits".into(),
        Message::DeviceState {
            state: headworks_core::DeviceState::Live,
            unresponsive: true,
            ..
        } => "unresponsive".into(),
        Message::DeviceState { state, .. } => state.name().into(),
        Message::Caching { .. } => "caching".into(),
        Message::TagRevoke { .. } => "revoke".into(),
        Message::TagReturn { count, .. } => format!("return{count}"),
    };
    format!("{from}>{to} {word}")
}
