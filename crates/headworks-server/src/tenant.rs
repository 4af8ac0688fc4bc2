//! Tenants: customers of a server that divide its devices by weight, whatever number of exports and connections each has.
//!
//! A tenant is known by its name everywhere but in the core, which has a number for it. Names are short, so that one fits the
//! options of an export by value.

use std::fmt;

use headworks_core::limits::Limits;
use headworks_core::{ConfigError, Ioprio, TenantConfig};

use crate::cache_part::{CachePart, PART_KEYS};
use crate::did_you_mean::nearest_name;
use crate::latency_target::{latency_target_word, parse_latency_target};
use crate::limit_words::{LIMIT_KEYS, limit_words, set_limit};
use crate::units::{parse_ioprio, parse_weight};

/// Most bytes of a tenant's name.
const NAME_MAX: usize = 63;

/// The word of an export without a tenant, which no tenant may have as its name.
pub(crate) const NONE: &str = "none";

/// Keys of a tenant with a value each, in files, on the command line and in `ctl`.
pub const TENANT_KEYS: [&str; 6] =
    ["weight", "ioprio-max", "latency-target", "dirty", "cache-min", "cache-max"];

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
    /// Sets the value of a key of [`TENANT_KEYS`].
    ///
    /// # Errors
    /// The key is not known, or the value is invalid.
    pub fn set(&mut self, key: &str, word: &str) -> Result<(), ConfigError> {
        let wrong = |key: &'static str| move |message: String| ConfigError::new(key, message);
        match key {
            "weight" => self.weight = parse_weight(word).map_err(wrong("weight"))?,
            "ioprio-max" if word == "none" => self.ioprio_max = None,
            "ioprio-max" => {
                self.ioprio_max = Some(parse_ioprio(word).map_err(wrong("ioprio-max"))?);
            }
            "latency-target" => {
                self.latency_target_us =
                    parse_latency_target(word).map_err(wrong("latency-target"))?;
            }
            _ if let Some(name) = PART_KEYS.into_iter().find(|name| *name == key) => {
                self.part.set(name, word).map_err(wrong(name))?;
            }
            _ if let Some(name) = LIMIT_KEYS.into_iter().find(|name| *name == key) => {
                set_limit(&mut self.limits, name, word).map_err(wrong(name))?;
            }
            _ => {
                let known = TENANT_KEYS.into_iter().chain(LIMIT_KEYS);
                let message = match nearest_name(key, known) {
                    Some(near) => format!("has no key `{key}`; the nearest is `{near}`"),
                    None => format!(
                        "has no key `{key}`; its keys are {}, and limits such as bps-total",
                        TENANT_KEYS.join(", ")
                    ),
                };
                return Err(ConfigError::new("tenant", message));
            }
        }
        Ok(())
    }

    /// The words of all values, by key; limits that are not set are left out.
    pub fn words(&self) -> Vec<(&'static str, String)> {
        let most = self.ioprio_max.map_or("none".to_owned(), |ioprio| ioprio.to_string());
        let target = latency_target_word(self.latency_target_us);
        let own =
            [("weight", self.weight.to_string()), ("ioprio-max", most), ("latency-target", target)];
        own.into_iter().chain(self.part.words()).chain(limit_words(&self.limits)).collect()
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
