//! Checks of a bio against its volume: bounds, alignment, read-only, and the range of a discard.
//!
//! Invariant: a bio that passes lies within the volume, is aligned, not empty, and allowed.

use crate::bio::{Bio, Op};
use crate::error::{IoError, Status};
use crate::options::VolumeOptions;

/// Checks `bio` and trims a discard in place; returns the status if the bio ends here.
///
/// Offsets and lengths must be multiples of `block_size`; a discard is rounded inward to `granularity`, too. A result that
/// carried the bio would be written in narrow stores and read in wide loads, which stalls.
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
        // Advisory; rounded inward, so that no byte outside the range is lost.
        Op::Discard => trim(bio, granularity.max(block_size)),
        _ if misaligned || bio.len == 0 => Some(Err(IoError::Invalid)),
        _ => None,
    }
}

/// The error for a range that ends beyond the volume, as in NBD: no space for writes of data or zeros, invalid for the rest.
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
    fn bounds_end_after_the_last_block() {
        let last = (1 << 20) - 512;
        assert_eq!(check_one(Op::Read, last, 512), Ok((last, 512)));
        assert_eq!(check_one(Op::Read, last, 1024), Err(Err(IoError::Invalid)));
        assert_eq!(check_one(Op::Write, 1 << 20, 512), Err(Err(IoError::NoSpace)));
        assert_eq!(check_one(Op::Write, u64::MAX - 511, 512), Err(Err(IoError::NoSpace)));
        assert_eq!(check_one(Op::WriteZeroes, u64::MAX, 2), Err(Err(IoError::NoSpace)));
        assert_eq!(check_one(Op::Discard, u64::MAX, 2), Err(Err(IoError::Invalid)));
    }

    #[test]
    fn misaligned_and_empty_bios_are_invalid() {
        for (offset, len) in [(1, 512), (0, 511), (0, 0)] {
            assert_eq!(check_one(Op::Read, offset, len), Err(Err(IoError::Invalid)));
            assert_eq!(check_one(Op::WriteZeroes, offset, len), Err(Err(IoError::Invalid)));
        }
    }

    #[test]
    fn discard_is_rounded_inward_and_may_be_empty() {
        assert_eq!(check_one(Op::Discard, 100, 9000), Ok((4096, 4096)));
        assert_eq!(check_one(Op::Discard, 100, 8000), Err(Ok(())));
        assert_eq!(check_one(Op::Discard, 0, 0), Err(Ok(())));
    }

    #[test]
    fn read_only_volume_rejects_every_write() {
        let options = VolumeOptions { read_only: true, ..OPTIONS };
        for op in Op::ALL {
            let answer = check(&options, 512, 4096, &mut Bio { op, len: 512, ..Bio::default() });
            assert_eq!(answer == Some(Err(IoError::ReadOnly)), op.is_write());
        }
    }
}
