//! The rules beside the oracle's: errors an answer may carry, resources an idle shard may hold, and
//! the report of a violation.

pub mod limits;

use std::fmt;

use headworks_core::{Bio, BioFlags, DeviceId, Instant, IoError, Op, Shard, Status};

use crate::disk::DiskDefect;
use crate::oracle::Violation;
use crate::scenario::Scenario;

/// A run that violated a rule.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Seed of the scenario.
    pub seed: u64,
    /// Virtual time of the violation.
    pub at: Instant,
    /// The violated rule, with details.
    pub violation: Violation,
    /// Events at the affected sector, or the last events of the run; oldest first.
    pub history: Vec<String>,
    /// State of shards, devices and connections, for people.
    pub state: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "broken: {}", self.violation.rule)?;
        writeln!(f, "  seed {}, at {} ns: {}", self.seed, self.at.0, self.violation.detail)?;
        if let Some((volume, offset)) = self.violation.place {
            writeln!(f, "  volume {volume}, byte {offset}; events at this sector:")?;
        }
        for line in &self.history {
            writeln!(f, "    {line}")?;
        }
        write!(f, "{}", self.state)
    }
}

/// A violation that concerns no particular sector.
#[must_use]
pub fn violation(rule: &'static str, detail: impl Into<String>) -> Violation {
    Violation { rule, detail: detail.into(), place: None }
}

/// Checks the status of an answer: an error needs an injected cause, and a malformed bio must not
/// succeed. An `overdue` bio may time out: it waited for long, or its device does not answer.
///
/// # Errors
/// The rule that the answer violates.
pub fn check_status(
    scenario: &Scenario,
    bio: &Bio,
    malformed: bool,
    faulty: bool,
    status: Status,
    overdue: bool,
) -> Result<(), Violation> {
    let volume = &scenario.volumes[usize::from(bio.id.volume.0)];
    let detail = || format!("{bio:?} was answered {status:?}");
    if volume.options.read_only && bio.op.is_write() {
        return match status {
            Err(IoError::ReadOnly) => Ok(()),
            _ => Err(violation("a read-only volume rejects changes", detail())),
        };
    }
    if malformed {
        return match status {
            Err(IoError::Invalid | IoError::NoSpace) => Ok(()),
            _ => Err(violation("a malformed bio is rejected", detail())),
        };
    }
    let cached = scenario.is_cached(bio.id.volume);
    let Err(error) = status else {
        return if cached { Ok(()) } else { check_success(scenario, bio, faulty) };
    };
    let device = &scenario.devices[usize::from(volume.device.0)];
    let (faults, queue) = (&device.faults, &device.config.queue);
    let waits_for_flush = bio.op == Op::Flush || bio.flags.contains(BioFlags::FUA);
    // A cache merges blocks of several bios, and keeps earlier failures for the next flush.
    let by_cache = cached
        && (faulty || waits_for_flush)
        && (faults.any() || device.defect == DiskDefect::ClaimsTooMuch);
    // An overlay has no space where less than a block of a write or of its bits is written; a failed step fails the flush.
    let by_bits = faulty
        && faults.any()
        && scenario.is_overlaid(bio.id.volume)
        && (waits_for_flush && error == IoError::Medium
            || (waits_for_flush || bio.op.is_write()) && error == IoError::NoSpace);
    let caused = match error {
        _ if by_bits => true,
        IoError::Medium | IoError::NoSpace | IoError::TimedOut if by_cache => true,
        IoError::TimedOut if cached && waits_for_flush => true,
        IoError::Medium => {
            faulty
                && (bio.op != Op::Flush && (faults.medium > 0 || faults.nothing > 0)
                    || bio.op.has_data() && device.defect == DiskDefect::ClaimsTooMuch
                    || waits_for_flush && (faults.flush > 0 || faults.late > 0)
                    || faults.is_bad(bio.id.volume, Op::Read, bio.offset, bio.len))
        }
        IoError::NoSpace => faulty && faults.no_space > 0 && bio.op.is_write(),
        IoError::TimedOut => overdue || faulty && faults.late > 0,
        IoError::Unsupported => {
            let unable = !queue.write_zeroes || faults.zeroes > 0;
            bio.op == Op::WriteZeroes && bio.flags.contains(BioFlags::FAST_ZERO) && unable
        }
        IoError::NoMemory => scenario.tight && faulty,
        IoError::Invalid
        | IoError::ReadOnly
        | IoError::Busy
        | IoError::ShutDown
        | IoError::NotFlushed => false,
    };
    if caused {
        return Ok(());
    }
    Err(violation("every error has an injected cause", detail()))
}

fn check_success(scenario: &Scenario, bio: &Bio, faulty: bool) -> Result<(), Violation> {
    let device = scenario.volumes[usize::from(bio.id.volume.0)].device;
    let device = &scenario.devices[usize::from(device.0)];
    if faulty && device.faults.is_bad(bio.id.volume, bio.op, bio.offset, bio.len) {
        return Err(violation(
            "an error is never lost",
            format!("{bio:?} touches the bad range and succeeded"),
        ));
    }
    let fast = bio.op == Op::WriteZeroes && bio.flags.contains(BioFlags::FAST_ZERO);
    if fast && !device.config.queue.write_zeroes {
        return Err(violation(
            "FAST_ZERO is fast or rejected",
            format!("{bio:?} succeeded on a device that cannot zero"),
        ));
    }
    Ok(())
}

/// Checks that an idle shard holds no slots, requests, tags or leases.
///
/// # Errors
/// The leaked resource.
pub fn check_idle(scenario: &Scenario, shard: &Shard, number: u16) -> Result<(), Violation> {
    const RULE: &str = "an idle shard holds no resources";
    if shard.room() != scenario.bios_max {
        let detail =
            format!("shard {number} has room for {} of {} bios", shard.room(), scenario.bios_max);
        return Err(violation(RULE, detail));
    }
    if !shard.is_quiet() {
        return Err(violation(RULE, format!("shard {number} is not quiet")));
    }
    for (index, device) in scenario.devices.iter().enumerate() {
        let id = DeviceId(index as u16);
        // The current value, which may have been changed since the start.
        let all = shard.tag_options(id).map_or(device.config.queue.nr_requests, |tags| tags.depth);
        if let Some(free) = shard.tags_free(id)
            && free != all
        {
            let detail = format!("device {index} on shard {number} has {free} of {all} tags free");
            return Err(violation(RULE, detail));
        }
        if let Some(leased) = shard.tags_leased(id)
            && leased != 0
        {
            let detail =
                format!("shard {number} still holds {leased} leased tags of device {index}");
            return Err(violation(RULE, detail));
        }
    }
    Ok(())
}
