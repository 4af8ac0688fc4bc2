//! Option sources of `serve` and their precedence: command line, environment, configuration file, defaults.
//!
//! ```text
//!   command line --+-------------------------------------------------> clap -> ServeArgs
//!   HEADWORKS_* ---+- checked one by one - become defaults of clap's ----^  \-> origins -> File, to plan and to dump
//!   FILE, FILE.d --+
//! ```
//!
//! The table of options is clap's own (`table`): an option added to [`ServeArgs`] works in `[server]` of a file, in
//! the environment and in a dump without further code. A switch can be turned off (`--spread=off`), so that the
//! command line can override a file. Queue and write-back settings merge per tunable, see `QueueArgs`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command, FromArgMatches};
use headworks_core::ConfigError;
use headworks_server::config::{
    ConfigFile, ExportSection, ListenSection, Origin, Problem, Problems, Setting, TenantSection,
};
use headworks_server::{ExportSpec, parse_switch};

use super::source::{LoadedFile, load};
use super::table::OptionTable;
use super::{ListenArgs, ServeArgs};

/// Error while the options are collected.
#[derive(Debug)]
pub enum OptionError {
    /// Error on the command line, with clap's message.
    Usage(clap::Error),
    /// All errors in the environment or the file.
    Invalid(Problems),
    /// A file that cannot be read, or another reason why the server cannot start.
    Io(String),
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(error) => error.fmt(f),
            Self::Invalid(problems) => problems.fmt(f),
            Self::Io(error) => f.write_str(error),
        }
    }
}

impl From<ConfigError> for OptionError {
    /// An error of the start, beside those of the options themselves.
    fn from(error: ConfigError) -> Self {
        Self::Io(error.to_string())
    }
}

/// Effective options of `serve`, all sources merged.
#[derive(Debug)]
pub struct EffectiveOptions {
    /// Effective value of every option.
    pub options: ServeArgs,
    /// The same with the origin of each value, and exports, devices and tunables.
    pub config: ConfigFile,
    /// Hints about probable mistakes.
    pub notes: Vec<String>,
    /// Values of a file that a later one overrides.
    pub overridden: Vec<String>,
}

/// Lets switches of `serve` take `=off`, so that a source can override those below it.
pub fn switches(serve: Command) -> Command {
    serve.mut_args(|arg| match arg.get_action() {
        ArgAction::SetTrue => arg
            .action(ArgAction::Set)
            .num_args(0..=1)
            .require_equals(true)
            .value_name("on|off")
            .value_parser(|word: &str| parse_switch(word))
            .default_value("false")
            .default_missing_value("true")
            .hide_default_value(true),
        // Otherwise a number below zero would be an unknown option.
        action if action.takes_values() && !arg.is_positional() => arg.allow_negative_numbers(true),
        _ => arg,
    })
}

/// Merges the sources: `words` is the whole command line, `environment` all variables.
///
/// # Errors
/// All errors of the first source that has any.
pub fn resolve(
    words: &[OsString],
    environment: &BTreeMap<String, String>,
) -> Result<EffectiveOptions, OptionError> {
    let mut command = crate::command();
    let given = matches(&mut command.clone(), words)?;
    let table = OptionTable::new(&command);
    let (said, mut notes) = table.environment(environment)?;
    let LoadedFile { file, mut problems, overridden } = match config_path(&given, &said) {
        Some(path) => load(&path)?,
        None => Default::default(),
    };
    problems.0.extend(table.check(&file.server));
    if !problems.0.is_empty() {
        // What can be said of the rest, so that a file with errors of several kinds is mended in one round.
        let further = [file.plan(None, false).err(), file.plan_tenants().err()];
        problems.0.extend(further.into_iter().flatten().flat_map(|all| all.0));
    }
    let file = problems.or(file).map_err(OptionError::Invalid)?;
    let in_file = ConfigFile { server: file.server.clone(), ..ConfigFile::default() };
    let lower = in_file.merged(ConfigFile { server: said.server, ..ConfigFile::default() });
    let not_given =
        |setting: &&Setting| table.id(&setting.name).is_some_and(|id| !is_given(&given, id));
    for setting in lower.server.iter().filter(not_given) {
        command = table.with_default(command, setting);
    }
    let matches = matches(&mut command, words)?;
    let options = ServeArgs::from_arg_matches(&matches).map_err(OptionError::Usage)?;
    let server = table.effective(&matches, &given, &lower);
    let (queue, vm) = options.queue.settings(&Origin::CommandLine).map_err(usage)?;
    let exports = exports(&options.exports, file.exports.is_empty())?;
    let tenants = tenants(&options.tenant)?;
    let listeners = listeners(&options.listening)?;
    let config =
        file.merged(ConfigFile { queue: said.queue, vm: said.vm, ..ConfigFile::default() }).merged(
            ConfigFile { server, queue, vm, tenants, listeners, exports, ..ConfigFile::default() },
        );
    notes.extend(config.notes());
    Ok(EffectiveOptions { options, config, notes, overridden })
}

/// An error with the position of the option that it names.
pub(super) fn blame(config: &ConfigFile, error: &ConfigError) -> Problem {
    let said = config.server.iter().find(|setting| setting.name == error.option);
    let origin = said.map_or(&Origin::CommandLine, |setting| &setting.origin);
    Problem::new(origin, error.to_string())
}

/// An error with the position of its export, if it has one.
pub(super) fn problem_of(
    config: &ConfigFile,
    specs: &[ExportSpec],
    (index, error): (Option<usize>, ConfigError),
) -> Problem {
    // Disabled exports have no specification.
    let of = |index: usize| config.exports.iter().find(|one| one.name == specs[index].name);
    match index.and_then(of) {
        Some(export) => image_problem(export, &error),
        None => blame(config, &error),
    }
}

/// Error about the image of an export, with the position of the export.
fn image_problem(export: &ExportSection, error: &ConfigError) -> Problem {
    // A message about the path names it; one about the export names that.
    let what = match error.option {
        "path" | "export" => error.message.to_string(),
        _ => error.to_string(),
    };
    let name = shown_name(&export.name);
    let what = if error.option == "export" { what } else { format!("export {name}: {what}") };
    Problem::new(&export.origin, what)
}

/// The name of an export, as operators call the one without.
pub(super) fn shown_name(name: &str) -> &str {
    if name.is_empty() { "default" } else { name }
}

fn usage(error: impl fmt::Display) -> OptionError {
    OptionError::Invalid(Problems(vec![Problem::new(&Origin::CommandLine, error.to_string())]))
}

fn matches(command: &mut Command, words: &[OsString]) -> Result<ArgMatches, OptionError> {
    let mut matches = command.try_get_matches_from_mut(words).map_err(OptionError::Usage)?;
    matches.remove_subcommand().map(|(_, matches)| matches).ok_or_else(|| usage("no command"))
}

pub(super) fn is_given(matches: &ArgMatches, id: &str) -> bool {
    matches.value_source(id) == Some(ValueSource::CommandLine)
}

fn config_path(given: &ArgMatches, said: &ConfigFile) -> Option<PathBuf> {
    let named = said.server.iter().find(|setting| setting.name == "config");
    let path = given.get_one::<PathBuf>("config").cloned();
    path.or_else(|| named.map(|setting| PathBuf::from(setting.word())))
}

/// Parses the tenants of the command line.
fn tenants(texts: &[String]) -> Result<Vec<TenantSection>, OptionError> {
    let mut tenants: Vec<TenantSection> = Vec::new();
    for text in texts {
        let tenant = TenantSection::from_words(text, &Origin::CommandLine).map_err(usage)?;
        if tenants.iter().any(|other| other.name == tenant.name) {
            return Err(usage(format!("tenant: two tenants are named `{}`", tenant.name)));
        }
        tenants.push(tenant);
    }
    Ok(tenants)
}

/// Parses the listeners of the command line.
fn listeners(options: &ListenArgs) -> Result<Vec<ListenSection>, OptionError> {
    let mut listeners: Vec<ListenSection> = Vec::new();
    let origin = Origin::CommandLine;
    let own = options.listen.iter().map(|text| ListenSection::from_words(text, &origin));
    let disks = options.vhost_user.iter().map(|text| ListenSection::of_disk(text, &origin));
    let files = options.fuse.iter().map(|path| ListenSection::of_directory(path, &origin));
    for listener in own.chain(disks).chain(files) {
        let listener = listener.map_err(usage)?;
        if listeners.iter().any(|other| other.name == listener.name) {
            return Err(usage(format!("listen: two listeners are named `{}`", listener.name)));
        }
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Parses the exports of the command line. A single one without a name is the unnamed export.
fn exports(texts: &[String], no_others: bool) -> Result<Vec<ExportSection>, OptionError> {
    let mut exports: Vec<ExportSection> = Vec::new();
    for text in texts {
        let only = texts.len() == 1 && no_others;
        let export = ExportSection::from_words(text, only, &Origin::CommandLine).map_err(usage)?;
        if exports.iter().any(|other| other.name == export.name) {
            let name = &export.name;
            let message = format!(
                "export: two exports are named `{name}`; give each its own name with NAME=SPEC"
            );
            return Err(usage(message));
        }
        exports.push(export);
    }
    Ok(exports)
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
