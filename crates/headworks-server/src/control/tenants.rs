//! The tenants of a server: their numbers, and their values now and as they are configured.
//!
//! Invariant: a number is in use from before a shard is told of it until no export has it.

use std::collections::BTreeMap;

use headworks_core::TenantId;
use headworks_core::options::TENANTS_MAX;

use crate::exports::assemble::TenantSpec;
use crate::spec::tenant::{TenantName, TenantOptions, no_tenant};
use headworks_control::RpcFault;

/// A tenant in use.
#[derive(Clone, Copy, Debug)]
pub struct TenantEntry {
    /// What it was added or loaded with.
    pub spec: TenantSpec,
    /// The values that are in force.
    pub now: TenantOptions,
}

/// All tenants, by number.
#[derive(Clone, Debug, Default)]
pub struct Tenants {
    all: BTreeMap<u16, TenantEntry>,
    /// The number that was given last. Counters of a removed tenant stay with its number, so that is given again as late as possible.
    last: u16,
}

impl Tenants {
    /// The tenants that a server starts with; their order gives the numbers.
    pub fn new(specs: &[TenantSpec]) -> Self {
        let entry = |&spec: &TenantSpec| TenantEntry { spec, now: spec.options };
        let last = specs.len().saturating_sub(1) as u16;
        Self { all: (0..).zip(specs.iter().map(entry)).collect(), last }
    }

    /// All tenants in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (TenantId, &TenantEntry)> {
        self.all.iter().map(|(id, entry)| (TenantId(*id), entry))
    }

    /// A tenant; none for [`TenantId::NONE`] and for one that was removed.
    pub fn get(&self, tenant: TenantId) -> Option<&TenantEntry> {
        self.all.get(&tenant.0)
    }

    /// A tenant, to change it.
    pub fn get_mut(&mut self, tenant: TenantId) -> Option<&mut TenantEntry> {
        self.all.get_mut(&tenant.0)
    }

    /// The number of a name.
    pub fn find(&self, name: &str) -> Option<TenantId> {
        self.iter().find(|(_, entry)| entry.spec.name.as_str() == name).map(|(id, _)| id)
    }

    /// The number of a tenant that an export names; [`TenantId::NONE`] if it names none.
    ///
    /// # Errors
    /// `ENOENT`, with the nearest name.
    pub fn named(&self, name: Option<TenantName>) -> Result<TenantId, RpcFault> {
        let Some(name) = name.filter(|name| !name.is_none()) else { return Ok(TenantId::NONE) };
        self.find(name.as_str()).ok_or_else(|| self.missing(name.as_str()))
    }

    /// The error for a name that no tenant has.
    pub fn missing(&self, name: &str) -> RpcFault {
        let known = self.all.values().map(|entry| entry.spec.name.as_str());
        RpcFault::refused("ENOENT", no_tenant(name, known))
    }

    /// Adds a tenant; returns its number.
    ///
    /// # Errors
    /// The name is taken, or every number is.
    pub fn add(&mut self, spec: TenantSpec) -> Result<TenantId, RpcFault> {
        if self.find(spec.name.as_str()).is_some() {
            let message = format!("a tenant `{}` exists already", spec.name);
            return Err(RpcFault::refused("EEXIST", message));
        }
        let places = TENANTS_MAX as u16;
        let mut next = (1..=places).map(|step| (self.last + step) % places);
        let free = next.find(|id| !self.all.contains_key(id));
        let Some(id) = free else {
            let message =
                format!("the limit of {TENANTS_MAX} tenants is reached; remove one first");
            return Err(RpcFault::refused("ENOSPC", message));
        };
        self.all.insert(id, TenantEntry { spec, now: spec.options });
        self.last = id;
        Ok(TenantId(id))
    }

    /// Removes a tenant, whose number is free then.
    pub fn remove(&mut self, tenant: TenantId) {
        self.all.remove(&tenant.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exports::assemble::ExportSource;

    #[test]
    fn number_of_a_removed_tenant_is_given_again_last() {
        let spec = |name: &str| TenantSpec::parse(name, ExportSource::Control).unwrap();
        let mut tenants = Tenants::new(&[spec("a"), spec("b")]);
        tenants.remove(TenantId(0));
        assert_eq!(tenants.add(spec("c")).unwrap(), TenantId(2));
        for number in 3..TENANTS_MAX as u16 {
            assert_eq!(tenants.add(spec(&format!("t{number}"))).unwrap(), TenantId(number));
        }
        assert_eq!(tenants.add(spec("d")).unwrap(), TenantId(0));
        assert!(tenants.add(spec("e")).unwrap_err().message().contains("1024 tenants"));
        assert!(tenants.add(spec("d")).unwrap_err().message().contains("exists"));
    }
}
