//! How much a device may have at once: the least that keeps its throughput.
//!
//! A device that has more than it needs works no faster, and each new command waits behind the rest. The control measures what the
//! device completes and tries smaller limits, as a binary search on the throughput; nothing has to wait at the gate for that.
//!
//! ```text
//!            standing queue             reference known           smaller limit, same throughput
//!   Watch -----------------> Reference -----------------> Search -----.
//!     ^ ^                                                  |  ^  ^----'
//!     | `--- nothing gained: no limit for a while ---------'  |
//!     |                             limits are close: Cruise  `--- less throughput: a larger limit
//!     |                                                 |  ^
//!     `------ requests do not wait for the limit -------'  `-- every 0.8 s: Up (twice the limit: faster?), Down (3/4 of it: as fast?)
//! ```
//!
//! - **Measurement.** A mean of samples is believed when its standard error is at most 1.5 %. A smaller limit whose mean stays
//!   uncertain is refused, so a device whose throughput is noise (random access on a disk) keeps its depth. After a pause a drive fills
//!   its buffer, which says nothing of a limit ([`pauses`]).
//! - **Acceptance.** A limit is large enough when [`ENOUGH`] of the throughput of a larger one remains. Doubled limits are kept
//!   while the throughput grows by [`GAIN`]. Of a gain beside small requests what these lose by it is taken off: shares give them the
//!   throughput at the gate, and a limit that no request waits for takes it away.
//! - **Bounds.** A limit is never below two commands, but for a single one, nor below what the device completes in [`QUEUE_NS`]: a queue that short
//!   delays no request. A device that answers within [`FAST_NS`] has no limit.
//! - **Commands are cut** while small synchronous requests are answered among large ones: one command takes a quarter of the
//!   limit, so a small request waits for a part of a large one. Whole and cut commands have ranges of their own.
//! - **A single command.** Some devices work on one command at a time. Where two as long as the search found are enough, one is
//!   tried, and shorter ones, down to [`ENOUGH_SINGLE`] of the throughput: a small request waits for the length of that one.
//! - **Sorted small commands are not limited.** An elevator sorts what was admitted, and a disk gains more from each doubling of
//!   that. No search finds it: a drive's cache shows the effect of the order only after it has written all that it held, 40 s
//!   for 32 MiB of 4 KiB. So the limit is not in use while an elevator sorts for a device that may seek, unless a large request
//!   came of late: a small one would wait for it.
//!
//! Write-out and requests that merge have the length of commands when they come, and behind an open gate all requests have. While
//! commands are cut, and in the measurement that these are compared with, they count as pieces; and a sample of which more than a quarter
//! is in commands from before the length changed says nothing of the present one. Not of a disk with heads: its cache takes commands of
//! any length, and the medium settles with what came long before.
//!
//! A limit that was found for commands of an eighth, and holds less than two of the present ones, is forgotten.
//!
//! A wrong limit heals: a throughput that falls while requests wait for the limit, or grows with a larger limit, raises it.
//!
//! The unit of limits is bytes, and [`COMMAND_COST`] for each command. Invariants: `low <= high` in each range; the limit is at
//! least [`PIECE_MIN`]; a command is never longer than `command_max`; nothing is allocated.

mod heads;
mod notes;
mod pauses;
mod rate;

use crate::time::{Instant, MS, SEC, US};
use heads::Heads;
use notes::{Bound, Cruise, Cuts, Tried};
use pauses::Pauses;
use rate::{Counts, Mean, Sample};

/// Cost of a command beside its bytes. 2 KiB: about what a small command costs the modelled flash disks beyond its bytes.
pub(crate) const COMMAND_COST: u32 = 2048;
/// The limit before anything is known. 16 MiB: 30 ms of a SATA disk, and more than small requests use.
const FIRST_LIMIT: u64 = 16 << 20;
/// Requests up to this size are small. 32 KiB: what interactive clients read and databases write.
pub(crate) const SMALL_MAX: u32 = 32 << 10;
/// The shortest command that is made by cutting. 16 KiB: shorter ones cost a SATA disk throughput.
const PIECE_MIN: u64 = 16 << 10;
/// Cut commands that a limit takes at once beside one that begins within it: several, because most devices work on several; or one, or
/// none.
const PIECES: u64 = 4;
const TWO: u64 = 1;
const SINGLE: u64 = 0;
/// Part of the throughput that a limit must keep.
const ENOUGH: f64 = 0.975;
/// The same while commands are cut, because each command has its own cost.
const ENOUGH_CUT: f64 = 0.965;
/// The same for a single command: what small requests wait for is its length, and each command has its own cost.
const ENOUGH_SINGLE: f64 = 0.94;
/// Growth of the throughput that justifies a larger limit, and the same for a single command.
const GAIN: f64 = 1.02;
const GAIN_SINGLE: f64 = 1.05;
/// The smallest step of the search as a part of the limit.
const STEP_PART: u64 = 6;
/// The same beside small requests with more than half of the throughput: a little above what they fill none of them waits at the gate,
/// and shares decide nothing.
const STEP_PART_SMALL: u64 = 8;
/// The same for a single command.
const STEP_PART_SINGLE: u64 = 12;
/// Loss of throughput that is answered at once.
const LOSS: f64 = 0.9;
/// A queue of this duration delays no request.
const QUEUE_NS: u64 = 95 * US;
/// A device with this mean latency is never limited.
const FAST_NS: u64 = 60 * US;
/// Time without counting after a sample of a fast device.
const FAST_REST_NS: u64 = 15 * MS;
/// Growth of the mean command after which a limit is forgotten.
const OUTGROWN: u64 = 8;
/// Longest measurement of one limit.
const MEASURE_NS: u64 = 3 * SEC;
/// Samples of the first measurement of a reference.
const REFERENCE_SAMPLES: u32 = 16;
/// Least time between two trials of a limit in use.
const CRUISE_NS: u64 = 800 * MS;
/// Longest time between two trials of a limit in use.
const REST_MAX_NS: u64 = 120 * SEC;
/// Trials of a larger limit take at most this part of the time: they make small requests wait.
const TRIAL_PART: u64 = 128;
/// Time for which small and large requests are remembered.
const SEEN_NS: u64 = 2 * SEC;
/// Time after which an unused limit is forgotten, and after which large requests do not matter to sorted ones.
const UNUSED_NS: u64 = 10 * SEC;

/// The class of a completed command, by what it says of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandClass {
    /// At most [`SMALL_MAX`] bytes that a caller waits for.
    Small = 0,
    /// Any other request.
    Large = 1,
    /// A piece of a large request, which is counted with its bytes alone.
    Piece = 2,
}

/// The state of the control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Watch,
    Reference,
    Search,
    Cruise,
    Up,
    Down,
    Fewer,
}

/// The longest command that is made now.
#[derive(Clone, Copy, Debug)]
struct Length {
    longest: u32,
    since: Instant,
    /// Bytes of commands from before that in this sample.
    older: u64,
}

/// The limits between which the right one is.
#[derive(Clone, Copy, Debug, Default)]
struct Range {
    /// The largest limit known to be too small; 0 for none.
    low: u64,
    /// The smallest limit known to be large enough; 0 while it is not known.
    high: u64,
}

/// Values of the control, for statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DepthStats {
    /// Cost of commands that may be admitted; 0 without a limit.
    pub limit: u64,
    /// Largest command in bytes.
    pub command_max: u32,
    /// Limits that were tried.
    pub trials: u64,
    /// Those of them that cost throughput.
    pub too_small: u64,
}

/// The control of a device's depth.
#[derive(Debug)]
pub(crate) struct DepthControl {
    /// By kind.
    counts: [Counts; 3],
    length: Length,
    /// Completed commands are counted.
    measuring: bool,
    /// Mean cost of a command in the last sample, and in the one after which the limit was set.
    command: u64,
    limit_command: u64,
    since: Instant,
    mean: Mean,
    phase: Phase,
    /// Samples are ignored until then: the device has what an earlier limit admitted.
    settles: Instant,
    /// One more sample is ignored.
    skip: bool,
    /// `u64::MAX` for none.
    limit: u64,
    heads: Heads,
    /// It sorts small commands alone: the limit is not in use.
    sorting: bool,
    /// When a large request arrived or completed last.
    large_at: Option<Instant>,
    /// For whole commands and for cut ones.
    ranges: [Range; 2],
    cuts: Cuts,
    /// The limits that the last searches ended with, for whole commands and for cut ones; 0 for none.
    settled: [u64; 2],
    cruise: Cruise,
    /// When small and large requests completed last.
    seen: [Option<Instant>; 2],
    bound: Bound,
    /// Mean latency of the last sample.
    latency_ns: u64,
    command_max: u32,
    tried: Tried,
    pauses: Pauses,
}

impl DepthControl {
    /// Creates a control for a device whose commands have at most `command_max` bytes.
    pub fn new(command_max: u32) -> Self {
        assert!(command_max > 0, "a command has a length");
        Self {
            counts: [Counts::default(); 3],
            length: Length { longest: command_max, since: Instant(0), older: 0 },
            since: Instant(0),
            measuring: true,
            command: 0,
            limit_command: 0,
            mean: Mean::default(),
            phase: Phase::Watch,
            settles: Instant(0),
            skip: false,
            limit: FIRST_LIMIT,
            heads: Heads::default(),
            sorting: false,
            large_at: None,
            ranges: [Range::default(); 2],
            cuts: Cuts { now: false, next: false, early: false, pieces: PIECES },
            settled: [0; 2],
            cruise: Cruise { rest_ns: CRUISE_NS, ..Cruise::default() },
            seen: [None; 2],
            bound: Bound::default(),
            latency_ns: 0,
            command_max,
            tried: Tried { reference_samples: REFERENCE_SAMPLES, ..Tried::default() },
            pauses: Pauses::default(),
        }
    }

    /// Returns the cost that may be admitted; `u64::MAX` without a limit.
    pub fn limit(&self) -> u64 {
        self.limit_for(self.command_max())
    }

    /// Returns the cost that may be admitted while commands have at most `command_max` bytes. A single command fills the limit,
    /// however short it is, unless all have to be shorter than the control asks for: then several are as much.
    pub fn limit_for(&self, command_max: u32) -> u64 {
        match self.sorting {
            true => self.limit.max(FIRST_LIMIT),
            false if self.is_single() && command_max >= self.command_max() => PIECE_MIN,
            false => self.limit,
        }
    }

    /// Returns true while write-out and requests that merged count as pieces: commands are cut, or what cut ones are compared with is
    /// measured, and the device is faster than a head.
    #[inline]
    pub fn makes_pieces(&self) -> bool {
        self.heads.outrun && (self.cuts.now || self.cuts.next && self.phase == Phase::Reference)
    }

    /// Returns true while one cut command is in the device at a time.
    fn is_single(&self) -> bool {
        self.cuts.now && self.cuts.pieces == SINGLE
    }

    /// Returns the most bytes of a command.
    pub fn command_max(&self) -> u32 {
        if !self.cuts.now {
            return self.command_max;
        }
        let part = (self.limit / self.cuts.pieces.max(1))
            .saturating_sub(COMMAND_COST.into())
            .max(PIECE_MIN);
        part.min(self.command_max.into()) as u32
    }

    /// Returns the values in use.
    pub fn stats(&self) -> DepthStats {
        let limit = if self.limit == u64::MAX { 0 } else { self.limit() };
        let (trials, too_small) = (self.tried.trials, self.tried.too_small);
        DepthStats { limit, command_max: self.command_max(), trials, too_small }
    }

    /// Counts a completed command.
    #[inline]
    pub fn on_complete(&mut self, kind: CommandClass, bytes: u32, latency_ns: u64) {
        let counts = &mut self.counts[kind as usize];
        counts.commands += 1;
        counts.cost += u64::from(bytes);
        counts.latency_ns += latency_ns;
        if self.cuts.early && bytes > self.length.longest {
            self.length.older += u64::from(bytes);
        }
    }

    /// Counts the bytes of a completed command whose length was chosen when it came: write-out, and requests that merged while they
    /// waited.
    pub fn on_made(&mut self, came: Instant, bytes: u32) {
        if came < self.length.since && !self.cuts.early {
            self.length.older += u64::from(bytes);
        }
    }

    /// Returns true once more was completed without a head's time than a drive's cache takes at once.
    pub fn is_fast(&self) -> bool {
        self.heads.is_fast()
    }

    /// Says that requests are cut before they wait: what waits when the length changes keeps the old one.
    pub fn set_early(&mut self) {
        self.cuts.early = true;
    }

    /// Sets whether the device may seek, and whether an elevator `sorts`.
    pub fn set_seeks(&mut self, seeks: bool, sorts: bool) {
        (self.heads.seeks, self.heads.sorted) = (seeks, seeks && sorts);
    }

    /// Notes a large request that arrived or completed.
    pub fn on_large(&mut self, now: Instant) {
        self.large_at = Some(now);
    }

    /// Returns true while completed commands are to be counted.
    #[inline]
    pub fn is_measuring(&self) -> bool {
        self.measuring
    }

    /// Notes the end of a batch that left the queue busy or empty. Counting begins anew after a pause.
    #[inline]
    pub fn on_batch(&mut self, now: Instant, is_busy: bool) {
        if self.pauses.on_batch(now, is_busy) {
            self.counts = [Counts::default(); 3];
            self.since = self.since.max(now);
        }
    }

    /// Returns true when enough time has passed to end a sample.
    #[inline]
    pub fn is_due(&self, now: Instant) -> bool {
        now >= self.since.after(MS)
    }

    /// Ends the rest after a sample of a fast device: counting begins anew.
    fn resume(&mut self, now: Instant) {
        debug_assert!(self.counts.iter().all(|counts| counts.commands == 0), "it rested");
        (self.measuring, self.since) = (true, now);
    }

    /// Ends a sample if it has enough commands, and acts on it. `admitted` is the cost of what is admitted now; `bound` says
    /// whether a request waited for the limit since the last call. Returns true if the limit or the longest command changed.
    pub fn end_sample(&mut self, now: Instant, admitted: u64, bound: bool) -> bool {
        self.bound.now |= bound;
        if !self.measuring {
            self.resume(now);
            return false;
        }
        let [small, large, pieces] = self.counts;
        let requests = small.commands + large.commands;
        let counts = Counts {
            commands: requests + pieces.commands,
            cost: small.cost + large.cost + pieces.cost + requests * u64::from(COMMAND_COST),
            latency_ns: small.latency_ns + large.latency_ns + pieces.latency_ns,
        };
        let Some(mut sample) = Sample::take(&counts, self.since, now) else {
            return false;
        };
        let small_cost = small.cost + small.commands * u64::from(COMMAND_COST);
        sample.small_rate = small_cost as f64 * 1e9 / sample.ns as f64;
        self.heads.note(&sample, counts.commands);
        let longest = [large, pieces].into_iter().max_by_key(|counts| counts.commands);
        if let Some(longest) = longest.filter(|counts| counts.commands > 0) {
            // Small commands may be many and fast among few large ones that make them wait.
            sample.latency_ns = sample.latency_ns.max(longest.latency_ns / longest.commands);
        }
        if small.commands > 0 {
            self.seen[0] = Some(now);
        }
        if large.commands + pieces.commands > 0 {
            self.seen[1] = Some(now);
        }
        if self.bound.now {
            self.bound.at = now;
        }
        self.counts = [Counts::default(); 3];
        self.since = now;
        let before = (self.limit(), self.command_max());
        let command = counts.cost / counts.commands;
        self.latency_ns = sample.latency_ns;
        if self.phase == Phase::Watch && sample.latency_ns <= FAST_NS {
            // It has no limit; one sample in sixteen milliseconds is enough to see that it became slower.
            (self.measuring, self.since) = (false, now.after(FAST_REST_NS));
        }
        let old = std::mem::take(&mut self.length.older) * 4 > counts.cost;
        self.act(now, &sample, admitted, command, old);
        if self.length.longest != self.command_max() {
            self.length = Length { longest: self.command_max(), since: now, older: 0 };
        }
        assert!(self.limit >= PIECE_MIN, "a device may always have something");
        before != (self.limit(), self.command_max())
    }

    /// Takes a sample in the present phase; `command` is the mean cost of a command, `old` says that many were made before the
    /// present length.
    fn act(&mut self, now: Instant, sample: &Sample, admitted: u64, command: u64, old: bool) {
        self.change_sorting(now);
        if self.sorting {
            return;
        }
        if self.outgrows(command) {
            return self.begin_anew(now);
        }
        self.command = command;
        if self.change_cut(now) {
            return;
        }
        let drained =
            admitted <= self.limit.saturating_add(self.limit / 4).saturating_add(2 * command);
        if now < self.settles || !drained || old || self.pauses.is_filling(now) {
            return;
        }
        if self.skip {
            self.skip = false;
            self.bound.now = false;
            return;
        }
        match self.phase {
            Phase::Watch => self.watch(now, sample),
            Phase::Reference => self.refer(now, sample, command),
            Phase::Search => self.search(now, sample, command),
            Phase::Cruise => self.cruise(now, sample),
            Phase::Up => self.up(now, sample, command),
            Phase::Down => self.down(now, sample),
            Phase::Fewer => self.fewer(now, sample),
        }
    }

    /// Returns whether small requests are answered among large ones.
    fn is_mixed(&self, now: Instant) -> bool {
        self.seen.iter().all(|seen| seen.is_some_and(|at| now.since(at) <= SEEN_NS))
    }

    /// Begins or ends to do without the limit. It stays what it was, and is in use again when a large request comes.
    fn change_sorting(&mut self, now: Instant) {
        let recent = |at: Instant| now.since(at) <= UNUSED_NS;
        let sorting = self.heads.sorted && !self.large_at.is_some_and(recent);
        if std::mem::replace(&mut self.sorting, sorting) && !sorting {
            self.settles = now.after(self.latency_ns);
            (self.skip, self.bound.now, self.mean) = (true, false, Mean::default());
        }
    }

    /// Begins or ends cutting, with the limit known for it; returns whether it did.
    fn change_cut(&mut self, now: Instant) -> bool {
        let mixed = self.is_mixed(now);
        if self.cuts.now && !mixed {
            self.cuts.now = false;
            let high = self.settled[0];
            let phase = if high == 0 { Phase::Watch } else { Phase::Cruise };
            self.enter(now, phase, if high == 0 { FIRST_LIMIT } else { high });
            return true;
        }
        if self.cuts.now || !mixed {
            return false;
        }
        let known = self.settled[1];
        if known > 0 {
            self.cuts.now = true;
            self.enter(now, Phase::Cruise, known);
        } else if self.phase == Phase::Cruise && self.latency_ns > 2 * QUEUE_NS {
            (self.cuts.next, self.tried.reference_samples) = (true, REFERENCE_SAMPLES);
            self.enter(now, Phase::Reference, self.limit);
        }
        known > 0
    }

    /// Returns whether the limit was found for much smaller commands and holds less than two of the present ones.
    fn outgrows(&self, command: u64) -> bool {
        !self.cuts.now && self.limit < 2 * command && command > OUTGROWN * self.limit_command
    }

    /// Forgets what was found for another load.
    fn begin_anew(&mut self, now: Instant) {
        (self.ranges, self.settled) = ([Range::default(); 2], [0; 2]);
        self.cruise.next_trial = now;
        self.enter(now, Phase::Watch, FIRST_LIMIT);
    }

    /// Begins a phase with a limit.
    fn enter(&mut self, now: Instant, phase: Phase, limit: u64) {
        let limit = limit.max(PIECE_MIN);
        if limit != self.limit {
            self.limit_command = self.command;
            self.settles = now.after(if limit < self.limit { self.latency_ns } else { 0 });
            self.skip = true;
        }
        (self.phase, self.limit) = (phase, limit);
        self.mean = Mean::default();
        self.bound.now = false;
    }

    /// Looks for a queue in the device that is longer than it needs.
    fn watch(&mut self, now: Instant, sample: &Sample) {
        if sample.latency_ns <= FAST_NS {
            self.limit = u64::MAX;
        }
        let stands = sample.latency_ns > 2 * QUEUE_NS && sample.in_flight > 1.5;
        if stands && now >= self.cruise.next_trial {
            (self.cuts.next, self.tried.reference_samples) =
                (self.is_mixed(now), REFERENCE_SAMPLES);
            self.enter(now, Phase::Reference, self.limit);
        }
    }

    /// Measures the throughput with the present limit.
    fn refer(&mut self, now: Instant, sample: &Sample, command: u64) {
        self.mean.add(sample);
        if !self.mean.is_certain() {
            if self.mean.ns() > MEASURE_NS {
                self.cruise.rest_ns = (self.cruise.rest_ns * 2).min(REST_MAX_NS);
                return self.give_up(now);
            }
            if self.mean.samples() >= self.tried.reference_samples {
                // What a device takes into its memory at first says nothing.
                self.mean = Mean::default();
                self.tried.reference_samples *= 2;
            }
            return;
        }
        self.cruise.reference = self.mean.rate();
        self.note_cruising();
        let in_flight = (self.cruise.reference * sample.latency_ns as f64 / 1e9) as u64;
        let high = if self.bound.now { self.limit } else { in_flight.min(self.limit) };
        self.cuts.now = self.cuts.next;
        self.ranges[usize::from(self.cuts.now)] = Range { low: 0, high: high.max(PIECE_MIN) };
        (self.tried.fresh, self.cuts.pieces) = (true, PIECES);
        if self.bound.now && !self.cuts.now {
            self.tried.trials += 1;
            return self.enter(now, Phase::Up, self.limit.saturating_mul(2));
        }
        self.try_next(now, command);
    }

    /// Tries the next limit of the search, or ends it.
    fn try_next(&mut self, now: Instant, command: u64) {
        let Range { low, high } = self.ranges[usize::from(self.cuts.now)];
        let floor = self.floor(command);
        let next = match low {
            0 if self.tried.fresh => (high / 16).max(floor),
            0 => (high / 4).max(floor),
            low if high / 2 > low * 2 => low * 2,
            low => low.midpoint(high),
        };
        let part = match self.cuts.now {
            true if self.is_single() => STEP_PART_SINGLE,
            true if 2.0 * self.mean.small_rate() > self.mean.rate() => STEP_PART_SMALL,
            _ => STEP_PART,
        };
        if next >= high - high / part || low > 0 && high - low <= high / 5 {
            return self.try_fewer(now);
        }
        self.tried.trials += 1;
        self.enter(now, Phase::Search, next);
    }

    /// Tries fewer commands of the length that the search found: some devices work on one at a time.
    fn try_fewer(&mut self, now: Instant) {
        let Range { high, .. } = self.ranges[1];
        let queue = (self.cruise.reference * QUEUE_NS as f64 / 1e9) as u64;
        let few = high / 4;
        if !self.cuts.now
            || self.cuts.pieces < PIECES
            || !self.tried.fresh
            || few < queue.max(PIECE_MIN)
        {
            return self.end_search(now);
        }
        self.cuts.pieces = TWO;
        self.tried.trials += 1;
        self.enter(now, Phase::Fewer, few);
    }

    /// Judges fewer commands of the same length.
    fn fewer(&mut self, now: Instant, sample: &Sample) {
        self.mean.add(sample);
        let Some(enough) = self.verdict() else {
            return;
        };
        if !enough {
            self.cuts.pieces = PIECES;
            self.tried.too_small += 1;
            return self.end_search(now);
        }
        // Then one of them may be enough, and a shorter one; not for a drive's cache, which would be fast until it is full.
        self.ranges[1] = Range { low: 0, high: self.limit };
        if self.heads.seeks {
            return self.end_search(now);
        }
        self.cuts.pieces = SINGLE;
        self.tried.trials += 1;
        self.enter(now, Phase::Search, self.limit);
        self.skip = true;
    }

    /// Returns the smallest limit that is tried. One command is in the device at least, whatever the limit.
    fn floor(&self, command: u64) -> u64 {
        let queue = (self.cruise.reference * QUEUE_NS as f64 / 1e9) as u64;
        let command = if self.cuts.now { PIECE_MIN } else { command / 2 };
        queue.max(command).max(PIECE_MIN)
    }

    /// Judges a smaller limit.
    fn search(&mut self, now: Instant, sample: &Sample, command: u64) {
        self.mean.add(sample);
        let Some(enough) = self.verdict() else {
            return;
        };
        let range = &mut self.ranges[usize::from(self.cuts.now)];
        if enough {
            range.high = self.limit;
        } else {
            range.low = self.limit;
            self.tried.too_small += 1;
        }
        if range.low == range.high {
            // A single command is less than two.
            self.cuts.pieces = TWO;
            return self.end_search(now);
        }
        self.try_next(now, command);
    }

    /// Returns whether the limit keeps the throughput, when that is known.
    fn verdict(&self) -> Option<bool> {
        let rate = self.mean.rate();
        if self.mean.is_certain() {
            let part = match self.cuts.pieces {
                _ if !self.cuts.now => ENOUGH,
                SINGLE => ENOUGH_SINGLE,
                _ => ENOUGH_CUT,
            };
            return Some(rate >= part * self.cruise.reference);
        }
        let slow = self.mean.is_rough() && rate < 0.85 * self.cruise.reference;
        (slow || self.mean.ns() > MEASURE_NS).then_some(false)
    }

    /// Uses the limit that the search found.
    fn end_search(&mut self, now: Instant) {
        let Range { high, .. } = self.ranges[usize::from(self.cuts.now)];
        self.settled[usize::from(self.cuts.now)] = high;
        self.tried.fresh = false;
        self.cruise.next_trial = now.after(self.cruise.rest_ns);
        self.enter(now, Phase::Cruise, high);
    }

    /// Ends the trials of a device whose throughput does not tell which limit is enough: no request waits for this one.
    fn give_up(&mut self, now: Instant) {
        (self.ranges, self.settled) = ([Range::default(); 2], [0; 2]);
        (self.cuts.now, self.tried.fresh) = (false, false);
        self.cruise.next_trial = now.after(self.cruise.rest_ns);
        self.enter(now, Phase::Watch, self.limit.max(FIRST_LIMIT));
    }

    /// Notes the throughput of the limit in use.
    fn note_cruising(&mut self) {
        (self.cruise.rate, self.cruise.small) = (self.mean.rate(), self.mean.small_rate());
        self.cruise.error = self.mean.error_squared();
    }

    /// Returns the throughput of a larger limit, less what small requests lose by it while large ones are cut.
    fn fair_rate(&self) -> f64 {
        let lost = (self.cruise.small - self.mean.small_rate()).max(0.0);
        self.mean.rate() - if self.cuts.now { lost } else { 0.0 }
    }

    /// Returns whether the throughput of a larger limit is greater by more than chance explains.
    fn has_gained(&self) -> bool {
        let gain = if self.is_single() { GAIN_SINGLE } else { GAIN };
        let more = self.fair_rate() / self.cruise.rate.max(1.0) - gain;
        more > 0.0 && more * more > 4.0 * (self.mean.error_squared() + self.cruise.error)
    }

    /// Watches the throughput of the limit in use.
    fn cruise(&mut self, now: Instant, sample: &Sample) {
        if now.since(self.bound.at) > UNUSED_NS {
            (self.ranges, self.settled) = ([Range::default(); 2], [0; 2]);
            self.cuts.now = false;
            return self.enter(now, Phase::Watch, FIRST_LIMIT);
        }
        if !self.bound.now {
            self.mean = Mean::default();
            return;
        }
        self.mean.add(sample);
        let due = now >= self.cruise.next_trial;
        if !self.mean.is_certain() {
            let slow = self.mean.is_rough() && self.mean.rate() < LOSS * self.cruise.reference;
            if !slow && self.mean.ns() <= MEASURE_NS {
                return;
            }
        }
        self.note_cruising();
        if due || self.cruise.rate < LOSS * self.cruise.reference {
            let range = &mut self.ranges[usize::from(self.cuts.now)];
            *range = Range { low: 0, high: self.limit };
            self.tried.trials += 1;
            return self.enter(now, Phase::Up, self.limit.saturating_mul(2));
        }
        self.mean = Mean::default();
        self.bound.now = false;
    }

    /// Judges a larger limit.
    fn up(&mut self, now: Instant, sample: &Sample, command: u64) {
        self.mean.add(sample);
        let certain = self.mean.is_certain();
        if !certain && self.mean.ns() <= MEASURE_NS {
            return;
        }
        let rate = self.fair_rate();
        // Half of the trial of a single command is until commands have its length.
        let part = if self.is_single() { 2 * TRIAL_PART } else { TRIAL_PART };
        self.cruise.rest_ns = (self.mean.ns() * part).clamp(CRUISE_NS, REST_MAX_NS);
        let (gained, single) = (self.has_gained(), self.is_single());
        let range = &mut self.ranges[usize::from(self.cuts.now)];
        if gained {
            // The device needed more.
            *range = Range { low: range.high, high: self.limit };
            self.note_cruising();
            self.cruise.reference = self.cruise.rate;
            if !self.bound.now {
                // It has all that was asked for: the limit does not matter any more.
                return self.give_up(now);
            }
            self.tried.trials += 1;
            return self.enter(now, Phase::Up, self.limit.saturating_mul(2));
        }
        self.cruise.reference = rate.max(self.cruise.rate);
        if single && range.low == 0 {
            // A step down would be judged by this limit, and steps would add up.
            return self.end_search(now);
        }
        if range.low > 0 || self.tried.fresh {
            return self.try_next(now, command);
        }
        let (high, floor) = (range.high, self.floor(command));
        // Far from what the device needs the steps are large.
        let part = if high / 8 > floor { high / 4 } else { high / 4 * 3 };
        let less = part.max(floor);
        if less >= high {
            return self.end_search(now);
        }
        self.tried.trials += 1;
        self.enter(now, Phase::Down, less);
    }

    /// Judges a slightly smaller limit.
    fn down(&mut self, now: Instant, sample: &Sample) {
        self.mean.add(sample);
        let Some(enough) = self.verdict() else {
            return;
        };
        self.tried.too_small += u64::from(!enough);
        let range = &mut self.ranges[usize::from(self.cuts.now)];
        if enough {
            range.high = self.limit;
        }
        self.end_search(now);
    }
}

#[cfg(test)]
mod tests;
