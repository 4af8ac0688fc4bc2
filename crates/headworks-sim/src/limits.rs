//! Limits of bytes and I/Os per second in a simulated world: what a server keeps in front of each shard.
//!
//! ```text
//!   connection --bio--> its export, tenant, server agree? --yes--> inbox of the shard
//!                         `--no--> waits here; an event at the tree's next instant looks again
//! ```
//!
//! Each shard has the limits of the server's front ([`ShardLimits`]). A connection's bios of one direction wait in order.
//! A connection that closes takes what waits with it into the shard, as a server does; a power cut forgets it.
//!
//! The checker has arithmetic of its own ([`Watched`]). A bio that waits while the limits have no instant to look again is a violation, too.

use std::collections::{BTreeMap, VecDeque};

use headworks_core::limits::{LimitDirection, LimitKind, LimitedIo, Limits, Rate};
use headworks_core::limits::{LimitGate, LimitTarget, ShardLimits};
use headworks_core::prng::Prng;
use headworks_core::time::{MS, US};
use headworks_core::{Bio, Control, ExportId, Instant, ShardId, TenantId};

use crate::check::limits::Watched;
use crate::check::violation;
use crate::oracle::Violation;
use crate::tenants::TenantScenario;

/// Weight of an export before one is set.
const WEIGHT: u16 = 100;
/// The rule that too much passes.
const BOUNDED: &str = "a limit admits no more than its rate, its burst and the slack";
/// The rule that what waits is looked at again.
const AWAKE: &str = "a bio that waits for a limit has an instant at which it is looked at again";

/// The limits of a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitScenario {
    /// Number of exports with limits, from the first.
    pub exports: u16,
    /// Number of tenants with limits, from the first.
    pub tenants: u16,
    /// The server has limits.
    pub server: bool,
    /// Changes of limits in a round.
    pub changes: u32,
}

impl LimitScenario {
    /// Draws limits in a third of the worlds with exports.
    pub fn draw(prng: &mut Prng, tenants: &TenantScenario) -> Self {
        if tenants.exports == 0 || prng.below(3) > 0 {
            return Self::default();
        }
        Self {
            exports: prng.below(u64::from(tenants.exports) + 1) as u16,
            tenants: prng.below(u64::from(tenants.tenants) + 1) as u16,
            server: prng.below(3) == 0,
            changes: [0, 10, 100][prng.below(3) as usize],
        }
    }

    /// Whether no limit is set, and none will be.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.exports == 0 && self.tenants == 0 && !self.server
    }
}

/// The limits in front of one shard.
#[derive(Debug)]
struct ShardFront {
    limits: ShardLimits,
    watched: BTreeMap<LimitTarget, Watched>,
    /// When an event looks at the limits again.
    armed: Option<Instant>,
    /// What may pass waits for a free slot of the shard.
    full: bool,
}

impl ShardFront {
    fn new(exports: usize, connections: usize) -> Self {
        let mut limits = ShardLimits::new(connections, ShardId(0), 1);
        for export in 0..exports as u16 {
            limits.put(ExportId(export), ShardId(0), WEIGHT);
        }
        Self { limits, watched: BTreeMap::new(), armed: None, full: false }
    }

    fn set(&mut self, now: Instant, target: LimitTarget, limits: &Limits) {
        self.limits.set(now, target, limits);
        self.watched.entry(target).or_default().set(now, limits);
    }

    /// Counts a bio that passed at everything that limits its export.
    fn check(&mut self, now: Instant, export: ExportId, io: LimitedIo) -> Result<(), Violation> {
        for target in self.limits.path(export) {
            let Some(watched) = self.watched.get_mut(&target) else { continue };
            if let Some(kind) = watched.pass(now, io) {
                let limits = watched.limits();
                return Err(violation(BOUNDED, format!("{target:?}: {kind:?} of {limits:?}")));
            }
        }
        Ok(())
    }
}

/// The limits in front of all shards, and the bios that wait for them.
#[derive(Debug)]
pub struct FrontLimits {
    scenario: LimitScenario,
    exports: Vec<TenantId>,
    shards: Vec<ShardFront>,
    /// By connection, then direction.
    waiting: Vec<[VecDeque<Bio>; 2]>,
    prng: Prng,
    changes_left: u32,
}

impl FrontLimits {
    /// The limits of a world with so many shards and connections.
    #[must_use]
    pub fn new(
        seed: u64,
        scenario: LimitScenario,
        tenants: &TenantScenario,
        shards: usize,
        connections: usize,
    ) -> Self {
        let exports: Vec<_> = tenants.exports().iter().map(|export| export.tenant).collect();
        let mut front = Self {
            scenario,
            shards: Vec::new(),
            waiting: vec![[VecDeque::new(), VecDeque::new()]; connections],
            prng: Prng::new(seed).split("limit values"),
            changes_left: 0,
            exports,
        };
        if !scenario.is_none() {
            front.shards =
                (0..shards).map(|_| ShardFront::new(front.exports.len(), connections)).collect();
            front.set_all(Instant(0));
        }
        front
    }

    /// Sets the limits and places that a start of the server sets.
    fn set_all(&mut self, now: Instant) {
        for (export, &tenant) in self.exports.clone().iter().enumerate() {
            let export = ExportId(export as u16);
            self.follow(now, &Control::ExportTenant { export, tenant });
        }
        let exports =
            (0..self.scenario.exports).map(|export| LimitTarget::Export(ExportId(export)));
        let tenants =
            (0..self.scenario.tenants).map(TenantScenario::place).map(LimitTarget::Tenant);
        let server = self.scenario.server.then_some(LimitTarget::Server);
        for target in exports.chain(tenants).chain(server).collect::<Vec<_>>() {
            let limits = draw_limits(&mut self.prng);
            self.shards.iter_mut().for_each(|shard| shard.set(now, target, &limits));
        }
    }

    /// Starts a round; returns the delay of its first change of limits, if it has any.
    pub fn start(&mut self) -> Option<u64> {
        self.changes_left = if self.scenario.is_none() { 0 } else { self.scenario.changes };
        (self.changes_left > 0).then(|| self.prng.between(US, 5 * MS))
    }

    /// The next change of a limit; returns the delay until the one after it.
    pub fn change(&mut self, now: Instant) -> Option<u64> {
        self.changes_left = self.changes_left.checked_sub(1)?;
        let prng = &mut self.prng;
        let target = match prng.below(5) {
            0 => LimitTarget::Server,
            1 | 2 if self.scenario.tenants > 0 => {
                let number = prng.below(self.scenario.tenants.into()) as u16;
                LimitTarget::Tenant(TenantScenario::place(number))
            }
            _ => LimitTarget::Export(ExportId(prng.below(self.exports.len() as u64) as u16)),
        };
        let limits = if prng.below(3) == 0 { Limits::default() } else { draw_limits(prng) };
        self.shards.iter_mut().for_each(|shard| shard.set(now, target, &limits));
        Some(self.prng.between(US, 2 * MS))
    }

    /// Follows a change of weights or tenants.
    pub fn follow(&mut self, now: Instant, control: &Control) {
        for ShardFront { limits, .. } in &mut self.shards {
            match *control {
                Control::Weight { export, weight } => limits.set_weight(export, weight),
                Control::TenantWeight { tenant, weight } => {
                    limits.set_tenant_weight(tenant, weight);
                }
                Control::ExportTenant { export, tenant } => limits.set_tenant(now, export, tenant),
                _ => {}
            }
        }
    }

    /// Returns a bio that passes now; one that does not waits.
    ///
    /// # Errors
    /// More passes than a limit allows.
    pub fn admit(
        &mut self,
        now: Instant,
        shard: usize,
        connection: usize,
        bio: Bio,
    ) -> Result<Option<Bio>, Violation> {
        let Some(io) = LimitedIo::of(bio.op, bio.len) else { return Ok(Some(bio)) };
        let Some(front) = self.shards.get_mut(shard) else { return Ok(Some(bio)) };
        let waiting = &mut self.waiting[connection][io.direction as usize];
        if !waiting.is_empty() {
            waiting.push_back(bio);
            return Ok(None);
        }
        let gate = front.limits.gate(connection as u32, bio.id.export);
        if gate.is_none_or(|LimitGate { tree, leaf }| tree.admit(now, leaf, io)) {
            front.check(now, bio.id.export, io)?;
            return Ok(Some(bio));
        }
        waiting.push_back(bio);
        Ok(None)
    }

    /// Returns the next bio of a shard that passes now, and its connection.
    ///
    /// # Errors
    /// More passes than a limit allows.
    pub fn pass(&mut self, now: Instant, shard: usize) -> Result<Option<(usize, Bio)>, Violation> {
        let Some(front) = self.shards.get_mut(shard) else { return Ok(None) };
        let Some(passed) = front.limits.pop(now) else { return Ok(None) };
        let connection = passed.owner as usize;
        let waiting = &mut self.waiting[connection][passed.direction as usize];
        let bio = waiting.pop_front().expect("a leaf that waits has a bio");
        if let Some(next) = waiting.front().and_then(|next| LimitedIo::of(next.op, next.len)) {
            front.limits.wait(now, passed.owner, next);
        }
        if let Some(io) = LimitedIo::of(bio.op, bio.len) {
            front.check(now, bio.id.export, io)?;
        }
        Ok(Some((connection, bio)))
    }

    /// When to look at a shard's limits next, if no earlier look is planned.
    ///
    /// # Errors
    /// Bios wait, and the tree has no instant to look again.
    pub fn plan(&mut self, now: Instant, shard: usize) -> Result<Option<Instant>, Violation> {
        let Some(front) = self.shards.get_mut(shard).filter(|front| !front.full) else {
            return Ok(None);
        };
        let Some(at) = front.limits.next_timeout() else {
            let waits = |slot: &usize| self.waiting[*slot].iter().any(|one| !one.is_empty());
            let mut slots = (0..self.waiting.len()).filter(waits);
            return match slots.find(|&slot| front.limits.knows(slot as u32)) {
                Some(slot) => Err(violation(AWAKE, format!("shard {shard}: connection {slot}"))),
                None => Ok(None),
            };
        };
        let at = at.max(now);
        if front.armed.is_some_and(|armed| armed <= at && armed >= now) {
            return Ok(None);
        }
        front.armed = Some(at);
        Ok(Some(at))
    }

    /// Notes that a planned look takes place.
    pub fn look(&mut self, shard: usize) {
        self.shards[shard].armed = None;
    }

    /// Notes that what may pass waits for a free slot of the shard.
    pub fn wait_for_room(&mut self, shard: usize) {
        if let Some(front) = self.shards.get_mut(shard) {
            front.full = true;
        }
    }

    /// Notes that a shard has a free slot; returns true if something waited for one.
    pub fn found_room(&mut self, shard: usize) -> bool {
        self.shards.get_mut(shard).is_some_and(|front| std::mem::take(&mut front.full))
    }

    /// Lets everything pass that a connection has waiting, without a charge.
    pub fn release(&mut self, now: Instant, shard: usize, connection: usize) -> Vec<Bio> {
        let Some(front) = self.shards.get_mut(shard) else { return Vec::new() };
        front.limits.forget(now, connection as u32);
        self.waiting[connection].iter_mut().flat_map(std::mem::take).collect()
    }

    /// Number of bios that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        LimitDirection::ALL
            .iter()
            .map(|&direction| {
                self.waiting.iter().map(|both| both[direction as usize].len()).sum::<usize>()
            })
            .sum()
    }

    /// Forgets what waits, after a power cut; limits and places are those of a start again.
    pub fn cut(&mut self, now: Instant) {
        self.changes_left = 0;
        self.waiting.iter_mut().flatten().for_each(VecDeque::clear);
        let (exports, connections) = (self.exports.len(), self.waiting.len());
        self.shards.iter_mut().for_each(|shard| *shard = ShardFront::new(exports, connections));
        self.set_all(now);
    }
}

/// Draws limits, most of them low enough to be felt.
fn draw_limits(prng: &mut Prng) -> Limits {
    let mut limits = Limits::default();
    for _ in 0..prng.between(1, 2) {
        let kind = LimitKind::ALL[prng.below(LimitKind::COUNT as u64) as usize];
        let average = match kind.is_bytes() {
            true => [8 << 20, 64 << 20, 400 << 20][prng.below(3) as usize],
            false => [1_000, 10_000, 100_000][prng.below(3) as usize],
        };
        let burst = prng.below(3) == 0;
        limits.rates[kind as usize] = Rate {
            average,
            max: if burst { average * 4 } else { 0 },
            max_length_ns: if burst { prng.between(1, 100) * MS } else { 0 },
        };
    }
    limits.iops_size = [0, 0, 4096, 65_536][prng.below(4) as usize];
    debug_assert!(limits.validate().is_ok(), "drawn limits are sound");
    limits
}
