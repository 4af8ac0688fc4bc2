//! Tenants: customers of a server that divide its devices by weight, whatever number of exports and connections each has.
//!
//! A tenant is known by its name everywhere but in the core, which has a number for it. Names are short, so that one fits the
//! options of an export by value.

use std::fmt;

use headworks_core::limits::Limits;
use headworks_core::{ConfigError, Ioprio, TenantConfig};
use serde_json::Value;

use crate::spec::cache_part::{CachePart, PARTS, parse_part, part_value};
use crate::spec::did_you_mean::nearest_name;
use crate::spec::latency_target::{TARGETS, parse_latency_target, target_value};
use crate::spec::option_table::{OptionTable, options, word};
use crate::spec::units::{CLASSES, WEIGHTS, parse_ioprio, parse_weight};

/// Most bytes of a tenant's name.
const NAME_MAX: usize = 63;

/// The word of an export without a tenant, which no tenant may have as its name.
pub(crate) const NONE: &str = "none";

options! {
    /// An option of a tenant.
    pub(crate) enum TenantOption of TenantOptions {
        Weight        = "weight" [weight] (IO_WEIGHT) parse_weight, Value::from; AtOnce, Always, WEIGHTS,
            ", its share of every device beside other tenants";
        IoprioMax     = "ioprio-max" [ioprio_max] parse_ioprio_max, ioprio_max_value; AtOnce, Always, CLASSES,
            ", the highest I/O priority of its clients";
        LatencyTarget = "latency-target" [latency_target_us] (IO_LATENCY) parse_latency_target, target_value; AtOnce, Always, TARGETS,
            ", that of its exports that have none";
        Dirty         = "dirty" [part.dirty] parse_part, part_value; AtOnce, WithCache, PARTS,
            ", the most of its data in the page cache that is not written yet";
        CacheMin      = "cache-min" [part.min] parse_part, part_value; AtOnce, WithCache, PARTS,
            ", what others do not evict of its data in the page cache";
        CacheMax      = "cache-max" [part.max] parse_part, part_value; AtOnce, WithCache, PARTS,
            ", beyond this it evicts its own data of the page cache";
        Limits        = limits [limits]; AtOnce, Never, "", "limits as of an export";
    }
}

fn parse_ioprio_max(word: &str) -> Result<Option<Ioprio>, String> {
    if word == NONE { Ok(None) } else { parse_ioprio(word).map(Some) }
}

fn ioprio_max_value(most: Option<Ioprio>) -> Value {
    most.map_or(NONE.into(), |ioprio| ioprio.to_string().into())
}

/// The name of a tenant: 1 to 63 letters, digits, `.`, `_` and `-`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TenantName {
    bytes: [u8; NAME_MAX],
    len: u8,
}

impl TenantName {
    /// Parses a name.
    ///
    /// # Errors
    /// A sentence: what a name is made of.
    pub fn parse(text: &str) -> Result<Self, String> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if text.is_empty() || text.len() > NAME_MAX || !text.bytes().all(plain) {
            return Err(format!(
                "`{}` is no name of a tenant, which is made of at most {NAME_MAX} letters, digits, `.`, `_` and `-`",
                text.chars().take(NAME_MAX).collect::<String>().escape_debug()
            ));
        }
        let mut bytes = [0; NAME_MAX];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self { bytes, len: text.len() as u8 })
    }

    /// Checks the name of a new tenant.
    ///
    /// # Errors
    /// A sentence: it is the word for no tenant.
    pub fn check(&self) -> Result<(), String> {
        match self.is_none() {
            true => Err(format!("`{NONE}` is the word for no tenant; choose another name")),
            false => Ok(()),
        }
    }

    /// Whether an export says with this word that it has no tenant.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.as_str() == NONE
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // A name is ASCII, see `parse`.
        std::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or_default()
    }
}

impl fmt::Display for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// Values of a tenant that can be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantOptions {
    /// Weight of every device beside other tenants and exports without one, 1..=10000.
    pub weight: u16,
    /// The highest I/O priority of its clients; none does not limit it.
    pub ioprio_max: Option<Ioprio>,
    /// Latency target of its exports that have none, in microseconds; 0 for none.
    pub latency_target_us: u32,
    /// Its part of the page cache.
    pub part: CachePart,
    /// Limits of all its clients together.
    pub limits: Limits,
}

impl Default for TenantOptions {
    fn default() -> Self {
        Self {
            weight: TenantConfig::default().weight,
            ioprio_max: None,
            latency_target_us: 0,
            part: CachePart::default(),
            limits: Limits::default(),
        }
    }
}

impl TenantOptions {
    /// Sets the value of a key.
    ///
    /// # Errors
    /// The key is not known, or the value is invalid.
    pub fn set(&mut self, key: &str, word: &str) -> Result<(), ConfigError> {
        if let Some((option, key)) = TenantOption::of_key(key) {
            let set = (option.row().set)(self, key, word);
            return set.map_err(|message| ConfigError::new(key, message));
        }
        let message = match nearest_name(key, TenantOption::keys().map(|(_, key)| key)) {
            Some(near) => format!("has no key `{key}`; the nearest is `{near}`"),
            None => format!(
                "has no key `{key}`; its keys are {}, and limits such as bps-total",
                TenantOption::own_keys().join(", ")
            ),
        };
        Err(ConfigError::new("tenant", message))
    }

    /// The words of all values, by key; limits that are not set are left out.
    pub fn words(&self) -> Vec<(&'static str, String)> {
        let usual = Self::default();
        let is_said = |(option, key): &(TenantOption, &'static str)| {
            option.own_key().is_some()
                || (option.row().get)(self, key) != (option.row().get)(&usual, key)
        };
        let said = TenantOption::keys().filter(is_said);
        said.filter_map(|(option, key)| Some((key, word(&(option.row().get)(self, key))?)))
            .collect()
    }

    /// Every key with a line about it, as a sentence of a manual.
    #[must_use]
    pub fn help() -> String {
        TenantOption::help()
    }

    /// Every key, for options of a command line, and what goes on behind it in a manual; empty for limits.
    pub fn keys() -> impl Iterator<Item = (&'static str, &'static str)> {
        TenantOption::keys().map(|(option, key)| {
            let help = option.own_key().map_or("", |_| option.row().help);
            (key, help.trim_start_matches(", "))
        })
    }

    /// Lowers an I/O priority to the highest of this tenant.
    #[must_use]
    pub fn limit(&self, ioprio: Ioprio) -> Ioprio {
        // The higher the priority, the lower the code.
        self.ioprio_max.filter(|most| most.code() > ioprio.code()).unwrap_or(ioprio)
    }
}

/// The error for a tenant that is named and not defined, with the nearest name.
pub fn no_tenant<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.into_iter().collect();
    match nearest_name(name, known.iter().copied()) {
        Some(near) => format!("there is no tenant `{name}`; the nearest is `{near}`"),
        None if known.is_empty() => {
            format!(
                "there is no tenant `{name}`, and no other; define it with a [[tenant]] or --tenant {name}"
            )
        }
        None => {
            let first: Vec<&str> = known.into_iter().take(16).collect();
            format!("there is no tenant `{name}`; there are {}", first.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::IoClass;

    #[test]
    fn ceiling_lowers_only_higher_priorities() {
        let most = Some(Ioprio::new(IoClass::BestEffort, 2));
        let options = TenantOptions { ioprio_max: most, ..TenantOptions::default() };
        let limited = |class, level| options.limit(Ioprio::new(class, level)).to_string();
        assert_eq!(limited(IoClass::RealTime, 7), "be,2");
        assert_eq!(limited(IoClass::BestEffort, 0), "be,2");
        assert_eq!(limited(IoClass::BestEffort, 2), "be,2");
        assert_eq!(limited(IoClass::BestEffort, 5), "be,5");
        assert_eq!(limited(IoClass::Idle, 0), "idle,0");
        let free = TenantOptions::default();
        assert_eq!(free.limit(Ioprio::new(IoClass::RealTime, 0)).to_string(), "rt,0");
    }
}
