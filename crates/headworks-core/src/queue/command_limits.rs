//! The limits on a device's commands: those that the device has, and the control ([`crate::depth`]) that may keep fewer and shorter
//! ones in the device. Completions are measured; the limit is applied where requests wait for the device, and to the length of
//! commands.
//!
//! The limit holds where shares decide: at the gate, or in an elevator that owns shares and limits the device. What is beyond that
//! point is served in the order of a drive, whatever its share.
//!
//! Invariants: without a control the limit is `hw_inflight_kb`, and commands are as long as the device allows; a command is never
//! longer than that, and has a length.

use super::dispatch_queue::DispatchQueue;
use super::gate::Gate;
use crate::depth::{COMMAND_COST, CommandClass, DepthControl, DepthStats, SMALL_MAX};
use crate::options::{DepthMode, QueueOptions, Scheduler};
use crate::request::Request;
use crate::request_limits::RequestLimits;
use crate::slab::NIL;
use crate::time::Instant;

/// The shortest command that a latency target asks for: shorter ones cost throughput and bring the target no nearer.
const COMMAND_MIN: u32 = 32 << 10;

/// Returns how a command is counted. While commands are cut, write-out and requests that merged are as long as commands may be: pieces, with
/// `made`. Where none is cut their length says nothing of the control.
fn class_of(request: &Request, made: bool) -> CommandClass {
    let small = request.len <= SMALL_MAX;
    // Small requests that merged are a stream, which nothing delays.
    let alone = request.bios.count == 1 && request.is_sync();
    match request.parent {
        NIL if small && alone => CommandClass::Small,
        NIL if small || alone || !made => CommandClass::Large,
        _ => CommandClass::Piece,
    }
}

/// The limits on the commands of a device.
#[derive(Debug)]
pub(super) struct CommandLimits {
    /// What the device allows.
    device: RequestLimits,
    /// The limits of new commands: those of the device, or less while commands are cut.
    current: RequestLimits,
    control: Option<DepthControl>,
}

impl CommandLimits {
    /// Creates the limits of `options`, without a control: [`CommandLimits::reset`] makes it.
    pub fn new(options: &QueueOptions) -> Self {
        let device = RequestLimits::new(options);
        Self { device, current: device, control: None }
    }

    /// Returns what the device allows.
    #[inline]
    pub fn device(&self) -> &RequestLimits {
        &self.device
    }

    /// Returns the limits of new commands.
    #[inline]
    pub fn current(&self) -> &RequestLimits {
        &self.current
    }

    /// Returns true for a request that one command cannot carry. Merged requests are within the limits of their time and are
    /// not split, though the longest command may have become shorter.
    pub fn must_split(&self, request: &Request) -> bool {
        let limits = &self.current;
        request.op.has_data()
            && request.parent == NIL
            && request.bios.count <= 1
            && (request.len > limits.max_bytes || request.bios.segments > limits.max_segments)
    }

    /// Returns what the control has found, if there is one.
    pub fn stats(&self) -> Option<DepthStats> {
        self.control.as_ref().map(DepthControl::stats)
    }

    /// Begins anew with the limits of the options.
    pub fn reset(&mut self, options: &QueueOptions, gate: &mut Gate, waiting: &mut DispatchQueue) {
        self.device = RequestLimits::new(options);
        self.current = self.device;
        gate.set_limits(options);
        // A policy that grants tag by tag knows no limit on bytes: it would be asked again without end.
        let auto = options.hw_depth == DepthMode::Auto
            && options.hw_inflight_kb == 0
            && (!gate.is_open() || waiting.limits_device())
            && gate.reuses_tags();
        self.control = auto.then(|| DepthControl::new(self.device.max_bytes));
        if let Some(control) = self.control.as_mut().filter(|_| gate.is_open()) {
            control.set_early();
        }
        self.apply(gate, waiting);
    }

    /// Counts a command that the device has answered.
    #[inline]
    pub fn measure(&mut self, now: Instant, request: &Request) {
        if let Some(control) = &mut self.control
            && control.is_measuring()
        {
            let kind = class_of(request, control.makes_pieces());
            control.on_complete(kind, request.len, now.since(request.sent));
            if request.len > SMALL_MAX {
                control.on_large(now);
            }
            if kind == CommandClass::Piece && request.parent == NIL {
                control.on_made(request.stamps[0], request.len);
            }
        }
    }

    /// Notes a request of `bytes` that asks for tags, for the control. One that merges with a waiting request is noted with it,
    /// when that ends.
    #[inline]
    pub fn note_large(&mut self, now: Instant, bytes: u32) {
        if bytes > SMALL_MAX
            && let Some(control) = &mut self.control
        {
            control.on_large(now);
        }
    }

    /// Ends a batch for the control, and applies what it decides.
    #[inline]
    pub fn adapt(
        &mut self,
        now: Instant,
        options: &QueueOptions,
        gate: &mut Gate,
        waiting: &mut DispatchQueue,
    ) {
        let Some(control) = &mut self.control else {
            return;
        };
        if !control.is_due(now) {
            return;
        }
        let seeks = options.rotational || gate.may_seek() && !control.is_fast();
        control.set_seeks(seeks, options.scheduler == Scheduler::MqDeadline);
        let (admitted, bound) = match gate.is_open() {
            true => waiting.take_device_load(),
            false => (gate.admitted(), gate.take_bound()),
        };
        if control.end_sample(now, admitted, bound) {
            self.apply(gate, waiting);
        }
    }

    /// Notes the end of a batch that left the queue busy or empty.
    #[inline]
    pub fn on_batch(&mut self, now: Instant, is_busy: bool) {
        if let Some(control) = &mut self.control {
            control.on_batch(now, is_busy);
        }
    }

    /// Ends a window of the latency targets if it is time, and applies what their control decides.
    #[inline]
    pub fn adapt_to_targets(&mut self, now: Instant, gate: &mut Gate, waiting: &mut DispatchQueue) {
        if gate.adapt_targets(now) {
            self.apply(gate, waiting);
        }
    }

    /// Applies the limit and the longest command of the depth control and of the latency targets. A command of half the limit on
    /// bulk: with longer ones a small request would wait for one that is longer than the limit.
    pub fn apply(&mut self, gate: &mut Gate, waiting: &mut DispatchQueue) {
        let worth = gate.device_cost().bytes_of_a_seek();
        let by_depth = self.control.as_ref().map_or(u32::MAX, DepthControl::command_max);
        let by_targets = gate.bulk_limit().map_or(u32::MAX, |limit| {
            (limit / 2).clamp(COMMAND_MIN.into(), u32::MAX.into()) as u32
        });
        let command_max = by_depth.min(by_targets).max(worth).min(self.device.max_bytes);
        self.current.max_bytes = command_max;
        let whole = command_max == self.device.max_bytes;
        match &self.control {
            Some(control) if !gate.is_open() => {
                let limit = control.limit_for(command_max);
                gate.set_limit(limit, COMMAND_COST, command_max, whole);
            }
            _ => gate.set_command_max(command_max, whole),
        }
        if gate.is_open() {
            let limit = self.control.as_ref().map_or(u64::MAX, DepthControl::limit);
            waiting.limit_device(limit, COMMAND_COST);
        }
        assert!(self.current.max_bytes > 0, "a command has a length");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::Op;
    use crate::request::BioChain;

    #[test]
    fn merged_requests_and_write_out_are_pieces_only_while_commands_are_cut() {
        let bios = |count| BioChain { count, ..BioChain::EMPTY };
        let read = Request { op: Op::Read, len: 128 << 10, bios: bios(1), ..Request::default() };
        let merged = Request { bios: bios(2), ..read.clone() };
        let write_out = Request { op: Op::Write, ..read.clone() };
        let small = Request { len: SMALL_MAX, ..read.clone() };
        let piece = Request { parent: 1, ..read.clone() };
        let stream = Request { len: SMALL_MAX, ..merged.clone() };
        assert!(!write_out.is_sync() && read.is_sync());
        for cut in [false, true] {
            let made = if cut { CommandClass::Piece } else { CommandClass::Large };
            assert_eq!([&merged, &write_out].map(|request| class_of(request, cut)), [made; 2]);
            let others = [&small, &read, &stream, &piece].map(|request| class_of(request, cut));
            let [small, large, piece] =
                [CommandClass::Small, CommandClass::Large, CommandClass::Piece];
            assert_eq!(others, [small, large, large, piece]);
        }
    }
}
