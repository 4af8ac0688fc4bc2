//! Bios that wait for a limit of their client, its tenant or the shard, where each client has an export of its own: the handles of a program.
//!
//! ```text
//!   client --> inputs --hold--> inputs                    its limits agree, or nothing limits the client
//!                        `----> parked --hold--> inputs   when they do, in the order of the client and the direction
//! ```
//!
//! Invariants: the first parked bio of a client and a direction waits in the tree of limits, and no other; a bio passes none of its client and
//! direction that is parked; nothing is parked before there is a limit.

use std::collections::VecDeque;

use super::{LimitTarget, LimitedIo, Limits, ShardLimits};
use crate::{Bio, Control, ExportConfig, ExportId, Input, Instant, ShardId, TenantId};

/// A setting of a client, of a tenant or of all, checked by the caller.
#[derive(Clone, Copy, Debug)]
pub enum ClientSetting {
    /// The share of a client, valid as [`ExportConfig::validate`] says.
    Share(ExportId, ExportConfig),
    /// The weight of a tenant.
    TenantWeight(TenantId, u16),
    /// Limits, valid as [`Limits::validate`] says.
    Limits(LimitTarget, Limits),
}

/// The limits of a shard's clients, and what waits for them. A client is the connection, and the export, of its number.
pub struct ParkedBios {
    limits: ShardLimits,
    /// By client: reads, and writes.
    parked: Vec<[VecDeque<Bio>; 2]>,
}

impl ParkedBios {
    /// So many clients, at most 4096, with default shares and no limit.
    #[must_use]
    pub fn new(clients: usize) -> Self {
        let mut limits = ShardLimits::new(clients, ShardId(0), 1);
        let weight = ExportConfig::default().weight;
        (0..clients as u16).for_each(|export| limits.put(ExportId(export), ShardId(0), weight));
        Self { limits, parked: vec![Default::default(); clients] }
    }

    /// Applies a setting here, and adds the inputs that apply it to the shard. The next [`ParkedBios::hold`] lets pass what may.
    pub fn apply(&mut self, now: Instant, setting: &ClientSetting, inputs: &mut Vec<Input>) {
        match *setting {
            ClientSetting::Share(client, ref share) => {
                self.limits.set_weight(client, share.weight);
                self.limits.set_tenant(now, client, share.tenant);
                inputs.extend(Control::shares(client, share).map(Input::Control));
            }
            ClientSetting::TenantWeight(tenant, weight) => {
                self.limits.set_tenant_weight(tenant, weight);
                inputs.push(Input::Control(Control::TenantWeight { tenant, weight }));
            }
            ClientSetting::Limits(target, ref limits) => self.limits.set(now, target, limits),
        }
    }

    /// Whether there is, or was, a limit.
    #[inline]
    #[must_use]
    pub fn in_use(&self) -> bool {
        self.limits.in_use()
    }

    /// When a parked bio may pass; none if none is parked.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        self.limits.next_timeout()
    }

    /// Whether nothing of a client is parked.
    #[must_use]
    pub fn is_empty_of(&self, client: u32) -> bool {
        self.parked[client as usize].iter().all(VecDeque::is_empty)
    }

    /// Takes what must wait from new inputs, and adds what waits no more.
    pub fn hold(&mut self, now: Instant, inputs: &mut Vec<Input>) {
        inputs.retain(|input| !matches!(input, Input::Bio(bio) if self.parks(now, bio)));
        while let Some(passed) = self.limits.pop(now) {
            let parked = &mut self.parked[passed.owner as usize][passed.direction as usize];
            inputs.extend(parked.pop_front().map(Input::Bio));
            if let Some(next) = parked.front().and_then(|bio| LimitedIo::of(bio.op, bio.len)) {
                self.limits.wait(now, passed.owner, next);
            }
        }
    }

    /// Parks a bio that its limits hold back.
    fn parks(&mut self, now: Instant, bio: &Bio) -> bool {
        let Some(io) = LimitedIo::of(bio.op, bio.len) else { return false };
        let client = bio.id.connection;
        let parked = &mut self.parked[client as usize][io.direction as usize];
        let gate = self.limits.gate(client, bio.id.export);
        let passes = parked.is_empty() && gate.is_none_or(|it| it.tree.admit(now, it.leaf, io));
        if !passes {
            parked.push_back(*bio);
        }
        !passes
    }

    /// Moves parked bios that `goes` names to the inputs. They pay nothing.
    pub fn release(&mut self, now: Instant, goes: impl Fn(&Bio) -> bool, inputs: &mut Vec<Input>) {
        for (client, directions) in (0..).zip(&mut self.parked) {
            if directions.iter().all(VecDeque::is_empty) {
                continue;
            }
            // The heads wait anew, unless nothing limits the client any more.
            self.limits.forget(now, client);
            let is_limited = self.limits.gate(client, ExportId(client as u16)).is_some();
            for parked in directions {
                parked.retain(|bio| {
                    let stays = is_limited && !goes(bio);
                    if !stays {
                        inputs.push(Input::Bio(*bio));
                    }
                    stays
                });
                let Some(head) = parked.front() else { continue };
                let io = LimitedIo::of(head.op, head.len);
                if let (Some(gate), Some(io)) = (self.limits.gate(client, head.id.export), io) {
                    gate.tree.wait(now, gate.leaf, io);
                }
            }
        }
    }

    /// Forgets a client that sends nothing more, and of which nothing is parked.
    pub fn forget(&mut self, now: Instant, client: u32) {
        assert!(self.is_empty_of(client), "what is parked passes first");
        self.limits.forget(now, client);
    }
}

#[cfg(test)]
mod tests {
    use crate::limits::LimitKind;
    use crate::prng::Prng;
    use crate::{BioId, Op, VolumeId};

    use super::*;

    const CLIENTS: usize = 3;
    const RATE: u64 = 400;

    fn rate(average: u64) -> Limits {
        let mut limits = Limits::default();
        limits.rates[LimitKind::IopsTotal as usize].average = average;
        limits
    }

    fn bio(prng: &mut Prng, sequence: u64) -> Bio {
        let client = prng.below(CLIENTS as u64) as u32;
        let export = ExportId(client as u16);
        let volume = VolumeId(prng.below(2) as u16);
        let op = [Op::Read, Op::Write, Op::Flush][prng.below(3) as usize];
        let len = if op == Op::Flush { 0 } else { 4096 };
        let id = BioId { connection: client, export, volume, sequence };
        Bio { id, op, len, ..Bio::default() }
    }

    /// Each bio passes once, none passes another of its client and direction, and those of the limited client no faster than its rate; whatever
    /// limits change and volumes go meanwhile.
    #[test]
    fn nothing_is_lost_and_nothing_passes_another() {
        let (mut prng, mut parked) = (Prng::new(7), ParkedBios::new(CLIENTS));
        let (mut now, mut inputs) = (Instant(0), Vec::new());
        let (mut next, mut passed) = (0, 0);
        let mut last = [[None; 3]; CLIENTS];
        let (mut since, mut of_limited, mut waited) = (None, 0, 0);
        for _ in 0..20_000 {
            now = now.after(prng.below(2_000_000));
            for _ in 0..prng.below(6) {
                inputs.push(Input::Bio(bio(&mut prng, next)));
                next += 1;
            }
            // A volume that goes takes its bios out of their order.
            let mut is_in_order = true;
            match prng.below(200) {
                0 => {
                    let limits = rate(if since.is_some() { 0 } else { RATE });
                    let target = LimitTarget::Export(ExportId(1));
                    parked.apply(now, &ClientSetting::Limits(target, limits), &mut inputs);
                    since = if since.is_some() { None } else { Some(now) };
                    of_limited = 0;
                }
                1 => {
                    let volume = VolumeId(prng.below(2) as u16);
                    parked.release(now, |bio| bio.id.volume == volume, &mut inputs);
                    let is_of = |bio: &Bio| bio.id.volume == volume;
                    let left = parked.parked.iter().flatten().flatten().filter(|bio| is_of(bio));
                    assert_eq!(left.count(), 0);
                    is_in_order = false;
                }
                _ => {}
            }
            if is_in_order {
                parked.hold(now, &mut inputs);
            }
            for input in inputs.drain(..) {
                let Input::Bio(bio) = input else { panic!("limits are no inputs") };
                let client = bio.id.connection as usize;
                let kind = [Op::Read, Op::Write, Op::Flush].iter().position(|op| *op == bio.op);
                let last = &mut last[client][kind.unwrap()];
                if is_in_order {
                    assert!(last.is_none_or(|last| last < bio.id.sequence));
                    *last = Some(bio.id.sequence);
                }
                passed += 1;
                of_limited += u64::from(client == 1 && bio.op != Op::Flush && is_in_order);
            }
            if let Some(since) = since {
                let most = 1 + (now.since(since) + 4_000_000) * RATE / 1_000_000_000;
                assert!(of_limited <= most + 1, "{of_limited} of {most}");
            }
            let count = parked.parked.iter().flatten().map(VecDeque::len).sum::<usize>();
            assert_eq!(count as u64, next - passed, "a bio has passed or is parked");
            assert!(parked.is_empty_of(0) && parked.is_empty_of(2), "nothing limits them");
            assert!(since.is_some() || count == 0 || !is_in_order);
            assert_eq!(parked.next_timeout().is_some(), count > 0 && since.is_some());
            waited += count;
        }
        assert!(waited > 1000, "{waited}");
        parked.release(now, |_| true, &mut inputs);
        assert_eq!(inputs.len() as u64, next - passed);
    }
}
