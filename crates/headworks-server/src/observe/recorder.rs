//! Record of a shard's inputs, and its replay.
//!
//! ```text
//!   "headworks-record 1\n"  configuration lines  "\n"          text
//!   [now, inputs] [input: 6 words] ...                          little-endian u64, per batch
//!   [u64::MAX - 1, length, now] line                            a change, between two batches
//!   [u64::MAX, hash of all actions]                             at a clean end
//! ```
//!
//! Written through a buffer, so few turns make a system call. A full disk ends the record, not the server; the end of
//! the record says so.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;
use std::string::FromUtf8Error;

use headworks_core::elevator::SlotTrace;
use headworks_core::record::{InputWords, RunHash, decode, encode};
use headworks_core::{Actions, Change, ConfigError, DeviceId, Input, Instant, Shard, ShardConfig};

const MAGIC: &str = "headworks-record 1\n";
/// Marks the end, in place of a batch's time.
const END: u64 = u64::MAX;
/// Marks a change, in place of a batch's time.
const CHANGE: u64 = u64::MAX - 1;
/// Longest line of a change; a longer one means a damaged record.
const LINE_MAX: u64 = 4096;
/// Most inputs of one batch; more mean a damaged record.
const BATCH_MAX: u64 = 1 << 20;

/// Writes the record of one shard.
pub struct Recorder {
    file: BufWriter<File>,
    hash: RunHash,
    broken: Option<io::Error>,
}

impl Recorder {
    /// Creates the record of a shard with this configuration.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn create(path: &Path, config: &ShardConfig) -> io::Result<Self> {
        let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        writeln!(file, "{MAGIC}{}", config.to_lines())?;
        Ok(Self { file, hash: RunHash::default(), broken: None })
    }

    /// Records one batch and its actions.
    pub fn note(&mut self, now: Instant, inputs: &[Input], actions: &Actions) {
        self.hash.add_actions(actions);
        if self.broken.is_none()
            && let Err(error) = self.write(now, inputs)
        {
            self.broken = Some(error);
        }
    }

    /// Records a change, whether the shard accepts it or not.
    pub fn note_change(&mut self, now: Instant, change: &Change) {
        if self.broken.is_none()
            && let Err(error) = self.write_change(now, change)
        {
            self.broken = Some(error);
        }
    }

    fn write_change(&mut self, now: Instant, change: &Change) -> io::Result<()> {
        let line = change.to_line();
        put_words(&mut self.file, &[CHANGE, line.len() as u64, now.0])?;
        self.file.write_all(line.as_bytes())
    }

    fn write(&mut self, now: Instant, inputs: &[Input]) -> io::Result<()> {
        put_words(&mut self.file, &[now.0, inputs.len() as u64])?;
        inputs.iter().try_for_each(|input| put_words(&mut self.file, &encode(input)))
    }

    /// Ends the record; returns the hash of all actions.
    ///
    /// # Errors
    /// A part of the record could not be written.
    pub fn finish(&mut self) -> io::Result<u64> {
        if let Some(error) = self.broken.take() {
            return Err(error);
        }
        put_words(&mut self.file, &[END, self.hash.0])?;
        self.file.flush()?;
        Ok(self.hash.0)
    }
}

fn put_words(file: &mut impl Write, words: &[u64]) -> io::Result<()> {
    words.iter().try_for_each(|word| file.write_all(&word.to_le_bytes()))
}

/// Result of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Batches in the record.
    pub batches: u64,
    /// Inputs in the record.
    pub inputs: u64,
    /// Hash of the actions of the replay.
    pub hash: u64,
    /// Hash in the record; none if the server did not end cleanly.
    pub recorded: Option<u64>,
}

/// Replays a record on a new shard.
///
/// # Errors
/// The record cannot be read, or is damaged.
pub fn replay_recording(path: &Path) -> Result<Replayed, ConfigError> {
    replay(path, &mut |_, _| {})
}

/// Replays a record on a new shard and passes what its elevators did with their slots to `each`: device, events, and the number of
/// events that were dropped because one batch had too many.
///
/// # Errors
/// As [`replay_recording`].
pub fn replay_slots(
    path: &Path,
    mut each: impl FnMut(DeviceId, &[SlotTrace], u64),
) -> Result<Replayed, ConfigError> {
    replay(path, &mut |shard, step| match step {
        // Elevators of devices that are added are traced, too.
        Step::Begin | Step::Change => shard.trace_slots(true),
        Step::Batch(..) => shard.take_slot_traces(&mut each),
    })
}

/// A step of a replay that has been made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step<'a> {
    /// The shard was made.
    Begin,
    /// A change was applied.
    Change,
    /// A batch was handled at this time: its actions are the shard's.
    Batch(Instant, &'a [Input]),
}

/// Replays a record on a new shard; `after` is called after each step.
pub(crate) fn replay(
    path: &Path,
    after: &mut dyn FnMut(&mut Shard, Step<'_>),
) -> Result<Replayed, ConfigError> {
    let damaged = |what: &str| ConfigError::new("record", format!("{}: {what}", path.display()));
    let file = File::open(path).map_err(|error| damaged(&error.to_string()))?;
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let head = read_head(&mut reader).ok_or_else(|| damaged("not a record of headworks"))?;
    let mut shard = Shard::new(ShardConfig::from_lines(&head)?)?;
    after(&mut shard, Step::Begin);
    let (mut hash, mut inputs) = (RunHash::default(), Vec::new());
    let mut replayed = Replayed { batches: 0, inputs: 0, hash: 0, recorded: None };
    while let Some([now, count]) = read_words(&mut reader) {
        if now == END {
            replayed.recorded = Some(count);
            break;
        }
        if now == CHANGE {
            if count > LINE_MAX {
                return Err(damaged("a change is too long"));
            }
            let Some((now, line)) = read_change(&mut reader, count) else {
                break;
            };
            let change = line.ok().and_then(|line| Change::from_line(&line).ok());
            let change = change.ok_or_else(|| damaged("a change is malformed"))?;
            // A change that was refused is refused again.
            let _ = shard.change(now, &change);
            after(&mut shard, Step::Change);
            continue;
        }
        if count > BATCH_MAX {
            return Err(damaged("a batch is too long"));
        }
        inputs.clear();
        for _ in 0..count {
            // A truncated record ends with its last complete batch.
            let Some(words) = read_words(&mut reader) else {
                break;
            };
            let input =
                decode(&words as &InputWords).ok_or_else(|| damaged("an input is malformed"))?;
            inputs.push(input);
        }
        if inputs.len() as u64 != count {
            break;
        }
        shard.handle(Instant(now), &inputs);
        hash.add_actions(shard.actions());
        after(&mut shard, Step::Batch(Instant(now), &inputs));
        shard.clear_actions();
        replayed.batches += 1;
        replayed.inputs += count;
    }
    replayed.hash = hash.0;
    Ok(replayed)
}

/// Reads time and line of a change; none if the record is truncated.
fn read_change(
    reader: &mut impl Read,
    len: u64,
) -> Option<(Instant, Result<String, FromUtf8Error>)> {
    let [now] = read_words(reader)?;
    let mut line = vec![0; len as usize];
    reader.read_exact(&mut line).ok()?;
    Some((Instant(now), String::from_utf8(line)))
}

/// Reads the configuration lines, up to the first empty line.
fn read_head(reader: &mut impl Read) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\n\n") && head.len() < 1 << 20 {
        let mut byte = [0];
        reader.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let text = String::from_utf8(head).ok()?;
    Some(text.strip_prefix(MAGIC)?.trim_end().to_owned())
}

fn read_words<const N: usize>(reader: &mut impl Read) -> Option<[u64; N]> {
    let mut words = [0; N];
    for word in &mut words {
        let mut bytes = [0; 8];
        reader.read_exact(&mut bytes).ok()?;
        *word = u64::from_le_bytes(bytes);
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::{
        Bio, BioId, DeviceId, Op, QueueOptions, SpareSlots, VolumeConfig, VolumeId, VolumeOptions,
    };

    fn record(name: &str) -> (std::path::PathBuf, u64) {
        let path =
            std::env::temp_dir().join(format!("headworks-record-{}-{name}", std::process::id()));
        let volume = VolumeOptions { size: 1 << 30, block_size: 512, ..VolumeOptions::default() };
        let config = ShardConfig::single(QueueOptions::default(), volume, 64);
        let mut recorder = Recorder::create(&path, &config).unwrap();
        let mut shard = Shard::new(config).unwrap();
        for turn in 0..50_u64 {
            let bio = |n: u64| Bio {
                offset: (turn * 8 + n) * 512,
                len: 512,
                op: Op::Write,
                ..Bio::default()
            };
            let inputs = [Input::Bio(bio(0)), Input::Bio(bio(1))];
            shard.handle(Instant(turn), &inputs);
            recorder.note(Instant(turn), &inputs, shard.actions());
            shard.clear_actions();
        }
        (path, recorder.finish().unwrap())
    }

    #[test]
    fn replay_makes_same_actions() {
        let (path, hash) = record("same");
        let replayed = replay_recording(&path).unwrap();
        assert_eq!((replayed.batches, replayed.inputs), (50, 100));
        assert_eq!((replayed.hash, replayed.recorded), (hash, Some(hash)));
        std::fs::remove_file(path).unwrap();
    }

    /// A record of a server with bfq tells the slots of its clients; the trace changes no action.
    #[test]
    fn replay_tells_slots_of_connections() {
        use headworks_core::elevator::SlotEvent;
        use headworks_core::{Action, BioFlags, Completion, ExportId, Scheduler};
        let path = std::env::temp_dir().join(format!("headworks-slots-{}", std::process::id()));
        let volume = VolumeOptions { size: 1 << 30, block_size: 512, ..VolumeOptions::default() };
        let queue = QueueOptions { scheduler: Scheduler::Bfq, ..QueueOptions::default() };
        let config = ShardConfig::single(queue, volume, 64);
        let mut recorder = Recorder::create(&path, &config).unwrap();
        let mut shard = Shard::new(config).unwrap();
        let mut inputs = Vec::new();
        for turn in 0..20_u64 {
            for connection in [5, 9] {
                let id = BioId { connection, sequence: turn, ..BioId::default() };
                let (offset, flags) = (turn * 8192 * u64::from(connection), BioFlags::SYNC);
                inputs.push(Input::Bio(Bio { id, offset, len: 4096, flags, ..Bio::default() }));
            }
            let now = Instant(turn * 1000);
            shard.handle(now, &inputs);
            recorder.note(now, &inputs, shard.actions());
            inputs.clear();
            for action in &shard.actions().list {
                if let Action::Submit(submit) = action {
                    let (id, transferred) = (submit.id, submit.len);
                    let completion = Completion { id, transferred, status: Ok(()), hole: false };
                    inputs.push(Input::Complete { device: DeviceId(0), completion });
                }
            }
            shard.clear_actions();
        }
        let hash = recorder.finish().unwrap();
        let mut events = Vec::new();
        let replayed = replay_slots(&path, |device, some, dropped| {
            assert_eq!((device, dropped), (DeviceId(0), 0));
            events.extend_from_slice(some);
        });
        assert_eq!(replayed.unwrap().hash, hash);
        let (mut begun, mut ends, mut dispatched) = (None, 0, 0);
        let mut weights = std::collections::BTreeMap::new();
        for event in &events {
            assert_eq!(event.export, ExportId(0));
            match event.event {
                SlotEvent::Begin { budget, weight } => {
                    assert!(begun.is_none() && budget >= 8, "{event:?}");
                    assert_eq!(weights.get(&event.connection), Some(&weight));
                    begun = event.connection;
                }
                SlotEvent::Dispatch { len, charge, injected, .. } => {
                    assert_eq!((event.connection, len, charge, injected), (begun, 4096, 8, false));
                    dispatched += 1;
                }
                SlotEvent::End { reason, service, charged, .. } => {
                    assert_eq!((event.connection, begun.is_some()), (begun, true));
                    assert!(reason == "no more requests" && service == charged, "{event:?}");
                    (begun, ends) = (None, ends + 1);
                }
                SlotEvent::Raise { reason, weight } => {
                    let first = weights.insert(event.connection, weight).is_none();
                    assert!(!first || (reason, weight) == ("interactive", 1200), "{event:?}");
                }
            }
        }
        assert!((39..=40).contains(&ends), "{ends}");
        assert_eq!((dispatched, weights.len()), (40, 2));
        std::fs::remove_file(path).unwrap();
    }

    /// A device and a volume are added, written and removed; refused changes are recorded, too.
    #[test]
    fn replay_makes_same_changes() {
        let path = std::env::temp_dir().join(format!("headworks-changes-{}", std::process::id()));
        let volume = VolumeOptions { size: 1 << 30, block_size: 512, ..VolumeOptions::default() };
        let mut config = ShardConfig::single(QueueOptions::default(), volume, 64);
        config.spare = SpareSlots { devices: 1, volumes: 1, exports: 1, tags: 256 };
        let device = Change::AddDevice { device: DeviceId(1), config: config.devices[0] };
        let home = VolumeConfig { device: DeviceId(1), ..config.volumes[0] };
        let volume = Change::AddVolume { volume: VolumeId(1), config: home };
        let removal = Change::RemoveVolume { volume: VolumeId(1) };
        let mut recorder = Recorder::create(&path, &config).unwrap();
        let mut shard = Shard::new(config).unwrap();
        let id = BioId { volume: VolumeId(1), ..BioId::default() };
        let bio = Bio { id, len: 512, op: Op::Write, ..Bio::default() };
        for (turn, change) in [None, Some(device), Some(volume), Some(removal)].iter().enumerate() {
            let now = Instant(turn as u64);
            if let Some(change) = change {
                recorder.note_change(now, change);
                assert_eq!(shard.change(now, change).is_err(), turn == 3, "it is written to");
            }
            shard.handle(now, &[Input::Bio(bio)]);
            recorder.note(now, &[Input::Bio(bio)], shard.actions());
            shard.clear_actions();
        }
        let hash = recorder.finish().unwrap();
        let replayed = replay_recording(&path).unwrap();
        assert_eq!((replayed.batches, replayed.hash, replayed.recorded), (4, hash, Some(hash)));

        let bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(8).position(|word| word == CHANGE.to_le_bytes()).unwrap();
        let mut damaged = bytes.clone();
        damaged[at + 24] = b'x';
        std::fs::write(&path, &damaged).unwrap();
        assert!(replay_recording(&path).unwrap_err().message.contains("a change is malformed"));
        damaged[at + 12] = 1;
        std::fs::write(&path, &damaged).unwrap();
        assert!(replay_recording(&path).unwrap_err().message.contains("too long"));
        std::fs::write(&path, &bytes[..at + 30]).unwrap();
        assert_eq!(replay_recording(&path).unwrap().batches, 1, "cut off within a change");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn truncated_record_replays_and_damaged_one_is_refused() {
        let (path, _) = record("cut");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 40]).unwrap();
        let replayed = replay_recording(&path).unwrap();
        assert_eq!((replayed.batches, replayed.recorded), (49, None));
        std::fs::write(&path, b"something else").unwrap();
        assert!(replay_recording(&path).unwrap_err().message.contains("not a record"));
        std::fs::remove_file(path).unwrap();
    }
}
