//! Read-ahead: streams of sequential reads and their windows.
//!
//! Each connection has a few streams, so that readers which share it do not disturb each other. A read that continues a stream is at
//! least the second of a sequence, and gets a window: blocks to be read after it. One folio of the window carries a marker; the
//! read that arrives there requests the next window while the rest of this one is still unread. So a stream waits for the device
//! at its start and never again, and a read that continues no stream requests nothing.
//!
//! ```text
//!   reads   |--1--|--2--|
//!   window 1            [m......]             size = init(read), of which the read is a part
//!   window 2                    [m..............]        requested at m of window 1; 4 or 2 times as large
//!   window 3                                    [m............................]     and so on, up to read_ahead_kb
//! ```
//!
//! The sizes are Linux's (`get_init_ra_size`, `get_next_ra_size` of mm/readahead.c), and so are the orders of the folios: two
//! more from window to window, as far as the window is large enough. Departures: a single read at block 0 requests nothing, since
//! it is no stream; a stream is identified by its position, not by the handle's last position; windows end where a folio of their
//! order does, or each of them would begin and end in small folios; and lengths limit windows.
//!
//! A window reaches no further than most streams of its volume that had come as far (lengths.rs): where files are short, little is
//! read past their ends. The marker of a window that is cut so is in its middle, or the next one would be a block or two.
//!
//! A stream has up to two windows that it has not used. So that those of all streams fit into the pool, a window is at most the
//! pool's part for each stream that has had one of late: in this epoch or the one before, where an epoch is half a pool of blocks
//! that were read ahead. With larger ones streams evict each other's windows unread: 16 readers in 64 MiB of cache got 1.1 MB/s of a
//! disk with windows of 4 MiB, and 15 with 128 KiB.
//!
//! Read-ahead that is evicted unused is counted for each volume. Above a quarter, windows stop growing at once, and the largest
//! window is halved at the end of the period; below a sixteenth it doubles again.
//!
//! Invariants: windows of a stream do not overlap, and leave no gap but what was read meanwhile; none is larger than `window_max` or
//! extends past the volume's end. The table never grows: the least recently used record is replaced.

mod active;
mod lengths;
mod limits;

use self::active::ActiveStreams;
use self::lengths::StreamLengths;
pub(super) use self::limits::ReadAheadLimits;
use crate::bio::VolumeId;

/// Streams of a connection that have a window: so many readers share it undisturbed.
const STREAMS_PROVEN: usize = 8;
/// Those, and first reads that may become streams: random reads replace each other, never a stream.
const STREAMS: usize = STREAMS_PROVEN + 4;
/// Connections with streams, 200 KiB; more replace the least recently used ones.
const RECORDS_MAX: u32 = 512;
/// The associativity: records that a connection may use.
const WAYS: usize = 4;
/// Volumes whose waste is counted separately; more volumes share counters.
const VOLUMES: usize = 64;
/// Blocks after which a volume's waste is evaluated: 4 MiB, the largest window.
const PERIOD: u32 = 1024;
/// The smallest sample for an evaluation, in blocks.
const SAMPLE_MIN: u32 = 64;
/// How often the largest window is halved at most: 4 MiB to 16 KiB.
const HALVED_MAX: u8 = 8;

/// A read that missed or reached a marker. (Other reads change nothing here.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadEvent {
    /// The volume that is read.
    pub volume: VolumeId,
    /// The first block of the read.
    pub block: u64,
    /// The number of blocks, at least 1.
    pub blocks: u32,
    /// The read reached a folio with the mark `MARKER`.
    pub marker: bool,
}

/// A window of blocks to be read ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAheadWindow {
    /// The first block, after the read's own.
    pub start: u64,
    /// The number of blocks, at least 1.
    pub blocks: u32,
    /// The block whose folio gets the marker.
    pub marker: u64,
    /// The order of its folios, as far as alignment and neighbours allow.
    pub order: u8,
}

/// A stream, or a first read that may become one (then `size` is 0).
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The block after the last read that missed or reached a marker.
    next: u64,
    /// The block after its last window.
    end: u64,
    /// The block at which the next window is due.
    marker: u64,
    /// The last use, by the record's clock; 0 for no stream.
    used: u32,
    /// Blocks that it is known to have read, up to `beyond` blocks after `next`.
    len: u32,
    /// Blocks of its last window before alignment and the limit of likely lengths.
    size: u16,
    /// Blocks of its windows that it is known to have used beyond `next`.
    beyond: u16,
    volume: VolumeId,
    order: u8,
    /// The epoch of its last window, see [`ActiveStreams`].
    epoch: u8,
}

/// The streams of one connection.
#[derive(Clone, Copy, Debug)]
struct Record {
    connection: u32,
    /// The last use, by the table's clock; 0 for a free record.
    used: u64,
    clock: u32,
    streams: [Stream; STREAMS],
}

/// The use and waste of read-ahead on a volume.
#[derive(Clone, Copy, Debug, Default)]
struct Feedback {
    used: u32,
    wasted: u32,
    /// How often the largest window is halved.
    halved: u8,
}

/// The streams of a shard's connections.
#[derive(Debug)]
pub struct ReadAhead {
    records: Box<[Record]>,
    clock: u64,
    active: ActiveStreams,
    feedback: [Feedback; VOLUMES],
    lengths: [StreamLengths; VOLUMES],
}

/// The counters of a volume.
fn counters(volume: VolumeId) -> usize {
    usize::from(volume.0) % VOLUMES
}

impl ReadAhead {
    /// Creates a table for `connections_max` connections, of which 512 may have streams at a time.
    #[must_use]
    pub fn new(connections_max: u32) -> Self {
        let records = connections_max.clamp(WAYS as u32, RECORDS_MAX).next_power_of_two();
        let record =
            Record { connection: 0, used: 0, clock: 0, streams: [Stream::default(); STREAMS] };
        Self {
            records: vec![record; records as usize].into(),
            clock: 0,
            active: ActiveStreams::new(),
            feedback: [Feedback::default(); VOLUMES],
            lengths: [StreamLengths::default(); VOLUMES],
        }
    }

    /// Handles a read of `connection` that missed or reached a marker; returns the window to read ahead, if any. The caller skips
    /// blocks of it that are cached or outstanding.
    pub fn on_read(
        &mut self,
        connection: u32,
        read: ReadEvent,
        limits: ReadAheadLimits,
    ) -> Option<ReadAheadWindow> {
        assert!(read.blocks > 0, "a read has blocks");
        assert!(limits.window_max <= u16::MAX.into(), "a window has at most 256 MiB");
        if limits.window_max == 0 {
            return None;
        }
        let ramp = self.feedback[counters(read.volume)].ramp(self.active.window_max(&limits));
        let at = self.record(connection);
        let record = &mut self.records[at];
        let window = record.on_read(read, &limits, &ramp, &mut self.lengths)?;
        if let Some(stream) = record.streams.iter_mut().find(|stream| stream.owns(read, &window)) {
            self.active.on_window(&mut stream.epoch, window.blocks, &limits);
        }
        Some(window)
    }

    /// Counts `blocks` that were read ahead, as `read` of `connection` uses the first of them.
    #[inline]
    pub fn on_used(&mut self, connection: u32, read: ReadEvent, blocks: u32) {
        let feedback = &mut self.feedback[counters(read.volume)];
        feedback.used += blocks;
        feedback.evaluate();
        let lengths = &mut self.lengths[counters(read.volume)];
        let set = set_of(&mut self.records, connection);
        let mut own = set.iter_mut().filter(|record| record.is_of(connection));
        if let Some(record) = own.next()
            && let Some(stream) = record.streams.iter_mut().find(|stream| stream.has_ahead(&read))
        {
            let read_end = read.block + u64::from(read.blocks);
            stream.on_used(read_end.min(stream.end), lengths);
        }
    }

    /// Counts blocks that were read ahead and evicted unread.
    pub fn on_waste(&mut self, volume: VolumeId, blocks: u32) {
        let feedback = &mut self.feedback[counters(volume)];
        feedback.wasted += blocks;
        feedback.evaluate();
    }

    /// Forgets the streams of a connection that is closed.
    pub fn forget(&mut self, connection: u32) {
        for record in set_of(&mut self.records, connection) {
            if record.is_of(connection) {
                record.streams.iter_mut().for_each(|stream| stream.end(&mut self.lengths));
                record.used = 0;
            }
        }
    }

    /// Forgets the streams and counters of a volume that is removed.
    pub fn forget_volume(&mut self, volume: VolumeId) {
        for record in &mut self.records {
            let gone = |stream: &&mut Stream| stream.used != 0 && stream.volume == volume;
            record.streams.iter_mut().filter(gone).for_each(|stream| *stream = Stream::default());
        }
        self.feedback[counters(volume)] = Feedback::default();
        self.lengths[counters(volume)] = StreamLengths::default();
    }

    /// Returns the place of the connection's record; a new connection replaces the least recently used one.
    fn record(&mut self, connection: u32) -> usize {
        self.clock += 1;
        let set = first_of(&self.records, connection);
        let rank = |record: &Record| match record.used {
            0 => 1,
            _ if record.connection == connection => 0,
            used => used + 1,
        };
        let places = set..set + WAYS;
        let at = places.min_by_key(|&at| rank(&self.records[at])).unwrap_or(set);
        let record = &mut self.records[at];
        if rank(record) != 0 {
            // Its streams may go on: they were only used less lately than those of other connections.
            *record = Record { connection, used: 0, clock: 0, streams: Default::default() };
        }
        record.used = self.clock;
        at
    }
}

/// Returns the place of the first record that a connection may use.
fn first_of(records: &[Record], connection: u32) -> usize {
    let sets = (records.len() / WAYS) as u64;
    // Connections are numbered consecutively; the multiplication spreads any other numbering, too.
    let hash = u64::from(connection.wrapping_mul(0x9e37_79b1));
    let set = ((hash * sets) >> 32) as usize;
    set * WAYS
}

/// Returns the records that a connection may use.
fn set_of(records: &mut [Record], connection: u32) -> &mut [Record] {
    let first = first_of(records, connection);
    &mut records[first..][..WAYS]
}

impl Record {
    fn is_of(&self, connection: u32) -> bool {
        self.used != 0 && self.connection == connection
    }

    fn on_read(
        &mut self,
        read: ReadEvent,
        limits: &ReadAheadLimits,
        ramp: &Ramp,
        lengths: &mut [StreamLengths; VOLUMES],
    ) -> Option<ReadAheadWindow> {
        self.clock = self.clock.saturating_add(1);
        let clock = self.clock;
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.continues(&read)) {
            stream.used = clock;
            let proven = stream.size > 0;
            let window = stream.on_read(&read, limits, ramp, &mut lengths[counters(read.volume)]);
            if !proven {
                self.bound_proven(lengths);
            }
            return window;
        }
        if read.marker && self.streams.iter().any(|stream| stream.has_passed(&read)) {
            return None;
        }
        let stream = self.least_used(|stream| stream.size == 0)?;
        *stream = Stream {
            next: read.block + u64::from(read.blocks),
            len: read.blocks,
            used: clock,
            volume: read.volume,
            ..Stream::default()
        };
        if !read.marker {
            return None;
        }
        // A marker without its stream: that was replaced, or belongs to another connection.
        lengths[counters(read.volume)].on_returned();
        let window = stream.on_read(&read, limits, ramp, &mut lengths[counters(read.volume)]);
        self.bound_proven(lengths);
        window
    }

    /// Replaces the least recently used stream with windows if there are too many.
    fn bound_proven(&mut self, lengths: &mut [StreamLengths; VOLUMES]) {
        debug_assert!(self.clock > 0, "a read has been counted");
        let proven = self.streams.iter().filter(|stream| stream.size > 0).count();
        if proven > STREAMS_PROVEN
            && let Some(stream) = self.least_used(|stream| stream.size > 0)
        {
            stream.end(lengths);
        }
    }

    fn least_used(&mut self, among: impl Fn(&Stream) -> bool) -> Option<&mut Stream> {
        self.streams.iter_mut().filter(|stream| among(stream)).min_by_key(|stream| stream.used)
    }
}

impl Stream {
    /// Returns true if the read continues at the stream's position (the last block may be read again: reads need not end with
    /// one), or lies in what was read ahead for it: reads that hit are not reported, and others may be reordered.
    fn continues(&self, read: &ReadEvent) -> bool {
        let from = self.next.saturating_sub(1);
        let to = if self.size > 0 { self.end } else { self.next };
        let progress = self.size > 0 || read.block + u64::from(read.blocks) > self.next;
        let same = self.used != 0 && self.volume == read.volume;
        same && progress && (from..=to).contains(&read.block)
    }

    /// Returns true if a window of the read's volume is the stream's last one.
    fn owns(&self, read: ReadEvent, window: &ReadAheadWindow) -> bool {
        let end = window.start + u64::from(window.blocks);
        self.size > 0 && self.volume == read.volume && self.end == end
    }

    /// Returns true if the read uses what was read ahead for the stream.
    fn has_ahead(&self, read: &ReadEvent) -> bool {
        let same = self.size > 0 && self.volume == read.volume;
        same && (self.next.saturating_sub(1)..self.end).contains(&read.block)
    }

    /// Returns true if the stream was at the read before: with several reads in flight, one that misses may be seen before one
    /// whose blocks are in flight.
    fn has_passed(&self, read: &ReadEvent) -> bool {
        let known = self.next + u64::from(self.beyond);
        let same = self.size > 0 && self.volume == read.volume;
        same && read.block < self.next && read.block + u64::from(self.len) >= known
    }

    /// Has read up to a block.
    fn grow(&mut self, to: u64, lengths: &mut StreamLengths) {
        let known = self.next + u64::from(self.beyond);
        let grown = to.saturating_sub(known).min(u32::MAX.into()) as u32;
        let len = self.len.saturating_add(grown);
        // The read that proves a stream says nothing about how long proven ones become.
        if self.size > 0 {
            lengths.on_grown(self.len, len);
        }
        self.len = len;
    }

    /// Has used its windows up to a block.
    fn on_used(&mut self, to: u64, lengths: &mut StreamLengths) {
        self.grow(to, lengths);
        let beyond = to.saturating_sub(self.next).min(u16::MAX.into()) as u16;
        self.beyond = self.beyond.max(beyond);
    }

    /// Has missed or reached a marker, with a read up to a block.
    fn on_event(&mut self, to: u64, lengths: &mut StreamLengths) {
        self.grow(to, lengths);
        let grown = to.saturating_sub(self.next).min(u16::MAX.into()) as u16;
        self.next = self.next.max(to);
        self.beyond = self.beyond.saturating_sub(grown);
        debug_assert!(self.len > 0, "a stream has read something");
    }

    /// Ends and is free.
    fn end(&mut self, lengths: &mut [StreamLengths; VOLUMES]) {
        if self.size > 0 {
            lengths[counters(self.volume)].on_ended(self.len);
        }
        *self = Self::default();
    }

    fn on_read(
        &mut self,
        read: &ReadEvent,
        limits: &ReadAheadLimits,
        ramp: &Ramp,
        lengths: &mut StreamLengths,
    ) -> Option<ReadAheadWindow> {
        let read_end = read.block + u64::from(read.blocks);
        self.on_event(read_end, lengths);
        let likely = self.likely_end(lengths);
        if self.size == 0 {
            self.size = ramp.init(read.blocks) as u16;
            let size = u32::from(self.size);
            let first = if size > read.blocks { read.block } else { read_end };
            return self.order_window(read_end, first + u64::from(size), likely, limits, ramp);
        }
        // The marker's folio may begin before the marked block.
        let marked = read.marker && read_end + (1 << self.order) > self.marker;
        if !marked && read_end <= self.marker {
            return None;
        }
        let start = self.end.max(read_end);
        let size = ramp.next(self.size.into());
        if start < likely {
            self.size = size as u16;
            self.order = (self.order + 2).min(limits.order_max).min(size.ilog2() as u8);
        }
        self.order_window(start, start + u64::from(size), likely, limits, ramp)
    }

    /// Returns the block as far as which most streams go that are as long.
    fn likely_end(&self, lengths: &StreamLengths) -> u64 {
        let known = self.next + u64::from(self.beyond);
        lengths.likely(self.len).map_or(u64::MAX, |likely| known + u64::from(likely - self.len))
    }

    fn order_window(
        &mut self,
        start: u64,
        end: u64,
        likely: u64,
        limits: &ReadAheadLimits,
        ramp: &Ramp,
    ) -> Option<ReadAheadWindow> {
        (self.marker, self.end) = (start, start);
        if likely <= start {
            return None;
        }
        let cut = end > likely;
        if cut {
            // The middle is another folio than the start.
            let blocks = (likely - start) as u32;
            self.order = self.order.min(blocks.max(2).ilog2() as u8 - 1);
        }
        let end = end.min(likely);
        let folio = 1_u64 << self.order;
        let up = end.next_multiple_of(folio);
        let down = end - end % folio;
        let end = match () {
            () if up - start <= u64::from(ramp.max) && up <= likely => up,
            () if down > start => down,
            () => end,
        };
        self.end = end.min(limits.end).max(start);
        assert!(self.end >= start, "a window does not end before it starts");
        let blocks = (self.end - start) as u32;
        debug_assert!(blocks <= ramp.max, "a window is at most the largest one");
        debug_assert!(self.end <= likely, "a window ends where most streams do");
        if cut {
            self.marker += u64::from(blocks / 2);
        }
        let (marker, order) = (self.marker, self.order);
        (blocks > 0).then_some(ReadAheadWindow { start, blocks, marker, order })
    }
}

/// The growth of a stream's windows, in blocks.
#[derive(Clone, Copy, Debug)]
struct Ramp {
    max: u32,
    /// Windows stop growing: too much is wasted.
    hold: bool,
}

impl Ramp {
    /// Returns the size of the first window for a read of `read` blocks, which are a part of it.
    fn init(&self, read: u32) -> u32 {
        let max = self.max;
        debug_assert!(max > 0 && read > 0, "read-ahead is on");
        match read.checked_next_power_of_two() {
            Some(size) if size <= max / 32 => size * 4,
            Some(size) if size <= max / 4 => size * 2,
            _ => max,
        }
    }

    /// Returns the size of the window after one of `size`.
    fn next(&self, size: u32) -> u32 {
        let max = self.max;
        debug_assert!(size > 0, "a stream has had a window");
        match size {
            _ if self.hold => size.min(max),
            _ if size < max / 16 => size * 4,
            _ if size <= max / 2 => size * 2,
            _ => max,
        }
    }
}

impl Feedback {
    fn ramp(&self, window_max: u32) -> Ramp {
        let most = (window_max >> self.halved).max(window_max.min(4));
        let sample = self.used + self.wasted;
        Ramp { max: most, hold: sample >= SAMPLE_MIN && self.wasted > sample / 4 }
    }

    /// Evaluates the waste at the end of a period: above a quarter halves the largest window, below a sixteenth doubles it.
    fn evaluate(&mut self) {
        let sample = self.used + self.wasted;
        if sample < PERIOD {
            return;
        }
        if self.wasted > sample / 4 {
            self.halved = (self.halved + 1).min(HALVED_MAX);
        } else if self.wasted < sample / 16 {
            self.halved = self.halved.saturating_sub(1);
        }
        assert!(self.halved <= HALVED_MAX);
        (self.used, self.wasted) = (0, 0);
    }
}

#[cfg(test)]
mod tests;
