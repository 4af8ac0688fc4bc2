//! `why`: asks the shards what the slow requests of an export waited for, and what held it meanwhile.
//!
//! ```text
//!   no name: the export with the oldest request in flight, if that waits for long, or every shard's slowest export --> the slowest of them
//!   all shards: requests in flight now
//!   home shard: slow requests --> the main stage, and when --> that stage's resource:
//!     tags, device time --> the shard of the device, by volume      dirty data, buffers, shard time --> the home shard, by export
//!     connections of the largest holders --> their home shards
//! ```

use std::sync::Arc;

use headworks_core::cache::folio::BLOCK;
use headworks_core::stats::DeviceUse;
use headworks_core::{ExportId, Instant, ShardId};

use super::blame::{Blame, Holder, Resource};
use super::in_flight::InFlightExports;
use super::queries::{DELETED, ExportFacts, Queries};
use super::tree::{ExportNode, Tree, device_name};
use super::verdict::{SLOW_NS, Verdict};
use super::why::{BufferWait, PlaceWait, Slowness, WhySnapshot, requests, size, why};
use crate::observe::latency::request_name;
use crate::observe::latency::slow::SlowFilter;
use crate::observe::latency::usage::{Usage, VolumeUse};
use crate::reactor::messages::query::{ControlQuery, DeviceReport, SlowReport};
use crate::spec::ModelLink;
use headworks_control::{RpcFault, answers};
use headworks_nbd::device::RemoteState;

/// Exports that are looked at for the one that is slow.
pub(crate) const CANDIDATES: usize = 4;

impl Queries {
    /// Where the slow requests of an export spent their time, and by whom they were held up; without a name of the export whose
    /// slow requests were slowest, or of the first one that is called slow.
    ///
    /// # Errors
    /// `ENOENT` if there is no such export, else as of a query.
    pub fn why(&self, name: Option<&str>, filter: SlowFilter) -> Result<answers::Why, RpcFault> {
        let tree = self.tree().current();
        let mut in_flight = self.in_flight(&tree)?;
        if let Some(name) = name {
            return self.why_of(&tree, tree.find_export(name)?, &mut in_flight, filter);
        }
        let mut first = None;
        let mut wrong: Vec<_> = oldest_export(&tree, &in_flight).into_iter().collect();
        wrong.extend(self.failing_export(&tree, filter)?);
        for entry in wrong.into_iter().chain(self.slowest_exports(&tree, filter)?) {
            let report = self.why_of(&tree, entry, &mut in_flight, filter)?;
            if report.slow || !report.findings.is_empty() {
                return Ok(report);
            }
            first.get_or_insert(report);
        }
        Ok(first.unwrap_or_else(|| nothing_completed(filter)))
    }

    fn why_of(
        &self,
        tree: &Tree,
        entry: &ExportNode,
        in_flight: &mut InFlightExports,
        filter: SlowFilter,
    ) -> Result<answers::Why, RpcFault> {
        let ExportNode { id: export, device, home, .. } = *entry;
        let query = |answer| ControlQuery::Slow { export, device, filter, answer };
        let SlowReport { now, requests, slowest, alone_ns, writeback, frozen, errors, answered } =
            self.shards().ask(home, query)?;
        let slowness = Slowness::of(filter, requests, &slowest);
        let report = self.shards().device(tree, device)?;
        let (target, held) = self.target_facts(tree, entry, &report)?;
        let silence = self.oldest_command(tree, report.oldest).and_then(|one| one.silence());
        let DeviceReport { options, state, queue, smallest_ns, .. } = report;
        let place = PlaceWait::of(&options, &queue, slowness.since());
        let blame = self.blame(tree, entry, &slowness, place)?;
        let blocks = |count: u64| count * u64::from(BLOCK);
        let cache = self.shards().ask(home, |answer| ControlQuery::Cache { answer })?.cache;
        let facts = WhySnapshot {
            device: device_name(device),
            device_state: state,
            remote: tree.remote_of(entry).map(|link| {
                let told = link.told(&link.status.report());
                silence.map_or(told.clone(), |silence| format!("{told}, {silence}"))
            }),
            model: tree.model_of(entry).map(ModelLink::answer),
            in_flight: in_flight.remove(&export).unwrap_or_default(),
            troubles: self.troubles(tree, entry)?,
            errors: (errors, answered),
            waits_for_write_out: slowness.waits_for_write_out(),
            export: entry.shown_name().to_owned(),
            nr_requests: options.nr_requests,
            scheduler: options.scheduler.name(),
            dirty: writeback.map(|wb| {
                let dirty = wb.reclaimable + wb.writeback + wb.reserved;
                (blocks(dirty), blocks(wb.dirty_thresh))
            }),
            write_bandwidth: writeback.map_or(0, |wb| blocks(wb.write_bandwidth)),
            cache: cache.map(|cache| {
                (cache.size.units - cache.size.free.min(cache.size.units), cache.size.units)
            }),
            alone_ns: alone_ns.map(|seen| seen.or(smallest_ns)),
            in_device: blame.as_ref().and_then(Blame::in_device),
            place,
            blame,
            limit: self.longest_limit(entry)?,
            frozen,
            served: self.served_meanwhile(tree, entry)?,
            target,
            held,
            buffer_wait: self.buffer_wait(tree, entry)?,
        };
        Ok(why(&facts, now, &slowness))
    }

    /// The export whose state is worst, else the one with the last error within the time of the filter.
    fn failing_export<'a>(
        &self,
        tree: &'a Tree,
        filter: SlowFilter,
    ) -> Result<Option<&'a ExportNode>, RpcFault> {
        let facts = self.export_facts(tree)?;
        let is_bad =
            |facts: &ExportFacts| facts.stuck || facts.suspect || facts.held > 0 || facts.deleted;
        let bad = facts.iter().find(|(_, facts)| is_bad(facts)).map(|(export, _)| *export);
        let recent = filter.seconds.saturating_mul(1_000_000_000);
        let errors = self.last_errors()?;
        let last = errors.iter().filter(|(_, ago)| **ago <= recent).min_by_key(|(_, ago)| **ago);
        Ok(bad.or(last.map(|(export, _)| *export)).and_then(|export| tree.entry(export)))
    }

    /// The state of an export and its reason, unless it serves; a device that does not answer is told apart.
    fn troubles(&self, tree: &Tree, entry: &ExportNode) -> Result<Vec<String>, RpcFault> {
        let facts = self.export_facts(tree)?.get(&entry.id).copied().unwrap_or_default();
        let (name, mut all) = (entry.shown_name(), Vec::new());
        if facts.held > 0 {
            let volume = entry.volume;
            let query = |answer| ControlQuery::Failed { volume, answer };
            let ranges = self.shards().ask(entry.home, query)?;
            let why = ranges.first().map_or(String::new(), |range| format!(" ({})", range.error));
            let bytes = size(facts.held);
            all.push(format!("{bytes} of acknowledged data could not be written{why}: flushes fail until they are written or discarded (`ctl failed {name}`)"));
        }
        if facts.suspect {
            all.push(format!("it is suspect: a flush failed, so acknowledged data may be lost, and flushes fail until `ctl discard-failed {name}`"));
        }
        if facts.deleted {
            all.push(DELETED.to_owned());
        }
        if facts.frozen {
            all.push(format!("it is frozen: what changes its image waits until `ctl thaw {name}`"));
        }
        if facts.refuses {
            all.push(format!("it refuses new clients until `ctl accept-clients {name}`"));
        }
        if let Some(link) = tree.remote_of(entry) {
            let report = link.status.report();
            if report.state != RemoteState::Up {
                all.push(format!("its remote is gone: {}", link.told(&report)));
            }
        }
        Ok(all)
    }

    /// Requests of an export that wait for a buffer now, and the export that holds most of them; none if none waits.
    fn buffer_wait(&self, tree: &Tree, entry: &ExportNode) -> Result<Option<BufferWait>, RpcFault> {
        let users = self.shards().ask(entry.home, |answer| ControlQuery::BufferUsers { answer })?;
        let own = users.iter().find(|user| user.export == entry.id && user.waiting > 0);
        let Some(own) = own else { return Ok(None) };
        let holder = users.iter().max_by_key(|user| user.bytes).unwrap_or(own);
        let name = tree.entry(holder.export).map_or("a removed export", ExportNode::shown_name);
        Ok(Some(BufferWait { waiting: own.waiting, holder: name.to_owned(), held: *holder }))
    }

    /// The exports whose slow requests were slowest, the slowest first: the first of all, and those beside it that may be slow.
    fn slowest_exports<'a>(
        &self,
        tree: &'a Tree,
        filter: SlowFilter,
    ) -> Result<Vec<&'a ExportNode>, RpcFault> {
        let all =
            self.shards().ask_all(|answer| ControlQuery::SlowestExports { filter, answer })?;
        let known = all.into_iter().flatten();
        let known = known.filter_map(|(export, ns)| Some((tree.entry(export)?, ns)));
        let mut known: Vec<(&ExportNode, u64)> = known.collect();
        known.sort_by_key(|(_, ns)| u64::MAX - *ns);
        let may_be_slow = known.iter().skip(1).take_while(|(_, ns)| *ns >= SLOW_NS);
        let count = known.len().min(1) + may_be_slow.count();
        Ok(known.into_iter().take(count.min(CANDIDATES)).map(|(entry, _)| entry).collect())
    }

    /// What held the resource of the main stage while the slow requests were under way.
    fn blame(
        &self,
        tree: &Tree,
        entry: &ExportNode,
        slowness: &Slowness<'_>,
        place: PlaceWait,
    ) -> Result<Option<Blame>, RpcFault> {
        let resource = Resource::of(slowness.main_stage(), slowness.waits_for_write_out(), place)
            .filter(|_| slowness.may_be_slow());
        let Some(resource) = resource else { return Ok(None) };
        let times: Arc<[(Instant, Instant)]> = slowness.times().into();
        let usage = |shard: ShardId| {
            let times = Arc::clone(&times);
            self.shards().ask(shard, |answer| ControlQuery::Usage { times, answer })
        };
        let shard = match resource {
            Resource::Tags | Resource::DeviceTime => tree.owner(entry),
            Resource::Dirty | Resource::Buffers | Resource::Shard => entry.home,
        };
        let first = usage(shard)?;
        let holders = self.holders(tree, entry, resource, &first);
        let what = (resource, device_name(entry.device));
        let Some(mut blame) = Blame::new(what, entry.id, first.seconds, holders) else {
            return Ok(None);
        };
        for holder in blame.named_mut() {
            let home = holder.exports.first().and_then(|export| tree.entry(*export));
            let Some(home) = home.map(|entry| entry.home) else { continue };
            let usage = if home == shard { first.clone() } else { usage(home)? };
            let own = usage.connections.iter().filter(|one| holder.exports.contains(&one.export));
            holder.connections = own.map(|one| (one.connection, one.busy_ns)).collect();
        }
        Ok(Some(blame))
    }

    /// What each export held of a resource.
    fn holders(
        &self,
        tree: &Tree,
        entry: &ExportNode,
        resource: Resource,
        usage: &Usage,
    ) -> Vec<Holder> {
        let of_export = |export: ExportId, amount: u64| {
            self.holder(tree.entry(export).into_iter(), vec![export], amount)
        };
        let volumes = usage.volumes.iter().filter(|one| one.device == entry.device);
        let of_volumes = |amount: fn(&VolumeUse) -> u64| {
            let holder = |one: &VolumeUse| {
                let exports = || tree.exports.iter().filter(|export| export.volume == one.volume);
                let ids = exports().map(|export| export.id).collect();
                let DeviceUse { tag_ns, tag_squares, .. } = one.used;
                Holder {
                    is_base: tree.bases.contains(&one.volume),
                    weight: tag_squares,
                    // The squares are in units of 1024 ns.
                    hold_ns: (tag_squares / (tag_ns >> 10).max(1)) << 10,
                    ..self.holder(exports(), ids, amount(one))
                }
            };
            volumes.clone().map(holder).collect()
        };
        match resource {
            Resource::Tags => of_volumes(|one| one.used.tag_ns),
            Resource::DeviceTime => of_volumes(|one| one.used.device_ns),
            Resource::Dirty => {
                usage.dirty.iter().map(|held| of_export(held.export, held.bytes)).collect()
            }
            Resource::Buffers => {
                usage.buffers.iter().map(|held| of_export(held.export, held.bytes)).collect()
            }
            Resource::Shard => {
                let mut sums: Vec<(ExportId, u64)> = Vec::new();
                for one in &usage.connections {
                    match sums.iter_mut().find(|(export, _)| *export == one.export) {
                        Some((_, sum)) => *sum += one.busy_ns,
                        None => sums.push((one.export, one.busy_ns)),
                    }
                }
                sums.into_iter().map(|(export, ns)| of_export(export, ns)).collect()
            }
        }
    }

    fn holder<'a>(
        &self,
        entries: impl Iterator<Item = &'a ExportNode>,
        exports: Vec<ExportId>,
        amount: u64,
    ) -> Holder {
        let names = entries.map(|entry| entry.shown_name().to_owned()).collect();
        let tenant = exports.first().and_then(|export| self.tenant_of(*export));
        let tenant = tenant.map(|name| name.to_string());
        Holder { exports, names, tenant, amount, weight: amount, ..Holder::default() }
    }
}

/// The report of a server without a request.
fn nothing_completed(filter: SlowFilter) -> answers::Why {
    let SlowFilter { op, seconds } = filter;
    let what = requests(op, 1);
    answers::Why {
        state: Verdict::Idle.name().to_owned(),
        sentence: format!("no {what} of any export completed in the last {seconds} seconds"),
        op: op.map(|op| request_name(op).to_owned()),
        seconds,
        ..answers::Why::default()
    }
}

/// The export with the oldest request that waits for long.
fn oldest_export<'a>(tree: &'a Tree, in_flight: &InFlightExports) -> Option<&'a ExportNode> {
    let waits = in_flight.iter().filter_map(|(export, all)| {
        let oldest = all.oldest.as_ref().filter(|oldest| oldest.is_long())?;
        Some((oldest.age, tree.entry(*export)?))
    });
    waits.max_by_key(|(age, _)| *age).map(|(_, entry)| entry)
}
