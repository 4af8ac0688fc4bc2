//! The device's depth, as the control in [`crate::depth`] finds it: measured at completions, applied where requests wait for the
//! device and to the length of commands.
//!
//! The limit holds where shares decide: at the gate, or in an elevator that owns shares and limits the device. What is beyond that
//! point is served in the order of a drive, whatever its share.
//!
//! Invariant: without a control the limit is `hw_inflight_kb`, and commands are as long as the device allows.

use super::Queue;
use crate::depth::{COMMAND_COST, CommandClass, DepthControl, SMALL_MAX};
use crate::options::{DepthMode, Scheduler};
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

impl Queue {
    /// Begins anew with the limits of the options.
    pub(super) fn set_depth(&mut self) {
        self.limits = RequestLimits::new(&self.options);
        self.command_limits = self.limits;
        self.gate.set_limits(&self.options);
        // A policy that grants tag by tag knows no limit on bytes: it would be asked again without end.
        let auto = self.options.hw_depth == DepthMode::Auto
            && self.options.hw_inflight_kb == 0
            && (!self.gate.is_open() || self.waiting.limits_device())
            && self.gate.reuses_tags();
        self.depth = auto.then(|| DepthControl::new(self.limits.max_bytes));
        if let Some(depth) = self.depth.as_mut().filter(|_| self.gate.is_open()) {
            depth.set_early();
        }
        self.apply_depth();
    }

    /// Counts a command that the device has answered.
    #[inline]
    pub(super) fn measure(&mut self, now: Instant, request: &Request) {
        if let Some(depth) = &mut self.depth
            && depth.is_measuring()
        {
            let kind = class_of(request, depth.makes_pieces());
            depth.on_complete(kind, request.len, now.since(request.sent));
            if request.len > SMALL_MAX {
                depth.on_large(now);
            }
            if kind == CommandClass::Piece && request.parent == NIL {
                depth.on_made(request.stamps[0], request.len);
            }
        }
    }

    /// Notes a request of `bytes` that asks for tags, for the control. One that merges with a waiting request is noted with it,
    /// when that ends.
    #[inline]
    pub(super) fn note_large(&mut self, now: Instant, bytes: u32) {
        if bytes > SMALL_MAX
            && let Some(depth) = &mut self.depth
        {
            depth.on_large(now);
        }
    }

    /// Ends a batch for the control, and applies what it decides.
    #[inline]
    pub(super) fn adapt_depth(&mut self, now: Instant) {
        let Some(depth) = &mut self.depth else {
            return;
        };
        if !depth.is_due(now) {
            return;
        }
        let seeks = self.options.rotational || self.gate.may_seek() && !depth.is_fast();
        depth.set_seeks(seeks, self.options.scheduler == Scheduler::MqDeadline);
        let (admitted, bound) = match self.gate.is_open() {
            true => self.waiting.take_device_load(),
            false => (self.gate.admitted(), self.gate.take_bound()),
        };
        if depth.end_sample(now, admitted, bound) {
            self.apply_depth();
        }
    }

    /// Ends a window of the latency targets if it is time, and applies what their control decides.
    #[inline]
    pub(super) fn adapt_targets(&mut self, now: Instant) {
        if self.gate.adapt_targets(now) {
            self.apply_depth();
        }
    }

    /// Applies the limit and the longest command of the depth control and of the latency targets. A command of half the limit on
    /// bulk: with longer ones a small request would wait for one that is longer than the limit.
    pub(super) fn apply_depth(&mut self) {
        let worth = self.gate.device_cost().bytes_of_a_seek();
        let by_depth = self.depth.as_ref().map_or(u32::MAX, DepthControl::command_max);
        let by_targets = self.gate.bulk_limit().map_or(u32::MAX, |limit| {
            (limit / 2).clamp(COMMAND_MIN.into(), u32::MAX.into()) as u32
        });
        let command_max = by_depth.min(by_targets).max(worth).min(self.limits.max_bytes);
        self.command_limits.max_bytes = command_max;
        let whole = command_max == self.limits.max_bytes;
        match &self.depth {
            Some(depth) if !self.gate.is_open() => {
                let limit = depth.limit_for(command_max);
                self.gate.set_limit(limit, COMMAND_COST, command_max, whole);
            }
            _ => self.gate.set_command_max(command_max, whole),
        }
        if self.gate.is_open() {
            let limit = self.depth.as_ref().map_or(u64::MAX, DepthControl::limit);
            self.waiting.limit_device(limit, COMMAND_COST);
        }
        assert!(self.command_limits.max_bytes > 0, "a command has a length");
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
