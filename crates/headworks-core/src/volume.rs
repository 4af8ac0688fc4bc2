//! A volume: the disk that users see. Checks a bio before anything else looks at it.
//!
//! Decides bounds, alignment, read-only and what a discard may touch. What passes is within the volume, aligned, not empty,
//! and allowed; everything below may rely on that. Read-only is enforced here whatever the client believes of its flags.

use crate::bio::{Bio, Op};
use crate::error::{IoError, Status};
use crate::options::VolumeOptions;

/// Checks `bio`, trims a discard; `block_size` is what offsets and lengths must be multiples of, `granularity` the device's for
/// discards. Some: that is the answer, at once. (In place:
/// a verdict that carried the bio would be written narrow and read wide, which stalls.)
pub(crate) fn check(
    options: &VolumeOptions,
    block_size: u32,
    granularity: u32,
    bio: &mut Bio,
) -> Option<Status> {
    if options.read_only && bio.op.is_write() {
        return Some(Err(IoError::ReadOnly));
    }
    if bio.op == Op::Flush {
        return None;
    }
    let end = bio.offset.checked_add(u64::from(bio.len));
    if end.is_none_or(|end| end > options.size) {
        return Some(Err(beyond(bio.op)));
    }
    let misaligned = (bio.offset | u64::from(bio.len)) & (u64::from(block_size) - 1) != 0;
    match bio.op {
        // Advisory and rounded inward, so that what the client still needs is never touched.
        Op::Discard => trim(bio, granularity.max(block_size)),
        _ if misaligned || bio.len == 0 => Some(Err(IoError::Invalid)),
        _ => None,
    }
}

/// The answer to what ends beyond the volume. As NBD has it: who brings something finds no space for it, who takes something away
/// is wrong as a reader is.
pub(crate) fn beyond(op: Op) -> IoError {
    if matches!(op, Op::Write | Op::WriteZeroes) { IoError::NoSpace } else { IoError::Invalid }
}

fn trim(bio: &mut Bio, granularity: u32) -> Option<Status> {
    let granularity = u64::from(granularity);
    let start = bio.offset.next_multiple_of(granularity);
    let end = bio.end() & !(granularity - 1);
    if start >= end {
        return Some(Ok(()));
    }
    (bio.offset, bio.len) = (start, (end - start) as u32);
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{ErrorPolicy, WriteMode};

    const OPTIONS: VolumeOptions = VolumeOptions {
        size: 1 << 20,
        read_only: false,
        block_size: 512,
        mode: WriteMode::Writeback,
        on_error: ErrorPolicy::Hold,
    };

    fn check_one(op: Op, offset: u64, len: u32) -> Result<(u64, u32), Status> {
        let mut bio = Bio { op, offset, len, ..Bio::default() };
        check(&OPTIONS, 512, 4096, &mut bio).map_or(Ok((bio.offset, bio.len)), Err)
    }

    #[test]
    fn the_last_block_is_inside_and_the_next_is_not() {
        let last = (1 << 20) - 512;
        assert_eq!(check_one(Op::Read, last, 512), Ok((last, 512)));
        assert_eq!(check_one(Op::Read, last, 1024), Err(Err(IoError::Invalid)));
        assert_eq!(check_one(Op::Write, 1 << 20, 512), Err(Err(IoError::NoSpace)));
        assert_eq!(check_one(Op::Write, u64::MAX - 511, 512), Err(Err(IoError::NoSpace)));
        assert_eq!(check_one(Op::WriteZeroes, u64::MAX, 2), Err(Err(IoError::NoSpace)));
        assert_eq!(check_one(Op::Discard, u64::MAX, 2), Err(Err(IoError::Invalid)));
    }

    #[test]
    fn misaligned_and_empty_are_refused() {
        for (offset, len) in [(1, 512), (0, 511), (0, 0)] {
            assert_eq!(check_one(Op::Read, offset, len), Err(Err(IoError::Invalid)));
            assert_eq!(check_one(Op::WriteZeroes, offset, len), Err(Err(IoError::Invalid)));
        }
    }

    #[test]
    fn a_discard_is_rounded_inward_and_may_vanish() {
        assert_eq!(check_one(Op::Discard, 100, 9000), Ok((4096, 4096)));
        assert_eq!(check_one(Op::Discard, 100, 8000), Err(Ok(())));
        assert_eq!(check_one(Op::Discard, 0, 0), Err(Ok(())));
    }

    #[test]
    fn read_only_refuses_what_writes_and_lets_the_rest_pass() {
        let options = VolumeOptions { read_only: true, ..OPTIONS };
        for op in Op::ALL {
            let answer = check(&options, 512, 4096, &mut Bio { op, len: 512, ..Bio::default() });
            assert_eq!(answer == Some(Err(IoError::ReadOnly)), op.is_write());
        }
    }
}
