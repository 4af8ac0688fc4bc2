//! What requests cost, and to whom it is charged.
//!
//! Invariant: what a request is charged when it is admitted is taken back, corrected or kept, never twice.

use super::{Gate, cost_bytes};
use crate::bio::{BioId, ExportId};
use crate::depth::SMALL_MAX;
use crate::device_cost::CommandKind;
use crate::request::Request;

impl Gate {
    /// Corrects what the last grant's share was charged to what the request costs now; `light` is that of the grant.
    pub fn correct_charge(&mut self, kind: CommandKind, commands: u32, bytes: u32, light: bool) {
        let cost = self.cost(kind, commands, bytes);
        self.tags.correct_charge(cost);
        self.passing.on_grant(light, self.is_full(), cost);
    }

    /// Charges a connection for a command beyond those that its requests were granted for.
    pub fn charge_extra(
        &mut self,
        export: ExportId,
        connection: u32,
        kind: CommandKind,
        bytes: u32,
    ) {
        if self.waiters() > 0 {
            let cost = self.cost(kind, 1, bytes);
            self.tags.charge(self.shares.tenant(export), export, connection, cost);
        }
    }

    /// Charges a connection for device time that was measured.
    pub fn charge_time(&mut self, export: ExportId, connection: u32, time_ns: u64) {
        let cost = self.share.cost_of_time(time_ns);
        self.tags.charge(self.shares.tenant(export), export, connection, cost);
    }

    /// Returns what a request costs its shares.
    #[inline]
    pub fn cost(&self, kind: CommandKind, commands: u32, bytes: u32) -> u64 {
        self.share.cost(self.costs.cost(), kind, commands, bytes)
    }

    /// Charges a request of a bio of `whole` bytes for its command, if what is in flight is limited.
    #[inline]
    pub fn charge(&mut self, request: &mut Request, whole: u32) {
        if whole > SMALL_MAX {
            self.passing.on_piece();
        }
        if self.limits.bytes_max < u64::MAX || self.bulk.is_on() {
            let cost = cost_bytes(request.op, request.len) + self.limits.command_cost;
            request.charge.bytes += cost;
            self.admitted_bytes.add(cost.into());
            if self.bulk.is_on() {
                self.bulk.on_load(self.admitted_bytes.get());
                self.bulk.charge(request, self.shares.target_us(request.export));
            }
        }
    }

    /// Charges a request whose command grew by `bytes`.
    pub fn charge_merge(&mut self, request: &mut Request, bytes: u32) {
        if self.limits.bytes_max < u64::MAX || self.bulk.is_on() {
            request.charge.bytes += bytes;
            self.admitted_bytes.add(bytes.into());
            if request.charge.bulk {
                self.bulk.charge_more(bytes);
            }
        }
    }

    /// Returns the bytes of a request that ended or timed out.
    #[inline]
    pub fn uncharge(&mut self, request: &mut Request) {
        if request.charge.bytes > 0 {
            let bytes = std::mem::take(&mut request.charge.bytes);
            self.admitted_bytes.sub(bytes.into());
            if std::mem::take(&mut request.charge.bulk) {
                self.bulk.uncharge(bytes);
            }
        }
    }

    /// Notes where a request lies; returns true if it begins where its connection's last one ended.
    pub fn note_stream(&mut self, id: &BioId, offset: u64, len: u32) -> bool {
        self.streams.note(id.connection, id.volume, offset, len)
    }

    /// Returns true while finished commands are noted to learn their costs.
    #[inline]
    pub fn is_learning(&self) -> bool {
        self.costs.is_open()
    }

    /// Notes a finished command of this kind, or a part of one that is not `whole`; `None` for one that the cost model does not
    /// describe.
    pub fn note_finished(&mut self, kind: Option<CommandKind>, whole: bool, bytes: u32) {
        self.costs.note(kind, whole, bytes);
    }
}
