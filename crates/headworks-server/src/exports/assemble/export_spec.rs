//! What a user asks to serve: a specification with a name and the options of the export.

use std::path::Path;
use std::sync::Arc;

use headworks_core::{ConfigError, Tunable};

use super::foreign;
use crate::spec::{BaseDevice, ExportOptions, Layer, Spec};
use crate::successor::leftovers::Leftovers;
use headworks::FileOptions;
use headworks_house::Identity;
use headworks_nbd::wire::STRING_BYTES_MAX;

/// Most exports of a server.
pub(crate) const EXPORTS_MAX: usize = 1024;

/// Specification of an export.
#[derive(Clone, Debug)]
pub struct ExportSpec {
    /// Name of the export; may be empty.
    pub name: String,
    /// Device behind the export.
    pub spec: Spec,
    /// Whether clients may only read.
    pub read_only: bool,
    /// Weight, class and cache options.
    pub share: ExportOptions,
    /// Named device that the export's image joins.
    pub device: Option<NamedDevice>,
    /// What the export comes from.
    pub source: ExportSource,
    /// Device and wrappers in the user's words, from the outside in; empty if it was made otherwise.
    pub layers: Arc<[Layer]>,
    /// Names and patterns of its clients' certificates, as the configuration has them; for a configuration that is saved.
    pub certificates: Arc<[String]>,
}

/// What an export comes from: a reload changes only what the configuration made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExportSource {
    /// A file of the configuration.
    #[default]
    File,
    /// The command line, which wins over files.
    CommandLine,
    /// `add` of the control socket.
    Control,
}

/// A named device: a queue shared by the exports that name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDevice {
    /// Name of the device.
    pub name: String,
    /// Options of its queue, those of all queues included.
    pub queue: Vec<(Tunable, u64)>,
}

impl ExportSpec {
    /// Parses `SPEC` or `NAME=SPEC`. Without a name, the `only` export has the empty name, others that of their image.
    ///
    /// # Errors
    /// The text is invalid.
    pub fn parse(text: &str, only: bool) -> Result<Self, ConfigError> {
        let (name, spec) = split_name(text)?;
        let (share, rest) = ExportOptions::take(spec)?;
        let layers = Spec::layers(&rest)?;
        let (spec, layers) = (Spec::of_layers(&layers)?, layers.into());
        let name = match name {
            Some(name) => name.to_owned(),
            None if only => String::new(),
            None => spec.short_name(),
        };
        Ok(Self { share, layers, ..Self::new(name, spec, false) })
    }

    /// An export with default weight, class and cache options.
    #[must_use]
    pub fn new(name: String, spec: Spec, read_only: bool) -> Self {
        let (share, source) = (ExportOptions::default(), ExportSource::default());
        let (layers, certificates) = Default::default();
        Self { name, spec, read_only, share, device: None, source, layers, certificates }
    }
}

/// Splits `NAME=SPEC`: a name has letters, digits, `.`, `_` and `-`, so `file:path=x` and `./a=b` are specifications.
///
/// # Errors
/// What stands where a name does is none, and the text is no specification: no type's, and no file's path.
fn split_name(text: &str) -> Result<(Option<&str>, &str), ConfigError> {
    let is_name = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    match text.split_once('=') {
        Some((name, spec)) if is_name(name) => Ok((Some(name), spec)),
        Some((name, spec)) if is_meant_as_name(name, spec) && !Path::new(text).exists() => {
            Err(ConfigError::new(
                "export",
                format!(
                    "`{name}` is no name for NAME=SPEC, which is made of letters a to z, digits, `.`, `_` and `-`; an [[export]] of a file \
                     may have any name, and a path with an equals sign starts with ./ or /"
                ),
            ))
        }
        _ => Ok((None, text)),
    }
}

/// Whether `word` is meant as the name before `=SPEC`, and is neither a type with its first key nor the beginning of a path.
fn is_meant_as_name(word: &str, spec: &str) -> bool {
    let starts_with_type = |text: &str| {
        text.split_once(':').is_some_and(|(kind, _)| Layer::kinds().any(|(known, _)| known == kind))
    };
    let is_path = word.starts_with(['/', '.']) && !starts_with_type(spec);
    !starts_with_type(word) && !is_path && (starts_with_type(spec) || !word.contains(':'))
}

/// Checks a list of exports without opening anything.
///
/// # Errors
/// A size is missing or 0, a name occurs twice, or there are too many: with the index of the export.
pub fn check_exports(exports: &[ExportSpec]) -> Result<(), (usize, ConfigError)> {
    if let Some(export) = exports.get(EXPORTS_MAX) {
        let name = shown_name(&export.name);
        let message =
            format!("export `{name}` is one too many: a server has at most {EXPORTS_MAX} exports");
        return Err((EXPORTS_MAX, ConfigError::new("export", message)));
    }
    for (index, export) in exports.iter().enumerate() {
        export.check().map_err(|error| (index, error))?;
        let name = shown_name(&export.name);
        let twin = exports[..index].iter().find(|other| shown_name(&other.name) == name);
        if let Some(twin) = twin {
            return Err((index, ConfigError::new("export", twins(&twin.name, &export.name))));
        }
    }
    Ok(())
}

/// Whether clients can ask for a name. Control characters are escaped where a name is shown.
fn check_name(name: &str) -> Result<(), ConfigError> {
    let wrong = |what: String| Err(ConfigError::new("export", what));
    match name.len() {
        len if len > STRING_BYTES_MAX => wrong(format!(
            "the name of an export has {len} bytes; NBD has names of at most {STRING_BYTES_MAX} bytes"
        )),
        _ if name.contains('\0') => wrong(format!(
            "the name `{name}` of an export has a zero byte, which NBD does not permit"
        )),
        _ => Ok(()),
    }
}

/// Shown name of the export without a name.
const DEFAULT: &str = "default";

/// Name of an export in paths, tables and metrics.
pub(crate) fn shown_name(name: &str) -> &str {
    if name.is_empty() { DEFAULT } else { name }
}

/// Error for two exports with the same shown name.
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
    /// Makes a relative path of an image start at `folder`.
    pub(crate) fn set_folder(&mut self, folder: &Path) {
        self.spec.base.set_folder(folder);
        let Some(path) = self.spec.base.path() else { return };
        let base = match &self.spec.base {
            BaseDevice::Overlay { new: Some(new), .. } => new.base.as_path(),
            _ => path,
        };
        let mut layers = self.layers.to_vec();
        for (key, word) in layers.last_mut().into_iter().flat_map(|layer| &mut layer.words) {
            match key.as_str() {
                "path" => *word = path.to_string_lossy().into_owned(),
                "base" => *word = base.to_string_lossy().into_owned(),
                _ => {}
            }
        }
        self.layers = layers.into();
    }

    /// Identity of the export's file; none for other devices or a missing file.
    pub(crate) fn identity(&self) -> Option<Identity> {
        match &self.spec.base {
            BaseDevice::Nbd(remote) => Some(remote.identity()),
            BaseDevice::Rbd(rbd) => Some(rbd.identity()),
            base => Identity::of(base.path()?).ok(),
        }
    }

    /// Says that the image is missing, if it is and would not be made, or that it is no raw image.
    pub(crate) fn missing_image(&self, leftovers: &Leftovers) -> Option<String> {
        if let Some(refusal) = foreign::refusal(&self.spec.base, leftovers) {
            return Some(format!("its image {refusal}"));
        }
        let (path, options) = match &self.spec.base {
            BaseDevice::File { path, options, .. } => (path, *options),
            BaseDevice::Overlay { new: Some(_), .. } => return None,
            BaseDevice::Image { path, .. } | BaseDevice::Overlay { path, .. } => {
                (path, FileOptions::default())
            }
            BaseDevice::Nbd(_)
            | BaseDevice::Rbd(_)
            | BaseDevice::Null { .. }
            | BaseDevice::Mem { .. } => return None,
        };
        let options = FileOptions { read_only: !self.writes(), ..options };
        options.is_missing(path).then(|| format!("its image {} does not exist", path.display()))
    }

    /// Whether clients may write.
    #[must_use]
    pub fn writes(&self) -> bool {
        !self.read_only && !self.spec.base.is_read_only()
    }

    /// Checks what can be checked without opening anything; every export passes it, wherever it comes from.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        check_name(&self.name)?;
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

/// Error for a device without a file that has no size.
pub(crate) fn no_size(kind: &str) -> ConfigError {
    ConfigError::new("size", format!("{kind}: needs a size, as in {kind}:size=1G"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_before_a_specification_is_a_name_or_refused() {
        for text in [
            "my disk=file:path=a.img",
            "my disk=a.img",
            "a/b=mem:size=1M",
            "x:y=mem:size=1M",
            "=a.img",
            "\u{fc}=a.img",
            "./a=mem:size=1M",
        ] {
            let wrong = ExportSpec::parse(text, false).unwrap_err().to_string();
            let name = text.split('=').next().unwrap();
            assert!(wrong.starts_with(&format!("export: `{name}` is no name")), "{wrong}");
        }
        for text in [
            "delay:of=file:path=a.img",
            "delay:read=5ms,of=file:path=a=b.img",
            "file:path=my disk=b.img",
            "./my disk=b.img",
            "/srv/a=b/disk.img",
            "../a=b.img",
            "a=my disk=b.img",
        ] {
            assert!(ExportSpec::parse(text, false).is_ok(), "{text}");
        }
    }

    #[test]
    fn names_are_those_that_clients_can_ask_for() {
        let checked = |name: &str| {
            let spec = Spec::parse("mem:size=1M").unwrap();
            check_exports(&[ExportSpec::new(name.to_owned(), spec, false)])
                .map_err(|(_, error)| error)
        };
        assert!(checked("").is_ok() && checked(&"n".repeat(STRING_BYTES_MAX)).is_ok());
        let long = checked(&"n".repeat(STRING_BYTES_MAX + 1)).unwrap_err();
        assert_eq!(
            long.message,
            "the name of an export has 4097 bytes; NBD has names of at most 4096 bytes"
        );
        let zero = checked("a\0b").unwrap_err();
        assert!(zero.message.contains("a\\u{0}b") && zero.message.contains("zero byte"), "{zero}");
        assert!(checked("a\nb").is_ok(), "it is escaped where it is shown");
    }
}
