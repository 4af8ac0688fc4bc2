//! The limits of a shard's exports: the tree with its nodes for exports and connections.
//!
//! Every export of the server has a node; a connection gets one with its first request under a limit. An export with no limit on
//! its path costs its connections one look at a flag.
//!
//! All clients of an export are on its home shard, so its limits are, too. A tenant, and the server, live on the shard of their
//! first export, by number; other shards take leases of tokens there (`lease`), in messages that their driver carries. What
//! is known of exports is the same on every shard after each change, so shards agree where a node lives, and until they do the
//! requests of one are refused by the other and made again.

use super::{
    LeaseMessage, LimitReport, LimitTree, LimitedIo, Limits, NodeId, OutgoingLease, Passed,
};
use crate::{ExportId, Instant, ShardId, TenantConfig, TenantId};

/// Weight of a connection beside others of its export.
const CONNECTION_WEIGHT: u32 = 100;

/// What limits are set on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitTarget {
    /// The whole server.
    Server,
    /// All exports of a tenant together.
    Tenant(TenantId),
    /// All clients of an export.
    Export(ExportId),
}

/// The limits on a connection's path.
pub struct LimitGate<'a> {
    /// Limits of the shard's exports.
    pub tree: &'a mut LimitTree,
    /// The connection's node in the tree.
    pub leaf: NodeId,
}

/// An export in the tree.
#[derive(Clone, Copy, Debug)]
struct LimitedExport {
    node: NodeId,
    /// Shard of its clients.
    home: ShardId,
    tenant: TenantId,
    /// A limit is on its path.
    limited: bool,
}

/// The limits of a shard.
#[derive(Debug)]
pub struct ShardLimits {
    id: ShardId,
    shards: u16,
    tree: LimitTree,
    /// Nodes by [`TenantId`].
    tenants: Vec<Option<NodeId>>,
    /// Nodes by [`ExportId`].
    exports: Vec<Option<LimitedExport>>,
    /// Nodes of connections by slot.
    leaves: Vec<Option<NodeId>>,
    /// There is, or was, a limit: until then a turn asks the tree nothing.
    in_use: bool,
}

impl ShardLimits {
    /// Creates the limits of one of `shards` shards, with `slots` connections.
    #[must_use]
    pub fn new(slots: usize, id: ShardId, shards: u16) -> Self {
        let (tenants, exports) = (Vec::new(), Vec::new());
        let mut tree = LimitTree::new(64);
        tree.set_shards(shards);
        Self { id, shards, tree, tenants, exports, leaves: vec![None; slots], in_use: false }
    }

    /// Adds an export of a shard, or changes the home of the one of its id, and its weight.
    pub fn put(&mut self, export: ExportId, home: ShardId, weight: u16) {
        assert!(home.0 < self.shards, "an export lives on a shard of the server");
        let index = usize::from(export.0);
        if self.exports.len() <= index {
            self.exports.resize(index + 1, None);
        }
        let tenant = TenantId::NONE;
        match &mut self.exports[index] {
            Some(entry) => entry.home = home,
            empty => {
                let node = self.tree.add_group(LimitTree::ROOT, weight.into(), index as u32);
                *empty = Some(LimitedExport { node, home, tenant, limited: false });
            }
        }
        self.set_weight(export, weight);
    }

    /// What limits a request of an export, from itself to the server.
    pub fn path(&self, export: ExportId) -> impl Iterator<Item = LimitTarget> + use<> {
        let entry = self.exports.get(usize::from(export.0)).copied().flatten();
        let tenant = entry.map(|entry| entry.tenant).filter(|&tenant| tenant != TenantId::NONE);
        let tenant = tenant.map(LimitTarget::Tenant);
        [Some(LimitTarget::Export(export)), tenant, Some(LimitTarget::Server)].into_iter().flatten()
    }

    /// Finds out where tenants and the server live, after exports were added, moved or removed.
    pub fn settle_homes(&mut self, now: Instant) {
        if self.shards == 1 {
            return;
        }
        let mut homes = vec![None; self.tenants.len()];
        let mut root = None;
        for entry in self.exports.iter().flatten() {
            root.get_or_insert(entry.home);
            if let Some(home) = homes.get_mut(usize::from(entry.tenant.0)) {
                home.get_or_insert(entry.home);
            }
        }
        let elsewhere = |home: Option<ShardId>| home.filter(|home| *home != self.id);
        self.tree.set_home(now, LimitTree::ROOT, elsewhere(root));
        for (node, home) in self.tenants.iter().zip(homes) {
            // A tenant without exports has no requests.
            if let (Some(node), Some(_)) = (node, home) {
                self.tree.set_home(now, *node, elsewhere(home));
            }
        }
    }

    /// Takes a message of another shard in.
    pub fn on_message(
        &mut self,
        now: Instant,
        from: ShardId,
        target: LimitTarget,
        message: LeaseMessage,
    ) {
        assert!(from != self.id, "a shard leases tokens of others");
        if let LimitTarget::Tenant(tenant) = target {
            // It may be known there earlier than here.
            self.tenant(tenant);
        }
        self.in_use = true;
        if let Some(node) = self.node(target) {
            self.tree.on_message(now, node, from, message);
        }
    }

    /// The next message for another shard.
    #[inline]
    pub fn next_message(&mut self) -> Option<(LimitTarget, ShardId, LeaseMessage)> {
        if self.in_use { self.take_message() } else { None }
    }

    fn take_message(&mut self) -> Option<(LimitTarget, ShardId, LeaseMessage)> {
        let OutgoingLease { node, to, message } = self.tree.next_outgoing()?;
        assert!(to != self.id, "a message is for another shard");
        let target = match node {
            LimitTree::ROOT => LimitTarget::Server,
            node => LimitTarget::Tenant(TenantId(self.tree.owner(node) as u16)),
        };
        Some((target, to, message))
    }

    /// The node of a tenant, which is made when it is first needed and stays.
    fn tenant(&mut self, tenant: TenantId) -> NodeId {
        if tenant == TenantId::NONE {
            return LimitTree::ROOT;
        }
        let index = usize::from(tenant.0);
        if self.tenants.len() <= index {
            self.tenants.resize(index + 1, None);
        }
        *self.tenants[index].get_or_insert_with(|| {
            let weight = TenantConfig::default().weight;
            self.tree.add_group(LimitTree::ROOT, weight.into(), index as u32)
        })
    }

    /// Sets the weight of a tenant beside others.
    pub fn set_tenant_weight(&mut self, tenant: TenantId, weight: u16) {
        let node = self.tenant(tenant);
        self.tree.set_weight(node, weight.into());
    }

    /// Moves an export to a tenant, or to none.
    pub fn set_tenant(&mut self, now: Instant, export: ExportId, tenant: TenantId) {
        let parent = self.tenant(tenant);
        let entry = self.exports.get_mut(usize::from(export.0)).and_then(Option::as_mut);
        if let Some(entry) = entry {
            entry.tenant = tenant;
            let node = entry.node;
            if self.tree.parent(node) != parent {
                self.tree.set_parent(now, node, parent);
                self.update_flags();
            }
        }
    }

    fn update_flags(&mut self) {
        for entry in self.exports.iter_mut().flatten() {
            entry.limited = self.tree.is_limited(entry.node);
        }
    }

    /// Removes an export whose connections are gone.
    pub fn remove(&mut self, now: Instant, export: ExportId) {
        if let Some(entry) = self.exports.get_mut(usize::from(export.0)).and_then(Option::take) {
            self.tree.remove(now, entry.node);
        }
    }

    /// Sets the weight of an export beside others.
    pub fn set_weight(&mut self, export: ExportId, weight: u16) {
        if let Some(node) = self.node(LimitTarget::Export(export)) {
            self.tree.set_weight(node, weight.into());
        }
    }

    /// Replaces limits. What may pass now does so in this turn.
    pub fn set(&mut self, now: Instant, target: LimitTarget, limits: &Limits) {
        if let LimitTarget::Tenant(tenant) = target {
            self.tenant(tenant);
        }
        let Some(node) = self.node(target) else { return };
        self.tree.set_limits(now, node, limits);
        self.in_use |= !limits.is_none();
        self.update_flags();
    }

    /// What limits have held back so far.
    fn report(&self, now: Instant, target: LimitTarget) -> LimitReport {
        self.node(target).map_or_else(LimitReport::default, |node| self.tree.report(now, node))
    }

    fn node(&self, target: LimitTarget) -> Option<NodeId> {
        match target {
            LimitTarget::Server => Some(LimitTree::ROOT),
            LimitTarget::Tenant(TenantId::NONE) => None,
            LimitTarget::Tenant(tenant) => *self.tenants.get(usize::from(tenant.0))?,
            LimitTarget::Export(export) => {
                self.exports.get(usize::from(export.0))?.map(|entry| entry.node)
            }
        }
    }

    /// The limits of a connection of an export; none if nothing limits it.
    #[inline]
    #[must_use]
    pub fn gate(&mut self, slot: u32, export: ExportId) -> Option<LimitGate<'_>> {
        let entry = (*self.exports.get(usize::from(export.0))?)?;
        if !entry.limited {
            return None;
        }
        let leaf = match self.leaves[slot as usize] {
            Some(leaf) => leaf,
            None => {
                let leaf = self.tree.add_leaf(entry.node, CONNECTION_WEIGHT, slot);
                self.leaves[slot as usize] = Some(leaf);
                leaf
            }
        };
        Some(LimitGate { tree: &mut self.tree, leaf })
    }

    /// Whether there is, or was, a limit: until then nothing is asked.
    #[inline]
    #[must_use]
    pub fn in_use(&self) -> bool {
        self.in_use
    }

    /// Forgets a connection with what it has parked.
    pub fn forget(&mut self, now: Instant, slot: u32) {
        if let Some(leaf) = self.leaves[slot as usize].take() {
            self.tree.remove(now, leaf);
        }
    }

    /// When a parked request may pass; none if none is parked.
    #[inline]
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        if self.in_use { self.tree.next_timeout() } else { None }
    }

    /// The next parked request whose limits agree now.
    pub fn pop(&mut self, now: Instant) -> Option<Passed> {
        self.tree.pop(now)
    }

    /// Whether a connection has a node.
    #[must_use]
    pub fn knows(&self, slot: u32) -> bool {
        self.leaves[slot as usize].is_some()
    }

    /// The next parked request of a connection waits from now on.
    pub fn wait(&mut self, now: Instant, slot: u32, next: LimitedIo) {
        if let Some(leaf) = self.leaves[slot as usize] {
            self.tree.wait(now, leaf, next);
        }
    }

    /// What the limits of the server, of tenants and of exports have held back.
    #[must_use]
    pub fn reports(&self, now: Instant) -> Vec<(LimitTarget, LimitReport)> {
        let ids = (0..self.exports.len() as u16).map(|id| LimitTarget::Export(ExportId(id)));
        let tenants = (0..self.tenants.len() as u16).map(TenantId).map(LimitTarget::Tenant);
        let all = std::iter::once(LimitTarget::Server).chain(tenants).chain(ids);
        all.map(|target| (target, self.report(now, target)))
            .filter(|(_, report)| report.limited > 0)
            .collect()
    }
}
