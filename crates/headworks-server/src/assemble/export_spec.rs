//! What a user asks to serve: a specification with a name and the options of the export.

use headworks_core::{ConfigError, Tunable};

use crate::spec::{BaseDevice, ExportOptions, Spec};
use headworks::Identity;

/// Where a client can go.
#[derive(Clone, Debug)]
pub struct ExportSpec {
    /// Its name; may be empty.
    pub name: String,
    /// What it is.
    pub spec: Spec,
    /// Clients may only read.
    pub read_only: bool,
    /// Its share of the device beside others, its clients' priority, and how it is cached.
    pub share: ExportOptions,
    /// The queue that it asks for by name, if it does.
    pub device: Option<NamedDevice>,
}

/// A queue of its own, shared by the exports that name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDevice {
    /// Its name.
    pub name: String,
    /// What is said of its queue, and of all queues.
    pub queue: Vec<(Tunable, u64)>,
}

impl ExportSpec {
    /// Reads `SPEC` or `NAME=SPEC`. An export that is not named has none if it is the `only` one, else that of its image.
    ///
    /// # Errors
    /// What is wrong with the words.
    pub fn parse(text: &str, only: bool) -> Result<Self, ConfigError> {
        let (name, spec) = split_name(text);
        let (spec, share) = Spec::parse_export(spec)?;
        let name = match name {
            Some(name) => name.to_owned(),
            None if only => String::new(),
            None => spec.short_name(),
        };
        Ok(Self { share, ..Self::new(name, spec, false) })
    }

    /// An export with an ordinary share and priority.
    #[must_use]
    pub fn new(name: String, spec: Spec, read_only: bool) -> Self {
        Self { name, spec, read_only, share: ExportOptions::default(), device: None }
    }
}

/// `NAME=SPEC`: the name is made of letters, digits, `.`, `_` and `-`, so `file:path=x` and `./a=b` are specs.
pub(crate) fn split_name(text: &str) -> (Option<&str>, &str) {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    match text.split_once('=') {
        Some((name, spec)) if is_name(name) => (Some(name), spec),
        _ => (None, text),
    }
}

/// Checks what can be checked without opening anything.
///
/// # Errors
/// A size that is missing or nothing, a name that is there twice, for clients or for the operator.
pub fn check(exports: &[ExportSpec]) -> Result<(), ConfigError> {
    for (index, export) in exports.iter().enumerate() {
        export.check()?;
        let name = shown_name(&export.name);
        let twin = exports[..index].iter().find(|other| shown_name(&other.name) == name);
        if let Some(twin) = twin {
            return Err(ConfigError::new("export", twins(&twin.name, &export.name)));
        }
    }
    Ok(())
}

/// What the export without a name is called by `ctl` and in metrics.
const DEFAULT: &str = "default";

/// An export's name in paths, in tables and in metrics.
pub(crate) fn shown_name(name: &str) -> &str {
    if name.is_empty() { DEFAULT } else { name }
}

/// What is wrong with two exports that the operator could not tell from each other.
fn twins(one: &str, other: &str) -> String {
    match one == other {
        true => format!("two exports are named `{one}`; give each its own name with NAME=SPEC"),
        false => format!(
            "one export is called `{DEFAULT}` and another has no name, for which `ctl` and metrics say `{DEFAULT}`; \
             call one of them otherwise"
        ),
    }
}

impl ExportSpec {
    /// Which file it is, if it is one and is there.
    pub(crate) fn identity(&self) -> Option<Identity> {
        match &self.spec.base {
            BaseDevice::File { path, .. } => Identity::of(path).ok(),
            _ => None,
        }
    }

    /// Its clients may write.
    pub(crate) fn writes(&self) -> bool {
        !self.read_only
            && !matches!(&self.spec.base, BaseDevice::File { options, .. } if options.read_only)
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        match (&self.spec.base, self.spec.size()) {
            (_, Some(0)) => {
                Err(ConfigError::new("size", "a size of 0 cannot be served; use size=1G"))
            }
            (BaseDevice::Null { .. }, None) => Err(no_size("null")),
            (BaseDevice::Mem { .. }, None) => Err(no_size("mem")),
            _ => Ok(()),
        }
    }
}

/// A fake needs to be told its size.
pub(crate) fn no_size(kind: &str) -> ConfigError {
    ConfigError::new("size", format!("{kind}: needs a size, as in {kind}:size=1G"))
}
