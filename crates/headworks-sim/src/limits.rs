//! Limits of bytes and I/Os per second in a simulated world: what a server keeps in front of each shard.
//!
//! ```text
//!   connection --bio--> its export, tenant, server agree? --yes--> inbox of the shard
//!                         `--no--> waits here; an event at the tree's next instant looks again
//! ```
//!
//! Each shard has a tree of its own, with a node for every export and tenant. A connection's bios of one direction wait in order.
//! A connection that closes takes what waits with it into the shard, as a server does; a power cut forgets it.
//!
//! The checker does not use the tree's arithmetic: per node and limit it keeps a level that leaks at the rate and rises by what
//! passed. From any instant on a limit admits at most `R T + 2 slack + L` ([`headworks_core::limits`]), and a burst its size more:
//! a level above that is a violation. So is a bio that waits while the tree has no instant to look again.

use std::collections::VecDeque;

use headworks_core::limits::{
    LimitDirection, LimitKind, LimitTree, LimitedIo, Limits, NodeId, Rate,
};
use headworks_core::options::TENANTS_MAX;
use headworks_core::prng::Prng;
use headworks_core::time::{MS, SEC, US};
use headworks_core::{Bio, Control, ExportId, Instant, TenantId};

use crate::check::violation;
use crate::oracle::Violation;
use crate::tenants::TenantScenario;

/// The rule that too much passes.
const BOUNDED: &str = "a limit admits no more than its rate, its burst and the slack";
/// The rule that what waits is looked at again.
const AWAKE: &str = "a bio that waits for a limit has an instant at which it is looked at again";

/// Slack of a limit: a wake-up that is late by less loses nothing.
const SLACK_NS: u64 = 4 * MS;
/// The longest bio of a simulated world, in bytes.
const LONGEST: u64 = 64 << 20;
/// Parts of a byte or an I/O in the checker's levels.
const PARTS: u64 = 1 << 20;

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

/// What a limit is set on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Server,
    Tenant(TenantId),
    Export(ExportId),
}

/// What the checker knows of a node.
#[derive(Clone, Debug)]
struct Watched {
    limits: Limits,
    /// By kind, in parts times the nanoseconds of a second.
    levels: [u128; LimitKind::COUNT],
    at: Instant,
}

impl Watched {
    fn new() -> Self {
        Self { limits: Limits::default(), levels: [0; LimitKind::COUNT], at: Instant(0) }
    }

    /// Takes new limits: what passed under the old ones is forgotten.
    fn set(&mut self, now: Instant, limits: &Limits) {
        *self = Self { limits: *limits, at: now, ..Self::new() };
    }

    /// Counts a bio that passed; returns the limit that it exceeds.
    fn pass(&mut self, now: Instant, io: LimitedIo) -> Option<LimitKind> {
        let elapsed = u128::from(now.since(self.at));
        self.at = now;
        let mut broken = None;
        for kind in LimitKind::ALL {
            let rate = self.limits.rate(kind);
            let level = &mut self.levels[kind as usize];
            let leaked = elapsed * u128::from(rate.average) * u128::from(PARTS);
            *level = level.saturating_sub(leaked);
            if rate.average == 0 || !kind.covers(io.direction) {
                continue;
            }
            let passed = u128::from(self.parts(kind, io.bytes.into())) * u128::from(SEC);
            let longest = u128::from(self.parts(kind, LONGEST)) * u128::from(SEC);
            let level = &mut self.levels[kind as usize];
            *level += passed;
            let burst = rate.max.saturating_sub(rate.average);
            let burst = u128::from(burst) * u128::from(length(rate));
            let slack = 2 * u128::from(rate.average.max(rate.max)) * u128::from(SLACK_NS);
            let most = (burst + slack) * u128::from(PARTS) + longest;
            broken = broken.or((*level > most).then_some(kind));
        }
        broken
    }

    /// What a bio counts as for a limit.
    fn parts(&self, kind: LimitKind, bytes: u64) -> u64 {
        match (kind.is_bytes(), self.limits.iops_size) {
            (true, _) => bytes * PARTS,
            (false, 0) => PARTS,
            (false, size) => PARTS.max(bytes * PARTS / size),
        }
    }
}

/// Nanoseconds that a burst lasts.
fn length(rate: Rate) -> u64 {
    if rate.max_length_ns == 0 { SEC } else { rate.max_length_ns }
}

/// The limits in front of one shard.
#[derive(Debug)]
struct ShardFront {
    tree: LimitTree,
    /// By [`ExportId`].
    exports: Vec<NodeId>,
    /// By [`TenantId`], made when first needed.
    tenants: Vec<Option<NodeId>>,
    /// By connection.
    leaves: Vec<Option<NodeId>>,
    /// By node.
    watched: Vec<Watched>,
    /// When an event looks at the tree again.
    armed: Option<Instant>,
    /// What may pass waits for a free slot of the shard.
    full: bool,
}

impl ShardFront {
    fn new(exports: usize, connections: usize) -> Self {
        let mut front = Self {
            tree: LimitTree::new(64),
            exports: Vec::new(),
            tenants: vec![None; TENANTS_MAX + 1],
            leaves: vec![None; connections],
            watched: Vec::new(),
            armed: None,
            full: false,
        };
        for export in 0..exports {
            let node = front.tree.add_group(LimitTree::ROOT, 100, export as u32);
            front.exports.push(node);
        }
        front
    }

    fn tenant(&mut self, tenant: TenantId) -> NodeId {
        if tenant.is_none() {
            return LimitTree::ROOT;
        }
        let tree = &mut self.tree;
        let place = &mut self.tenants[usize::from(tenant.0)];
        *place.get_or_insert_with(|| tree.add_group(LimitTree::ROOT, 100, u32::from(tenant.0)))
    }

    fn leaf(&mut self, connection: usize, export: ExportId) -> NodeId {
        let (tree, parent) = (&mut self.tree, self.exports[usize::from(export.0)]);
        *self.leaves[connection]
            .get_or_insert_with(|| tree.add_leaf(parent, 100, connection as u32))
    }

    fn watched(&mut self, node: NodeId) -> &mut Watched {
        let least = self.watched.len().max(node as usize + 1);
        self.watched.resize_with(least, Watched::new);
        &mut self.watched[node as usize]
    }

    fn set(&mut self, now: Instant, target: Target, limits: &Limits) {
        let node = match target {
            Target::Server => LimitTree::ROOT,
            Target::Tenant(tenant) => self.tenant(tenant),
            Target::Export(export) => self.exports[usize::from(export.0)],
        };
        self.tree.set_limits(now, node, limits);
        self.watched(node).set(now, limits);
    }

    /// Counts a bio that passed at every node above its leaf.
    fn check(&mut self, now: Instant, leaf: NodeId, io: LimitedIo) -> Result<(), Violation> {
        let mut node = leaf;
        while node != LimitTree::ROOT {
            node = self.tree.parent(node);
            if let Some(kind) = self.watched(node).pass(now, io) {
                let limits = self.watched(node).limits;
                return Err(violation(BOUNDED, format!("node {node}: {kind:?} of {limits:?}")));
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
        let exports = (0..self.scenario.exports).map(|export| Target::Export(ExportId(export)));
        let tenants = (0..self.scenario.tenants).map(TenantScenario::place).map(Target::Tenant);
        let server = self.scenario.server.then_some(Target::Server);
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
            0 => Target::Server,
            1 | 2 if self.scenario.tenants > 0 => {
                let number = prng.below(self.scenario.tenants.into()) as u16;
                Target::Tenant(TenantScenario::place(number))
            }
            _ => Target::Export(ExportId(prng.below(self.exports.len() as u64) as u16)),
        };
        let limits = if prng.below(3) == 0 { Limits::default() } else { draw_limits(prng) };
        self.shards.iter_mut().for_each(|shard| shard.set(now, target, &limits));
        Some(self.prng.between(US, 2 * MS))
    }

    /// Follows a change of weights or tenants.
    pub fn follow(&mut self, now: Instant, control: &Control) {
        for shard in &mut self.shards {
            match *control {
                Control::Weight { export, weight } => {
                    let node = shard.exports[usize::from(export.0)];
                    shard.tree.set_weight(node, weight.into());
                }
                Control::TenantWeight { tenant, weight } => {
                    let node = shard.tenant(tenant);
                    shard.tree.set_weight(node, weight.into());
                }
                Control::ExportTenant { export, tenant } => {
                    let node = shard.exports[usize::from(export.0)];
                    let parent = shard.tenant(tenant);
                    if shard.tree.parent(node) != parent {
                        shard.tree.set_parent(now, node, parent);
                    }
                }
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
        let leaf = front.leaf(connection, bio.id.export);
        if !front.tree.is_limited(leaf) || front.tree.admit(now, leaf, io) {
            front.check(now, leaf, io)?;
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
        let Some(passed) = front.tree.pop(now) else { return Ok(None) };
        let connection = passed.owner as usize;
        let waiting = &mut self.waiting[connection][passed.direction as usize];
        let bio = waiting.pop_front().expect("a leaf that waits has a bio");
        let leaf = front.leaf(connection, bio.id.export);
        if let Some(next) = waiting.front().and_then(|next| LimitedIo::of(next.op, next.len)) {
            front.tree.wait(now, leaf, next);
        }
        if let Some(io) = LimitedIo::of(bio.op, bio.len) {
            front.check(now, leaf, io)?;
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
        let Some(at) = front.tree.next_timeout() else {
            let leaves = front.leaves.iter().zip(&self.waiting);
            let mut stuck = leaves.filter(|(leaf, waiting)| {
                leaf.is_some() && waiting.iter().any(|waiting| !waiting.is_empty())
            });
            return match stuck.next() {
                Some((leaf, _)) => Err(violation(AWAKE, format!("shard {shard}: leaf {leaf:?}"))),
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
        if let Some(leaf) = front.leaves[connection].take() {
            front.tree.remove(now, leaf);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(rate: Rate) -> Limits {
        let mut limits = Limits::default();
        limits.rates[LimitKind::IopsWrite as usize] = rate;
        limits
    }

    /// Passes a write each `every_ns` for a second; returns the limit that was exceeded.
    fn exceeded(rate: Rate, every_ns: u64) -> Option<LimitKind> {
        let mut node = Watched::new();
        node.set(Instant(0), &limits(rate));
        let write = LimitedIo { direction: LimitDirection::Write, bytes: 4096 };
        let read = LimitedIo { direction: LimitDirection::Read, bytes: 4096 };
        (0..SEC / every_ns).find_map(|number| {
            let now = Instant(number * every_ns);
            assert_eq!(node.pass(now, read), None, "the limit is not of reads");
            node.pass(now, write)
        })
    }

    #[test]
    fn checker_takes_what_passes_at_the_rate_and_no_more() {
        let plain = Rate { average: 1000, ..Rate::default() };
        assert_eq!(exceeded(plain, MS), None);
        assert_eq!(exceeded(plain, 9 * MS / 10), Some(LimitKind::IopsWrite));
        let burst = Rate { average: 1000, max: 2000, max_length_ns: 100 * MS };
        assert_eq!(exceeded(burst, MS), None);
        assert_eq!(exceeded(burst, 9 * MS / 10), None, "111 more in a second, of a burst of 100");
        assert_eq!(exceeded(burst, 8 * MS / 10), Some(LimitKind::IopsWrite));
    }
}
