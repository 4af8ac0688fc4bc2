//! Options of `serve` by name, derived from clap: what a file and the environment may set, and the effective values.

use std::collections::BTreeMap;
use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use headworks_server::config::{ConfigFile, Origin, Problem, Problems, Setting, Value, unknown};
use headworks_server::nearest_name;

use super::layers::{OptionError, is_given};
use super::source::{PREFIX, variable};
use crate::tunables::QueueArgs;
use crate::value_words::reason;

/// Options of the command line only.
const NOT_IN_FILES: [&str; 8] =
    ["config", "dump_config", "fuse", "help", "listen", "tenant", "version", "vhost_user"];
/// Options that run another action instead of serving.
const NOT_IN_ENVIRONMENT: [&str; 7] =
    ["dump_config", "fuse", "help", "listen", "tenant", "version", "vhost_user"];

/// Options of `serve`, as clap describes them.
pub struct OptionTable {
    serve: Command,
    /// Options by long name, in the order of the help.
    options: Vec<(String, Arg)>,
    /// Names of queue options, which belong to `[server.queue]`.
    queue: Vec<String>,
}

impl OptionTable {
    pub fn new(command: &Command) -> Self {
        let serve = command.find_subcommand("serve").cloned().unwrap_or_default();
        let optional = serve.clone().mut_args(|arg| arg.required(false)).no_binary_name(true);
        let queue = QueueArgs::augment_args(Command::new("queue"));
        let long = |arg: &Arg| Some((arg.get_long()?.to_owned(), arg.clone()));
        Self {
            options: serve.get_arguments().filter_map(long).collect(),
            queue: queue
                .get_arguments()
                .filter_map(|arg| Some(arg.get_long()?.to_owned()))
                .collect(),
            serve: optional,
        }
    }

    fn option(&self, name: &str) -> Option<&Arg> {
        self.options.iter().find(|(long, _)| long == name).map(|(_, arg)| arg)
    }

    pub fn id(&self, name: &str) -> Option<&str> {
        self.option(name).map(|arg| arg.get_id().as_str())
    }

    /// Options that a file may set in `[server]`.
    fn in_files(&self) -> impl Iterator<Item = (&str, &Arg)> {
        let own = |(name, arg): &&(String, Arg)| {
            !NOT_IN_FILES.contains(&arg.get_id().as_str()) && !self.queue.contains(name)
        };
        self.options.iter().filter(own).map(|(name, arg)| (name.as_str(), arg))
    }

    /// Checks names and values of a file and returns all errors.
    pub fn check(&self, settings: &[Setting]) -> Vec<Problem> {
        let wrong = |setting: &Setting| {
            let known = self.in_files().find(|(name, _)| *name == setting.name);
            let what = match known {
                None => self.unknown(&setting.name),
                Some((_, arg)) => self.check_value(arg, setting).err()?,
            };
            Some(Problem::new(&setting.origin, what))
        };
        settings.iter().filter_map(wrong).collect()
    }

    fn unknown(&self, name: &str) -> String {
        let dashed = name.replace('_', "-");
        if self.queue.contains(&dashed) {
            return format!("{name} belongs in [server.queue], by its name in sysfs");
        }
        if NOT_IN_FILES.contains(&name.replace('-', "_").as_str()) {
            return format!("{name} can only be set on the command line");
        }
        let known: Vec<&str> = self.in_files().map(|(name, _)| name).collect();
        unknown(name, "server", &known)
    }

    /// Checks one value with clap.
    fn check_value(&self, arg: &Arg, setting: &Setting) -> Result<(), String> {
        let (name, words) = (&setting.name, setting.value.words());
        if matches!(setting.value, Value::List(_)) && !is_list(arg) {
            return Err(format!("{name} takes one value, not a list"));
        }
        if matches!(arg.get_action(), ArgAction::Count) {
            let count = setting.word().parse::<u8>();
            return count.map(drop).map_err(|_| {
                format!("{name}: `{}` is not a number within 0..=255", setting.word())
            });
        }
        let line = words.iter().map(|word| format!("--{name}={word}"));
        let Err(error) = self.serve.clone().try_get_matches_from(line) else { return Ok(()) };
        // Missing or conflicting options are checked when all sources are merged.
        match error.kind() {
            ErrorKind::MissingRequiredArgument | ErrorKind::ArgumentConflict => Ok(()),
            _ => Err(format!("{name}: {}", reason(&error, Some(arg), setting.word()))),
        }
    }

    /// Reads the environment; returns settings and hints about unknown variables.
    pub fn environment(
        &self,
        all: &BTreeMap<String, String>,
    ) -> Result<(ConfigFile, Vec<String>), OptionError> {
        let (mut said, mut notes, mut problems) =
            (ConfigFile::default(), Vec::new(), Problems::default());
        for (variable, value) in all.iter().filter(|(name, _)| name.starts_with(PREFIX)) {
            let outcome = match self.named_by(variable) {
                Some((name, arg)) => self.said(name, arg, value),
                None => {
                    notes.extend(self.nearest_variable(variable));
                    continue;
                }
            };
            match outcome {
                Ok(more) => said = said.merged(more),
                Err(what) => {
                    let what = format!("{variable}: {what}");
                    problems.0.push(Problem::new(&Origin::Environment, what));
                }
            }
        }
        problems.or((said, notes)).map_err(OptionError::Invalid)
    }

    fn in_environment(&self) -> impl Iterator<Item = (&str, &Arg)> {
        let own = |(_, arg): &&(String, Arg)| !NOT_IN_ENVIRONMENT.contains(&arg.get_id().as_str());
        self.options.iter().filter(own).map(|(name, arg)| (name.as_str(), arg))
    }

    /// A misspelled variable would otherwise be ignored silently.
    fn nearest_variable(&self, wrong: &str) -> Option<String> {
        let name = wrong.strip_prefix(PREFIX)?.replace('_', "-").to_lowercase();
        let near = nearest_name(&name, self.in_environment().map(|(name, _)| name))?;
        Some(format!("{wrong} is not an option; did you mean {}?", variable(near)))
    }

    fn named_by(&self, wanted: &str) -> Option<(&str, &Arg)> {
        self.in_environment().find(|(name, _)| variable(name) == wanted)
    }

    /// Settings of one variable.
    fn said(&self, name: &str, arg: &Arg, value: &str) -> Result<ConfigFile, String> {
        let (value, origin) = (Value::Word(value.to_owned()), Origin::Environment);
        let setting = Setting { name: name.to_owned(), value, origin };
        if !self.queue.iter().any(|queue| queue == name) {
            self.check_value(arg, &setting)?;
            return Ok(ConfigFile { server: vec![setting], ..ConfigFile::default() });
        }
        let words: Vec<&str> = match name {
            // `set` is a list, separated by spaces.
            "set" => setting.word().split_whitespace().collect(),
            _ => vec![setting.word()],
        };
        let line = words.into_iter().map(|word| format!("--{name}={word}"));
        let reader = QueueArgs::augment_args(Command::new("queue").no_binary_name(true));
        let queue = reader
            .try_get_matches_from(line)
            .and_then(|matches| QueueArgs::from_arg_matches(&matches))
            .map_err(|error| reason(&error, Some(arg), setting.word()))?;
        let (queue, vm) =
            queue.settings(&Origin::Environment).map_err(|error| error.to_string())?;
        Ok(ConfigFile { queue, vm, ..ConfigFile::default() })
    }

    /// Returns the command with a lower source's value as the default of its option.
    pub fn with_default(&self, command: Command, setting: &Setting) -> Command {
        let Some(id) = self.id(&setting.name).map(str::to_owned) else { return command };
        let words: Vec<clap::builder::OsStr> =
            setting.value.words().iter().map(|word| OsString::from(word).into()).collect();
        command.mut_subcommand("serve", |serve| serve.mut_arg(id, |arg| arg.default_values(words)))
    }

    /// Effective value and origin of every option of `[server]`.
    pub fn effective(
        &self,
        matches: &ArgMatches,
        given: &ArgMatches,
        lower: &ConfigFile,
    ) -> Vec<Setting> {
        let shown = self.in_files().filter(|(_, arg)| !arg.is_hide_set());
        let each = shown.map(|(name, arg)| {
            let said = lower.server.iter().find(|setting| setting.name == name);
            let origin = match is_given(given, arg.get_id().as_str()) {
                true => Origin::CommandLine,
                false => said.map_or(Origin::Default, |setting| setting.origin.clone()),
            };
            Setting { name: name.to_owned(), value: value_of(matches, arg), origin }
        });
        each.collect()
    }
}

fn value_of(matches: &ArgMatches, arg: &Arg) -> Value {
    let id = arg.get_id().as_str();
    if matches!(arg.get_action(), ArgAction::Count) {
        return Value::Word(matches.get_count(id).to_string());
    }
    if let Ok(Some(switch)) = matches.try_get_one::<bool>(id) {
        return Value::Word(switch.to_string());
    }
    let words = matches.get_raw(id).into_iter().flatten();
    let mut words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    match words.pop() {
        None => Value::Unset,
        Some(word) if !is_list(arg) => Value::Word(word),
        Some(word) => Value::List(words.into_iter().chain([word]).collect()),
    }
}

fn is_list(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append) || arg.get_value_delimiter().is_some()
}
