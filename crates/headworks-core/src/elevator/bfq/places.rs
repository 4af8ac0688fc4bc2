//! The queues of all parties, found by export and connection, and their leaves in the tree of shares.
//!
//! ```text
//!   root --weight--> tenant --weight--> export --weight of the priority, class--> queue
//!     '--------------weight------------> export without a tenant --> ...
//! ```
//!
//! A synchronous queue belongs to a connection and priority of an export, an asynchronous one to a priority of an export. Places
//! are sized for every request to have a queue of its own; beyond [`IDLE_PLACES`] a new queue takes the place of one without
//! requests.
//!
//! An export that moves to another tenant takes its queues with it, and the requests that wait in them.
//!
//! Invariants: a queue is in the table under its key; every queue has a leaf below its export's group; the group is below that of the
//! export's tenant, or below the root.

use std::ops::{Index, IndexMut};

use super::queue::{BfqQueue, QueueId};
use super::symmetry::Symmetry;
use crate::bio::{ExportId, TenantId};
use crate::options::{ExportConfig, TENANTS_MAX, TenantConfig};
use crate::request::Request;
use crate::shares::balance::{ShareLoad, TenantLoad};
use crate::shares::{ShareId, ShareTree};
use crate::slab::NIL;
use crate::tags::KeyTable;
use crate::time::Instant;

/// Exports that are told apart: as many as a configuration has. All others share one place.
const EXPORTS: usize = 4096;

/// Places that are filled before those of idle queues are used again.
const IDLE_PLACES: usize = 4096;

/// Idle queues that are looked for at once before another place is filled.
const SEARCH: usize = 32;

/// An export's group in the tree.
#[derive(Clone, Copy, Debug)]
struct ExportPlace {
    /// The group, or `NIL` before its first request.
    group: ShareId,
    load: ShareLoad,
    tenant: TenantId,
    /// The two synchronous queues that got requests last, the last one first; `NIL` for none.
    latest: [QueueId; 2],
}

/// A tenant's group in the tree.
#[derive(Clone, Copy, Debug)]
struct TenantPlace {
    /// The group, or `NIL` before the first request of one of its exports.
    group: ShareId,
    load: TenantLoad,
}

/// The queues and exports of a device.
#[derive(Debug)]
pub(super) struct Places {
    queues: Vec<BfqQueue>,
    queues_max: usize,
    table: KeyTable,
    exports: Vec<ExportPlace>,
    tenants: Vec<TenantPlace>,
    /// Where the search for an idle queue goes on.
    hand: usize,
    /// The queue that was found last: a batch often has several requests of it.
    latest: QueueId,
}

/// Returns the key of a request's queue.
fn key_of(request: &Request, sync: bool) -> u64 {
    let export = u64::from(request.export.0) << 48;
    let party = if sync { u64::from(request.connection) << 8 | 1 } else { 0 };
    export | party | u64::from(request.ioprio.code()) << 1
}

impl Places {
    /// Creates places for the queues of `requests_max` requests.
    pub fn new(requests_max: u32) -> Self {
        let queues_max = requests_max as usize + IDLE_PLACES;
        let weight = u32::from(ExportConfig::default().weight);
        let (group, tenant) = (NIL, TenantId::NONE);
        let load = ShareLoad::new(weight);
        let export = ExportPlace { group, load, tenant, latest: [NIL; 2] };
        let weight = u32::from(TenantConfig::default().weight);
        let tenant = TenantPlace { group, load: TenantLoad::new(weight) };
        Self {
            queues: Vec::with_capacity(queues_max),
            queues_max,
            table: KeyTable::new(queues_max),
            exports: vec![export; EXPORTS + 1],
            tenants: vec![tenant; TENANTS_MAX],
            hand: 0,
            latest: NIL,
        }
    }

    /// Creates the tree that the queues of these places are in.
    pub fn make_tree(&self) -> ShareTree {
        ShareTree::in_slots(self.exports.len() + self.tenants.len(), self.queues_max)
    }

    /// Returns the queue of a request, and whether it is new. `tree` has a leaf for it.
    pub fn find(
        &mut self,
        now: Instant,
        tree: &mut ShareTree,
        request: &Request,
    ) -> (QueueId, bool) {
        let sync = request.is_sync();
        let key = key_of(request, sync);
        if self.latest != NIL && self.queues[self.latest as usize].key == key {
            return (self.latest, false);
        }
        let queues = &self.queues;
        let found = self.table.find(key, |id| queues[id as usize].key);
        let id = found.unwrap_or_else(|| self.add(now, tree, request, key));
        self.latest = id;
        (id, found.is_none())
    }

    /// Notes that a synchronous queue gets a request.
    pub fn note_latest(&mut self, queue: QueueId) {
        let latest = &mut self.exports[self.queues[queue as usize].export].latest;
        if latest[0] != queue {
            *latest = [queue, latest[0]];
        }
    }

    /// Returns the two synchronous queues of an export that got requests last; `NIL` for none. A place may be that of another
    /// export's queue by now.
    pub fn latest_of(&self, export: usize) -> [QueueId; 2] {
        self.exports[export].latest
    }

    fn add(&mut self, now: Instant, tree: &mut ShareTree, request: &Request, key: u64) -> QueueId {
        let mut queue = BfqQueue::new(now, key, request.ioprio, request.is_sync());
        queue.export = usize::from(request.export.0).min(EXPORTS);
        let id = self.find_idle().unwrap_or(self.queues.len());
        if let Some(old) = self.queues.get(id) {
            debug_assert!(old.is_replaceable(), "a queue with requests keeps its place");
            tree.remove(old.leaf);
            let queues = &self.queues;
            self.table.remove(old.key, id as u32, |id| queues[id as usize].key);
        }
        let group = self.group_of(tree, queue.export);
        queue.leaf = tree.add_leaf_of(group, queue.class(), queue.weight(), id as u32);
        self.table.insert(key, id as u32);
        if id == self.queues.len() {
            assert!(id < self.queues_max, "more queues with requests than requests");
            self.queues.push(queue);
        } else {
            self.queues[id] = queue;
        }
        id as QueueId
    }

    /// Returns the place of a queue without requests, if places are short.
    fn find_idle(&mut self) -> Option<usize> {
        let places = self.queues.len();
        if places < IDLE_PLACES {
            return None;
        }
        let search = if places < self.queues_max { SEARCH } else { places };
        for _ in 0..search {
            self.hand = (self.hand + 1) % places;
            if self.queues[self.hand].is_replaceable() {
                return Some(self.hand);
            }
        }
        assert!(places < self.queues_max, "more queues with requests than requests");
        None
    }

    /// Returns the group of an export; it is made with the first queue.
    fn group_of(&mut self, tree: &mut ShareTree, export: usize) -> ShareId {
        let ExportPlace { group, load, tenant, .. } = self.exports[export];
        if group != NIL {
            return group;
        }
        let parent = self.parent_of(tree, tenant);
        let group = tree.add_group(parent, load.weight(), export as u32);
        self.exports[export].group = group;
        group
    }

    /// Returns the group that the exports of a tenant are in; it is made with the first one.
    fn parent_of(&mut self, tree: &mut ShareTree, tenant: TenantId) -> ShareId {
        let Some(place) = self.tenants.get_mut(usize::from(tenant.0)) else {
            return ShareTree::ROOT;
        };
        if place.group == NIL {
            let weight = place.load.weight();
            place.group = tree.add_group(ShareTree::ROOT, weight, tenant.0.into());
        }
        place.group
    }

    /// Returns the loads of a queue's export and its tenant.
    pub fn loads_of(&mut self, queue: QueueId) -> (&mut ShareLoad, Option<&mut TenantLoad>) {
        self.loads(self.queues[queue as usize].export)
    }

    fn loads(&mut self, export: usize) -> (&mut ShareLoad, Option<&mut TenantLoad>) {
        let place = &mut self.exports[export];
        let tenant = self.tenants.get_mut(usize::from(place.tenant.0));
        (&mut place.load, tenant.map(|tenant| &mut tenant.load))
    }

    /// Sets the weight of an export.
    pub fn set_weight(
        &mut self,
        tree: &mut ShareTree,
        symmetry: &mut Symmetry,
        export: ExportId,
        weight: u32,
    ) {
        let index = usize::from(export.0);
        // All beyond are of one place, which keeps the default.
        if index >= EXPORTS {
            return;
        }
        let (load, tenant) = self.loads(index);
        symmetry.balance().set_weight(load, tenant, weight);
        let group = self.exports[index].group;
        if group != NIL {
            tree.set_weight(group, weight);
        }
    }

    /// Sets the weight of a tenant.
    pub fn set_tenant_weight(
        &mut self,
        tree: &mut ShareTree,
        symmetry: &mut Symmetry,
        tenant: TenantId,
        weight: u32,
    ) {
        let Some(place) = self.tenants.get_mut(usize::from(tenant.0)) else {
            return;
        };
        symmetry.balance().set_tenant_weight(&mut place.load, weight);
        if place.group != NIL {
            tree.set_weight(place.group, weight);
        }
    }

    /// Moves an export to a tenant; none of its queues may be in service.
    pub fn set_tenant(
        &mut self,
        tree: &mut ShareTree,
        symmetry: &mut Symmetry,
        export: ExportId,
        tenant: TenantId,
    ) {
        let index = usize::from(export.0);
        if index >= EXPORTS || self.exports[index].tenant == tenant {
            return;
        }
        let (load, from) = self.loads(index);
        let queues = symmetry.balance().quit(load, from);
        self.exports[index].tenant = tenant;
        let (load, to) = self.loads(index);
        symmetry.balance().join(load, to, queues);
        let group = self.exports[index].group;
        if group != NIL {
            let parent = self.parent_of(tree, tenant);
            tree.move_group(group, parent);
        }
    }

    /// Returns true if a queue precedes another by class or weight; between exports theirs count, between tenants those of the
    /// tenants.
    pub fn precedes(&self, one: QueueId, other: QueueId) -> bool {
        let (one, other) = (&self[one], &self[other]);
        if one.export == other.export {
            return one.class() < other.class() || one.weight() > other.weight();
        }
        let (one, other) = (&self.exports[one.export], &self.exports[other.export]);
        if one.tenant == other.tenant {
            return one.load.weight() > other.load.weight();
        }
        let weight = |export: &ExportPlace| match self.tenants.get(usize::from(export.tenant.0)) {
            Some(tenant) => tenant.load.weight(),
            None => export.load.weight(),
        };
        weight(one) > weight(other)
    }

    /// Returns the number of queues.
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    #[cfg(test)]
    pub fn all(&self) -> &[BfqQueue] {
        &self.queues
    }

    #[cfg(test)]
    pub fn tenant_of(&self, export: ExportId) -> TenantId {
        self.exports[usize::from(export.0)].tenant
    }

    /// Checks that every queue is below its export, and every export below its tenant.
    #[cfg(test)]
    pub fn check(&self, tree: &ShareTree) {
        for queue in &self.queues {
            let ExportPlace { group, tenant, .. } = self.exports[queue.export];
            assert_eq!(tree.parent(queue.leaf), group);
            let above = self.tenants.get(usize::from(tenant.0)).map(|tenant| tenant.group);
            assert_eq!(tree.parent(group), above.unwrap_or(ShareTree::ROOT));
        }
    }
}

impl Index<QueueId> for Places {
    type Output = BfqQueue;

    #[inline]
    fn index(&self, id: QueueId) -> &BfqQueue {
        &self.queues[id as usize]
    }
}

impl IndexMut<QueueId> for Places {
    #[inline]
    fn index_mut(&mut self, id: QueueId) -> &mut BfqQueue {
        &mut self.queues[id as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bio::{BioFlags, Op};

    fn request(connection: u32, export: u16, op: Op) -> Request {
        let (export, flags) = (ExportId(export), BioFlags::NONE);
        Request { connection, export, op, flags, ..Request::default() }
    }

    #[test]
    fn queue_belongs_to_connection_or_asynchronous_export() {
        let mut places = Places::new(64);
        let mut tree = places.make_tree();
        let mut of = |request: &Request| places.find(Instant(0), &mut tree, request);
        assert_eq!(of(&request(7, 1, Op::Read)), (0, true));
        assert_eq!(of(&request(8, 1, Op::Read)), (1, true));
        assert_eq!(of(&request(7, 2, Op::Read)), (2, true));
        assert_eq!(of(&request(7, 1, Op::Write)), (3, true));
        assert_eq!(of(&request(8, 1, Op::Write)), (3, false), "write-out of an export is one");
        assert_eq!(of(&request(7, 1, Op::Read)), (0, false));
        assert_eq!(of(&request(0, u16::MAX, Op::Read)), (4, true));
    }

    #[test]
    fn places_of_idle_queues_are_used_again() {
        let mut places = Places::new(8);
        let mut tree = places.make_tree();
        for connection in 0..50_000 {
            let (id, new) = places.find(Instant(0), &mut tree, &request(connection, 0, Op::Read));
            assert!(new && (id as usize) < IDLE_PLACES, "{id}");
            assert_eq!(tree.owner(places[id].leaf), id);
        }
        // The last ones are known.
        let last = request(49_999, 0, Op::Read);
        assert!(!places.find(Instant(0), &mut tree, &last).1);
    }
}
