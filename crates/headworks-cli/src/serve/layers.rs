//! What `serve` is told, by whom: the command line wins over the environment, that over the configuration file, that over defaults.
//!
//! ```text
//!   command line --+-------------------------------------------------> clap -> Options
//!   HEADWORKS_* ---+- checked one by one - become defaults of clap's ----^  \-> who said what -> File, to plan and to dump
//!   FILE, FILE.d --+
//! ```
//!
//! The table of options is clap's own (see `table`): an option that is added to [`Options`] is known in a file's `[server]`, in the environment
//! and in a dump without another line. A switch can be turned off (`--spread=off`), so that the command line can overrule a
//! file. What is said of queues and of write-back is merged tunable by tunable instead, see `Queue`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Command, FromArgMatches};
use headworks_server::config::{Export, File, Origin, Problem, Problems, Setting};
use headworks_server::units::parse_switch;

use super::Options;
use super::source::load;
use super::table::Table;

/// Why there is nothing to serve.
#[derive(Debug)]
pub enum Wrong {
    /// A word on the command line: clap's own message.
    Usage(clap::Error),
    /// Words elsewhere, all that are wrong.
    Words(Problems),
    /// A file that cannot be read.
    World(String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(error) => error.fmt(f),
            Self::Words(problems) => problems.fmt(f),
            Self::World(error) => f.write_str(error),
        }
    }
}

/// What `serve` is told, all layers together.
#[derive(Debug)]
pub struct Settled {
    /// Options, whoever said them.
    pub options: Options,
    /// The same with who said them, and exports, devices and tunables.
    pub config: File,
    /// What a user may not have meant.
    pub notes: Vec<String>,
}

/// Makes switches of `serve` take `=off`, so that a layer can overrule one below it.
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
        _ => arg,
    })
}

/// Puts the layers together: `words` are the whole command line, `environment` all variables.
///
/// # Errors
/// All that is wrong in the first layer that has something wrong.
pub fn settle(
    words: &[OsString],
    environment: &BTreeMap<String, String>,
) -> Result<Settled, Wrong> {
    let mut command = crate::command();
    let given = matches(&mut command.clone(), words)?;
    let table = Table::new(&command);
    let (said, mut notes) = table.environment(environment)?;
    let (file, mut problems) = match config_path(&given, &said) {
        Some(path) => load(&path)?,
        None => Default::default(),
    };
    problems.0.extend(table.check(&file.server));
    let file = problems.or(file).map_err(Wrong::Words)?;
    let in_file = File { server: file.server.clone(), ..File::default() };
    let lower = in_file.merged(File { server: said.server, ..File::default() });
    let not_given =
        |setting: &&Setting| table.id(&setting.name).is_some_and(|id| !is_given(&given, id));
    for setting in lower.server.iter().filter(not_given) {
        command = table.with_default(command, setting);
    }
    let matches = matches(&mut command, words)?;
    let options = Options::from_arg_matches(&matches).map_err(Wrong::Usage)?;
    let server = table.effective(&matches, &given, &lower);
    let (queue, vm) = options.queue.settings(&Origin::CommandLine).map_err(usage)?;
    let exports = exports(&options.exports, file.exports.is_empty())?;
    let config = file
        .merged(File { queue: said.queue, vm: said.vm, ..File::default() })
        .merged(File { server, queue, vm, exports, ..File::default() });
    notes.extend(config.notes());
    Ok(Settled { options, config, notes })
}

/// What is wrong with the meaning of words of the command line.
fn usage(error: impl fmt::Display) -> Wrong {
    Wrong::Words(Problems(vec![Problem::new(&Origin::CommandLine, error.to_string())]))
}

fn matches(command: &mut Command, words: &[OsString]) -> Result<ArgMatches, Wrong> {
    let mut matches = command.try_get_matches_from_mut(words).map_err(Wrong::Usage)?;
    matches.remove_subcommand().map(|(_, matches)| matches).ok_or_else(|| usage("no command"))
}

pub(super) fn is_given(matches: &ArgMatches, id: &str) -> bool {
    matches.value_source(id) == Some(ValueSource::CommandLine)
}

fn config_path(given: &ArgMatches, said: &File) -> Option<PathBuf> {
    let named = said.server.iter().find(|setting| setting.name == "config");
    let path = given.get_one::<PathBuf>("config").cloned();
    path.or_else(|| named.map(|setting| PathBuf::from(setting.word())))
}

/// Exports of the command line. A single one that has no name is the one without a name.
fn exports(texts: &[String], no_others: bool) -> Result<Vec<Export>, Wrong> {
    let mut exports: Vec<Export> = Vec::new();
    for text in texts {
        let only = texts.len() == 1 && no_others;
        let export = Export::from_words(text, only, &Origin::CommandLine).map_err(usage)?;
        if exports.iter().any(|other| other.name == export.name) {
            let name = &export.name;
            let message = format!("export: two exports are called `{name}`; name them NAME=SPEC");
            return Err(usage(message));
        }
        exports.push(export);
    }
    Ok(exports)
}

#[cfg(test)]
#[path = "layers_tests.rs"]
mod tests;
