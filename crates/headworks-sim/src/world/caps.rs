//! The caps of tenants' dirty data in a world, checked after every turn.
//!
//! A tenant has at most its cap. It may be above when the cap was lowered, when an export with dirty data has moved to it, or
//! when a new shard has adopted what is dirty, or by blocks whose write-out failed and is tried again; then it only falls. And
//! the dirty blocks of all payers are those of their device.

use std::collections::BTreeMap;

use headworks_core::{Control, Input, TenantId};

use super::make::SimShard;
use crate::check::violation;
use crate::coverage::Point;
use crate::environment::Environment;

/// What tenants may have above their caps, by shard.
#[derive(Debug, Default)]
pub(super) struct CapCheck {
    above: BTreeMap<(usize, TenantId), (u32, u64)>,
}

impl CapCheck {
    /// Forgets a shard that is replaced by a new one: that may begin above its caps.
    pub fn replace(&mut self) {
        self.above.clear();
    }

    /// Checks the tenants of a shard after a turn.
    pub fn check(&mut self, env: &mut Environment, index: usize, shard: &SimShard) {
        shard.core.check_flushers();
        if env.scenario.tenants.exports == 0 {
            return;
        }
        shard.core.check_payers();
        let changes = |input: &Input| {
            matches!(
                input,
                Input::Control(Control::TenantMemory { .. } | Control::ExportTenant { .. })
            )
        };
        let changed = shard.turn.iter().any(changes);
        for tenant in env.scenario.tenants.places() {
            let Some(dirty) = shard.core.tenant_dirty(tenant) else { return };
            let above = self.above.entry((index, tenant)).or_insert((dirty.used, dirty.released));
            if changed {
                *above = (dirty.used, dirty.released);
            }
            let most = dirty.cap.max(above.0).saturating_add((dirty.released - above.1) as u32);
            env.coverage.add(Point::TenantCapped, (dirty.used == dirty.cap).into());
            if dirty.used > most {
                let detail = format!(
                    "{tenant:?} has {} dirty blocks on shard {index}; its cap is {}, and it had {}",
                    dirty.used, dirty.cap, above.0
                );
                return env.fail(violation("a tenant keeps to its cap of dirty data", detail));
            }
            *above = (dirty.used, dirty.released);
        }
    }
}
