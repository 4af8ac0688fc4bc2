//! Tenants as a configuration defines them, and the tenants that exports name.

use headworks_core::{ConfigError, TenantId};

use super::ExportSource;
use crate::spec::option_table::OptionTable;
use crate::spec::tenant::{TenantName, TenantOption, TenantOptions};

/// A tenant as it is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantSpec {
    /// Name of the tenant.
    pub name: TenantName,
    /// The values that are configured.
    pub options: TenantOptions,
    /// What it comes from.
    pub source: ExportSource,
}

impl TenantSpec {
    /// Parses `NAME` or `NAME,key=value,...`.
    ///
    /// # Errors
    /// The text is invalid.
    pub fn parse(text: &str, source: ExportSource) -> Result<Self, ConfigError> {
        let wrong = |message: String| ConfigError::new("tenant", message);
        let mut words = text.split(',');
        let name = TenantName::parse(words.next().unwrap_or_default()).map_err(wrong)?;
        name.check().map_err(wrong)?;
        let mut options = TenantOptions::default();
        let mut given: Vec<&str> = Vec::new();
        for word in words {
            let Some((key, value)) = word.split_once('=') else {
                let keys = TenantOption::own_keys().join(", ");
                let message = format!("`{word}` is not key=value; keys are {keys}");
                return Err(wrong(message));
            };
            if given.contains(&key) {
                return Err(wrong(format!("{key} is given twice")));
            }
            given.push(key);
            options.set(key, value)?;
        }
        options.limits.validate()?;
        Ok(Self { name, options, source })
    }
}

/// The number and values of the tenant that an export names, among those that a server starts with.
pub fn find_tenant(name: Option<TenantName>, all: &[TenantSpec]) -> (TenantId, TenantOptions) {
    let found = all.iter().position(|tenant| Some(tenant.name) == name);
    match found {
        Some(index) => (TenantId(index as u16), all[index].options),
        None => (TenantId::NONE, TenantOptions::default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_parsed_and_mistakes_named() {
        let parse = |text: &str| {
            TenantSpec::parse(text, ExportSource::Control).map_err(|error| error.to_string())
        };
        let spec = parse("acme,weight=400,ioprio-max=be:2").unwrap();
        assert_eq!((spec.name.as_str(), spec.options.weight), ("acme", 400));
        assert_eq!(spec.options.words()[1], ("ioprio-max", "be,2".to_owned()));
        assert_eq!(parse("a.b_c-9").unwrap().options, TenantOptions::default());
        assert_eq!(parse("a,ioprio-max=none").unwrap().options.ioprio_max, None);
        for (text, said) in [
            ("", "no name of a tenant"),
            ("a b", "no name of a tenant"),
            ("a/b", "no name of a tenant"),
            (&"x".repeat(64), "at most 63"),
            ("none,weight=5", "the word for no tenant"),
            ("a,weight", "`weight` is not key=value"),
            ("a,weight=0", "1 to 10000"),
            ("a,weight=1,weight=2", "given twice"),
            ("a,wieght=1", "the nearest is `weight`"),
            ("a,size=1", "its keys are weight, ioprio-max"),
            ("a,bps-total=1k", "the least is 4096"),
            ("a,bps-totl=1M", "the nearest is `bps-total`"),
            ("a,ioprio-max=best", "rt, be and idle"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
