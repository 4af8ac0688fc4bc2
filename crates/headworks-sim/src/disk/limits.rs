//! Checks of every command against the limits that the disk announced; the first violation is kept
//! and fails the run.

use headworks::Command;
use headworks::driver::Span;
use headworks_core::{BioFlags, EXTENTS_BYTES, Instant, Op};

use super::{Disk, DiskFile};

impl Disk {
    /// Checks `command`; keeps the first violation.
    pub(super) fn check(&mut self, now: Instant, command: &Command, spans: &[Span]) {
        if self.broken.is_some() {
            return;
        }
        let wrong = self
            .check_place(command)
            .or_else(|| self.check_capability(command))
            .or_else(|| self.check_data(command, spans))
            .or_else(|| self.check_neighbours(now, command));
        if let Some(wrong) = wrong {
            self.broken = Some(format!(
                "invalid command: {:?} {}+{} flags {:#x} on volume {} as {:?}: {wrong}",
                command.op,
                command.offset,
                command.len,
                command.flags.0,
                command.volume.0,
                command.id
            ));
        }
    }

    fn check_place(&self, command: &Command) -> Option<String> {
        let Some(&DiskFile { size, block_size, read_only, .. }) = self.file(command) else {
            return Some("the volume is not on this device".into());
        };
        let (offset, len) = (command.offset, u64::from(command.len));
        if command.op == Op::Flush {
            return None;
        }
        if len == 0 || offset.checked_add(len).is_none_or(|end| end > size) {
            return Some(format!("not within the {size} bytes of the volume"));
        }
        // Block status may begin and end at any byte: a cache takes such requests and forwards
        // them.
        let moves = command.op != Op::BlockStatus;
        if moves && (offset % u64::from(block_size) != 0 || len % u64::from(block_size) != 0) {
            return Some(format!("not aligned to {block_size}"));
        }
        (read_only && command.op.is_write()).then(|| "the volume is read-only".into())
    }

    fn check_capability(&self, command: &Command) -> Option<String> {
        let queue = &self.options.queue;
        let fua = command.flags.contains(BioFlags::FUA);
        let granularity = u64::from(queue.discard_granularity);
        let wrong = match command.op {
            Op::Prefetch => "prefetch is not a device command",
            Op::Flush if !queue.write_cache => "flush without a volatile cache",
            Op::Discard if !queue.discard => "discard is not supported",
            Op::WriteZeroes if !queue.write_zeroes => "write-zeroes is not supported",
            Op::Discard
                if !command.offset.is_multiple_of(granularity)
                    || !u64::from(command.len).is_multiple_of(granularity) =>
            {
                "a discard not rounded to the granularity"
            }
            Op::Discard | Op::WriteZeroes if command.len > queue.discard_max_bytes => {
                "longer than discard_max_bytes"
            }
            Op::Read | Op::Flush if fua => "FUA on a command that writes nothing",
            _ if fua && !queue.fua => "FUA is not supported",
            _ => return None,
        };
        Some(wrong.into())
    }

    fn check_data(&self, command: &Command, spans: &[Span]) -> Option<String> {
        let queue = &self.options.queue;
        if command.op == Op::BlockStatus {
            let whole = matches!(spans, [span] if span.len() == EXTENTS_BYTES as usize);
            return (!whole).then(|| "no buffer for the list of extents".into());
        }
        if !command.op.has_data() {
            return (!spans.is_empty()).then(|| "data on a command without data".into());
        }
        if command.len > queue.max_bytes() {
            return Some(format!("longer than max_sectors_kb {}", queue.max_sectors_kb));
        }
        let zeros = command.op == Op::Write && spans.is_empty();
        if !zeros
            && spans.iter().map(|span| span.len() as u64).sum::<u64>() != u64::from(command.len)
        {
            return Some("the spans do not add up to its length".into());
        }
        if spans.len() > usize::from(queue.max_segments) {
            return Some(format!("{} segments", spans.len()));
        }
        let longest = spans.iter().map(|span| span.len()).max().unwrap_or(0);
        (longest > queue.max_segment_size as usize).then(|| format!("a segment of {longest} bytes"))
    }

    /// Checks the commands in flight: no more than the device takes, and none that a late command
    /// may still overwrite.
    fn check_neighbours(&self, now: Instant, command: &Command) -> Option<String> {
        // Each volume's flush bypasses the gate, so there may be one more for each.
        let flushes = if self.options.queue.write_cache { self.options.files.len() } else { 0 };
        let depth = self.options.queue.queue_depth as usize + flushes;
        if !self.options.overlaid && self.in_flight() >= depth {
            return Some(format!("{} commands are already in flight", self.in_flight()));
        }
        if self.options.faults.late == 0 || !command.op.is_write() {
            return None;
        }
        let end = command.offset + u64::from(command.len);
        let late = self.pending.iter().find(|pending| {
            let other = &pending.command;
            pending.in_use
                && pending.expires < now
                && other.op.is_write()
                && other.volume == command.volume
                && other.offset < end
                && command.offset < other.offset + u64::from(other.len)
        })?;
        let late = late.command;
        Some(format!(
            "it overlaps {:?} {}+{}, which is late and may still take effect",
            late.op, late.offset, late.len
        ))
    }
}
