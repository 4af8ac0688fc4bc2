//! What `ctl save` has written counts as configured from then on, as if it had been loaded: one comparison finds what was changed since,
//! taken back or removed.
//!
//! ```text
//!   set weight 300 -> save (weight = 300) -> nothing differs -> set weight 100 -> weight 100, configured 300
//!   add x          -> save ([[export]] x) -> nothing differs -> remove x       -> x none, configured
//! ```
//!
//! Rule: what is configured is what a later start reads, the loaded files with the saved sections over them. So a process that replaces
//! this one, which reads the drop-in, is told what differs from it.

use super::LiveChanges;
use crate::config::{ConfigFile, Tuned, Value};
use crate::control::exports::ExportState;
use crate::control::tree::lock;
use crate::exports::assemble::{ExportSource, ExportSpec};
use crate::spec::ExportOption;
use crate::spec::limit_words::parse_limits;
use crate::spec::option_table::OptionTable;
use headworks_core::limits::Limits;
use headworks_core::options::Tunable;

/// Takes over what `diff` has found, which was written to a drop-in.
pub(super) fn note_saved(live: &LiveChanges, saved: &ConfigFile) {
    lock(&live.access).note_saved(saved);
    tenants(live, saved);
    exports(live, saved);
    tunables(live, saved);
}

fn exports(live: &LiveChanges, saved: &ConfigFile) {
    // Nothing of it is wrong but what a file of its own lacks, such as tenants of other files.
    let (planned, _) = saved.plan_rest(None, false);
    let (inventory, mut configured) = (lock(&live.inventory), lock(&live.configured));
    let mut exports = inventory.exports.lock();
    for gone in saved.exports.iter().filter(|section| section.is_enabled() == Ok(false)) {
        configured.retain(|spec| spec.name != gone.name);
    }
    for planned in planned {
        let mut planned = ExportSpec { source: ExportSource::File, ..planned };
        let is_it = |spec: &ExportSpec| spec.name == planned.name;
        let known = configured.iter().position(is_it);
        planned.device = known.and_then(|at| configured[at].device.clone());
        let served = exports
            .values_mut()
            .find(|export| is_it(&export.spec) && matches!(export.state, ExportState::Serving));
        if let Some(served) = served {
            let spec = &mut served.spec;
            // One whose image a restart changes is served as it was opened.
            if known.is_none_or(|at| configured[at].spec.is_same_device(&spec.spec)) {
                (spec.spec, spec.layers) = (planned.spec.clone(), planned.layers.clone());
            }
            spec.source = planned.source;
            for option in ExportOption::ALL.iter().filter(|option| option.is_live()) {
                option.copy(&mut spec.share, &planned.share);
            }
        }
        match known {
            Some(at) => configured[at] = planned,
            None => configured.push(planned),
        }
    }
}

fn tenants(live: &LiveChanges, saved: &ConfigFile) {
    let mut configured = lock(&live.configured_tenants);
    for section in &saved.tenants {
        let known = configured.iter().position(|spec| spec.name.as_str() == section.name);
        if section.is_enabled() == Ok(false) {
            known.map(|at| configured.remove(at));
            continue;
        }
        let Ok(mut spec) = section.over(known.map(|at| &configured[at])).plan() else { continue };
        spec.source = ExportSource::File;
        match known {
            Some(at) => configured[at] = spec,
            None => configured.push(spec),
        }
    }
    live.settings.compare_tenants_with(&configured);
}

fn tunables(live: &LiveChanges, saved: &ConfigFile) {
    let mut configured = lock(&live.tunables);
    for Tuned { tunable, value, .. } in &saved.vm {
        // The running server has it.
        let _ = tunable.set(&mut configured.dirty, *value);
    }
    if let Some(Value::List(words)) =
        saved.server.iter().find(|setting| setting.name == "limit").map(|setting| &setting.value)
    {
        let mut limits = Limits::default();
        if parse_limits(&mut limits, &words.join(",")).is_ok() {
            configured.limits = limits;
        }
    }
    put(&mut configured.queue, &saved.queue);
    for section in &saved.devices {
        let device = configured.devices.iter_mut().find(|device| device.name == section.name);
        if let Some(device) = device {
            put(&mut device.queue, &section.queue);
        }
    }
}

fn put(queue: &mut Vec<(Tunable, u64)>, saved: &[Tuned<Tunable>]) {
    for Tuned { tunable, value, .. } in saved {
        queue.retain(|(other, _)| other != tunable);
        queue.push((*tunable, *value));
    }
}
