//! `error:` makes a device fail, to see how what is above copes.
//!
//! A command *matches* if its operation is the chosen one and it touches the chosen range (a flush touches every range but
//! is in none: with a range given it never matches). The first `after` matching commands pass; of the others each fails with
//! probability `rate`, until `count` have failed. What fails is not given to the device below: nothing was moved.
//!
//! EAGAIN is special: the device refused and did not start, so the queue tries again and no user sees it. At a rate of 100 %
//! without a count it retries without end.
//!
//! What reaches a device is what the queue made of the users' requests: merged requests fail as one, and are then tried again
//! in their parts, which are commands of their own and are drawn for again.

use std::ops::Range;

use headworks_core::prng::Prng;
use headworks_core::{Instant, IoError, Op};

use headworks::{Command, Filter};

use crate::probability::Probability;

/// What fails, how often, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorOptions {
    /// How often a matching command fails.
    pub rate: Probability,
    /// How it fails; `Busy` is a refusal.
    pub error: IoError,
    /// Which operation; `None` is every one.
    pub op: Option<Op>,
    /// Commands that touch these bytes of the volume; `None` is all, and flushes.
    pub range: Option<Range<u64>>,
    /// So many matching commands pass first.
    pub after: u64,
    /// So many fail at most.
    pub count: u64,
    /// Of the random draws.
    pub seed: u64,
}

impl Default for ErrorOptions {
    /// Every command fails with EIO.
    fn default() -> Self {
        Self {
            rate: Probability::ALWAYS,
            error: IoError::Medium,
            op: None,
            range: None,
            after: 0,
            count: u64::MAX,
            seed: 1,
        }
    }
}

/// Lets commands of a [`FilterDevice`](headworks::FilterDevice) fail.
pub struct ErrorFilter {
    options: ErrorOptions,
    prng: Prng,
    /// Matching commands that still pass.
    passing: u64,
    /// Commands that may still fail.
    failing: u64,
}

impl ErrorFilter {
    /// A filter that has seen no command yet.
    #[must_use]
    pub fn new(options: ErrorOptions) -> Self {
        Self {
            prng: Prng::new(options.seed),
            passing: options.after,
            failing: options.count,
            options,
        }
    }

    fn matches(&self, command: &Command) -> bool {
        let op = self.options.op.is_none_or(|op| op == command.op);
        let touches = |range: &Range<u64>| {
            let end = command.offset.saturating_add(u64::from(command.len));
            command.op != Op::Flush && command.offset < range.end && range.start < end
        };
        op && self.options.range.as_ref().is_none_or(touches)
    }

    fn fails(&mut self, command: &Command) -> bool {
        if self.failing == 0 || !self.matches(command) {
            return false;
        }
        if self.passing > 0 {
            self.passing -= 1;
            return false;
        }
        let fails = self.options.rate.draw(&mut self.prng);
        self.failing -= u64::from(fails);
        fails
    }
}

impl Filter for ErrorFilter {
    fn command(&mut self, _: Instant, command: &Command) -> Result<(), IoError> {
        if self.fails(command) { Err(self.options.error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DelayDevice, DelayOptions};
    use headworks::{CommandBatch, FilterDevice, MemDevice, NullDevice};
    use headworks_core::{BioFlags, RequestId, VolumeId};
    use headworks_testing::Bench;

    fn bench(options: ErrorOptions) -> Bench<FilterDevice<ErrorFilter>> {
        Bench::new(FilterDevice::new(ErrorFilter::new(options), Box::new(NullDevice)))
    }

    fn fails(bench: &mut Bench<FilterDevice<ErrorFilter>>, op: Op, offset: u64, len: u32) -> bool {
        let done = bench.run(op, BioFlags::NONE, offset, len);
        assert_eq!(done.transferred, if done.status.is_ok() { len } else { 0 });
        done.status.is_err()
    }

    #[test]
    fn only_selected_operation_fails_with_selected_error() {
        for error in [IoError::Medium, IoError::NoSpace, IoError::Busy, IoError::Unsupported] {
            for op in Op::ALL {
                let mut bench =
                    bench(ErrorOptions { error, op: Some(op), ..ErrorOptions::default() });
                for other in Op::ALL {
                    let status = bench.run(other, BioFlags::NONE, 0, 512).status;
                    assert_eq!(status, if other == op { Err(error) } else { Ok(()) });
                }
            }
        }
    }

    #[test]
    fn one_overlapping_byte_fails_a_command_and_flush_succeeds() {
        let mut bench = bench(ErrorOptions { range: Some(4096..8192), ..ErrorOptions::default() });
        for (offset, len, expected) in [
            (0, 4096, false),
            (0, 4097, true),
            (8191, 1, true),
            (8192, 4096, false),
            (0, 65536, true),
            (5000, 10, true),
        ] {
            for op in [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes] {
                assert_eq!(fails(&mut bench, op, offset, len), expected, "{offset} + {len}");
            }
        }
        assert!(!fails(&mut bench, Op::Flush, 0, 0));
    }

    #[test]
    fn after_and_count_limit_the_failures() {
        let mut bench = bench(ErrorOptions {
            op: Some(Op::Write),
            after: 2,
            count: 3,
            ..ErrorOptions::default()
        });
        let mut failures = Vec::new();
        for _ in 0..8 {
            assert!(!fails(&mut bench, Op::Read, 0, 512), "reads do not count");
            failures.push(fails(&mut bench, Op::Write, 0, 512));
        }
        assert_eq!(failures, [false, false, true, true, true, false, false, false]);
    }

    #[test]
    fn failure_rate_matches_option_and_repeats_with_seed() {
        let run = |seed| {
            let mut bench = bench(ErrorOptions {
                rate: Probability::from_billionths(50_000_000).unwrap(),
                seed,
                ..ErrorOptions::default()
            });
            (0..4000).map(|_| fails(&mut bench, Op::Read, 0, 512)).collect::<Vec<_>>()
        };
        let first = run(1);
        let count = first.iter().filter(|&&failed| failed).count();
        assert!((140..260).contains(&count), "{count}");
        assert_eq!(first, run(1));
        assert_ne!(first, run(2));
    }

    #[test]
    fn failed_command_moves_no_data_and_rest_of_batch_completes() {
        let mem = MemDevice::new(1 << 20).unwrap();
        let options =
            ErrorOptions { range: Some(512..1024), op: Some(Op::Write), ..ErrorOptions::default() };
        let mut bench = Bench::new(FilterDevice::new(ErrorFilter::new(options), Box::new(mem)));
        bench.buffer()[..1536].fill(7);
        let base = bench.buffer().as_mut_ptr();
        let commands: Vec<Command> = (0..3)
            .map(|index| Command {
                id: RequestId { slot: index, generation: 0 },
                volume: VolumeId(0),
                op: Op::Write,
                flags: BioFlags::NONE,
                offset: u64::from(index) * 512,
                len: 512,
                first_span: index,
                spans: 1,
            })
            .collect();
        // SAFETY: inside the bench's buffer.
        let spans =
            [0, 512, 1024].map(|at| unsafe { headworks::driver::Span::new(base.add(at), 512) });
        bench.submit_batch(CommandBatch { commands: &commands, spans: &spans });
        let mut done = bench.drain();
        done.sort_by_key(|completion| completion.id);
        let status: Vec<_> = done.iter().map(|completion| completion.status).collect();
        assert_eq!(status, [Ok(()), Err(IoError::Medium), Ok(())]);
        bench.run(Op::Read, BioFlags::NONE, 0, 1536);
        let bytes = [0, 511, 512, 1023, 1024, 1535].map(|at| bench.buffer()[at]);
        assert_eq!(bytes, [7, 7, 0, 0, 7, 7]);
    }

    #[test]
    fn time_outs_of_inner_device_are_forwarded() {
        let slow = DelayOptions { wait_ns: [100; Op::COUNT], ..DelayOptions::default() };
        let delay = DelayDevice::new(slow, Box::new(NullDevice));
        let options = ErrorOptions { count: 1, ..ErrorOptions::default() };
        let mut bench = Bench::new(FilterDevice::new(ErrorFilter::new(options), Box::new(delay)));
        let start = bench.now;
        assert!(fails(&mut bench, Op::Read, 0, 512));
        assert_eq!(bench.now, start, "failures complete without delay");
        assert!(!fails(&mut bench, Op::Read, 0, 512));
        assert_eq!(bench.now.since(start), 100);
    }
}
