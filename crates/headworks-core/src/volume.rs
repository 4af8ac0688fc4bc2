//! A volume: the disk that users see. Checks a bio before anything else looks at it.
//!
//! Decides bounds, alignment, read-only and what a discard may touch. What passes is within the volume, aligned, not empty,
//! and allowed; everything below may rely on that. Read-only is enforced here whatever the client believes of its flags.

use crate::bio::{Bio, Op};
use crate::error::{IoError, Status};
use crate::options::VolumeOptions;

/// What becomes of a bio at the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes down the path, perhaps trimmed.
    Pass(Bio),
    /// It is answered at once.
    Answer(Status),
}

/// Checks `bio`; `granularity` is the device's for discards.
pub(crate) fn check(options: &VolumeOptions, granularity: u32, bio: Bio) -> Verdict {
    if options.read_only && bio.op.is_write() {
        return Verdict::Answer(Err(IoError::ReadOnly));
    }
    if bio.op == Op::Flush {
        return Verdict::Pass(bio);
    }
    let inside = bio
        .offset
        .checked_add(u64::from(bio.len))
        .is_some_and(|end| end <= options.size);
    if !inside {
        let error = if bio.op.is_write() {
            IoError::NoSpace
        } else {
            IoError::Invalid
        };
        return Verdict::Answer(Err(error));
    }
    let misaligned = (bio.offset | u64::from(bio.len)) & (u64::from(options.block_size) - 1) != 0;
    match bio.op {
        // Advisory and rounded inward, so that what the client still needs is never touched.
        Op::Discard => trim(bio, granularity.max(options.block_size)),
        _ if misaligned || bio.len == 0 => Verdict::Answer(Err(IoError::Invalid)),
        _ => Verdict::Pass(bio),
    }
}

fn trim(bio: Bio, granularity: u32) -> Verdict {
    let granularity = u64::from(granularity);
    let start = bio.offset.next_multiple_of(granularity);
    let end = bio.end() & !(granularity - 1);
    if start >= end {
        return Verdict::Answer(Ok(()));
    }
    Verdict::Pass(Bio {
        offset: start,
        len: (end - start) as u32,
        ..bio
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPTIONS: VolumeOptions = VolumeOptions {
        size: 1 << 20,
        read_only: false,
        block_size: 512,
    };

    fn verdict(op: Op, offset: u64, len: u32) -> Verdict {
        check(
            &OPTIONS,
            4096,
            Bio {
                op,
                offset,
                len,
                ..Bio::default()
            },
        )
    }

    #[test]
    fn the_last_block_is_inside_and_the_next_is_not() {
        let last = (1 << 20) - 512;
        assert!(matches!(verdict(Op::Read, last, 512), Verdict::Pass(_)));
        assert_eq!(
            verdict(Op::Read, last, 1024),
            Verdict::Answer(Err(IoError::Invalid))
        );
        assert_eq!(
            verdict(Op::Write, 1 << 20, 512),
            Verdict::Answer(Err(IoError::NoSpace))
        );
        assert_eq!(
            verdict(Op::Write, u64::MAX - 511, 512),
            Verdict::Answer(Err(IoError::NoSpace))
        );
        assert_eq!(
            verdict(Op::Discard, u64::MAX, 2),
            Verdict::Answer(Err(IoError::NoSpace))
        );
    }

    #[test]
    fn misaligned_and_empty_are_refused() {
        for (offset, len) in [(1, 512), (0, 511), (0, 0)] {
            assert_eq!(
                verdict(Op::Read, offset, len),
                Verdict::Answer(Err(IoError::Invalid))
            );
            assert_eq!(
                verdict(Op::WriteZeroes, offset, len),
                Verdict::Answer(Err(IoError::Invalid))
            );
        }
    }

    #[test]
    fn a_discard_is_rounded_inward_and_may_vanish() {
        let Verdict::Pass(bio) = verdict(Op::Discard, 100, 9000) else {
            panic!("it covers a block")
        };
        assert_eq!((bio.offset, bio.len), (4096, 4096));
        assert_eq!(verdict(Op::Discard, 100, 8000), Verdict::Answer(Ok(())));
        assert_eq!(verdict(Op::Discard, 0, 0), Verdict::Answer(Ok(())));
    }

    #[test]
    fn read_only_refuses_what_writes_and_lets_the_rest_pass() {
        let options = VolumeOptions {
            read_only: true,
            ..OPTIONS
        };
        for op in Op::ALL {
            let verdict = check(
                &options,
                4096,
                Bio {
                    op,
                    len: 512,
                    ..Bio::default()
                },
            );
            assert_eq!(
                verdict == Verdict::Answer(Err(IoError::ReadOnly)),
                op.is_write()
            );
        }
    }
}
