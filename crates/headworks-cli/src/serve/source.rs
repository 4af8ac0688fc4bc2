//! Configuration files and environment variables.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use headworks::house::safe_open::open_named;
use headworks_server::config::{ConfigFile, Origin, Position, Problem, Problems, TEXT_MAX};

use super::layers::{EffectiveOptions, OptionError, resolve};

/// Arguments and environment of a process; with the configuration files, all option sources of `serve`.
pub struct OptionSources {
    words: Vec<OsString>,
    variables: BTreeMap<String, String>,
}

impl OptionSources {
    /// The sources of this process.
    pub fn here() -> Self {
        Self { words: std::env::args_os().collect(), variables: environment() }
    }

    /// Sources that consist of one configuration file.
    pub fn by_file(path: &Path) -> Self {
        let words = ["headworks", "serve", "--config"].map(OsString::from).into_iter();
        Self { words: words.chain([path.into()]).collect(), variables: BTreeMap::new() }
    }

    /// Reads the configuration file and merges all sources.
    pub fn resolve(&self) -> Result<EffectiveOptions, OptionError> {
        resolve(&self.words, &self.variables)
    }
}

/// Maximum number of drop-in files.
const DROP_INS_MAX: usize = 256;

/// Prefix of environment variables.
pub const PREFIX: &str = "HEADWORKS_";

/// Environment variable of an option.
pub fn variable(name: &str) -> String {
    format!("{PREFIX}{}", name.replace('-', "_").to_uppercase())
}

/// The environment, as far as it is UTF-8.
fn environment() -> BTreeMap<String, String> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
    };
    std::env::vars_os().filter_map(text).collect()
}

/// A file with its drop-ins.
#[derive(Default)]
pub struct LoadedFile {
    pub file: ConfigFile,
    pub problems: Problems,
    /// Values that a later file overrides, one sentence each.
    pub overridden: Vec<String>,
}

/// Reads a file and its drop-ins: NAME.toml, then NAME.d/*.toml in the order of their names.
pub fn load(path: &Path) -> Result<LoadedFile, OptionError> {
    let mut overridden = Vec::new();
    let mut problems = Problems::default();
    let mut file = ConfigFile::default();
    for path in std::iter::once(path.to_owned()).chain(drop_ins(path)?) {
        let (more, wrong) = read(&path)?;
        problems.0.extend(wrong.0);
        overridden.extend(file.overridden_by(&more));
        file = file.merged(more);
    }
    Ok(LoadedFile { file, problems, overridden })
}

fn drop_ins(path: &Path) -> Result<Vec<PathBuf>, OptionError> {
    let folder = path.with_extension("d");
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(Vec::new());
        }
        Err(error) => return Err(unreadable(&folder, &error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| unreadable(&folder, &error))?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            found.push(path);
        }
    }
    if found.len() > DROP_INS_MAX {
        let message = format!("{} has more than {DROP_INS_MAX} files; join some", folder.display());
        return Err(OptionError::Io(message));
    }
    found.sort();
    Ok(found)
}

fn unreadable(path: &Path, error: &io::Error) -> OptionError {
    OptionError::Io(format!("cannot read {}: {error}", path.display()))
}

fn read(path: &Path) -> Result<(ConfigFile, Problems), OptionError> {
    let mut bytes = Vec::new();
    // One byte more than the limit, to detect longer files.
    let most = TEXT_MAX as u64 + 1;
    open_named(path, fs::File::options().read(true))
        .and_then(|file| file.take(most).read_to_end(&mut bytes))
        .map_err(|error| unreadable(path, &error))?;
    let name = path.to_string_lossy();
    match String::from_utf8(bytes) {
        Ok(text) => Ok(ConfigFile::read(&name, &text)),
        Err(error) => {
            let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let (line, column) =
                good.split(|byte| *byte == b'\n').fold((0, 0), |(line, _), text| {
                    (line + 1, String::from_utf8_lossy(text).chars().count() as u32 + 1)
                });
            let origin = Origin::File(Position { file: name.into(), line, column });
            let problem = Problem::new(&origin, "the file is not UTF-8 text");
            Ok((ConfigFile::default(), Problems(vec![problem])))
        }
    }
}
