//! Opens the images of a server, or inspects them for `headworks check`: one code decides for both.
//!
//! A missing image makes its export absent where that can be cured while the server runs: by a reload of the configuration
//! file, or by `ctl add`. Otherwise, and with `--strict`, the start is refused. It is also refused when nothing at all
//! would be served and no file can be loaded again, since that is a mistyped command line.

use std::time::Duration;

use headworks_core::ConfigError;
use headworks_server::{Assembly, ExportSpec, Leftovers, MissingImage};

use super::EffectiveOptions;
use super::announced_export::shown_export;

/// How long a remote may take to answer before others are served without it.
const ANSWER: Duration = Duration::from_secs(1);

/// Opens all images for serving; `live` servers can add exports later.
///
/// # Errors
/// The first export that cannot be served, or a queue option that does not suit its device.
pub(super) fn open(
    effective: &EffectiveOptions,
    specs: &[ExportSpec],
    (live, takes_over): (bool, bool),
    leftovers: &Leftovers,
) -> Result<Assembly, ConfigError> {
    // The clients of a server that is replaced wait for all of them.
    let within = (!takes_over).then_some(ANSWER);
    let missing = missing(effective, live);
    let mut assembly = Assembly::open_within(specs, missing, leftovers, within)
        .map_err(|error| with_others(specs, missing, error))?;
    finish(effective, &mut assembly)?;
    Ok(assembly)
}

/// Most errors in one message.
const SHOWN_MAX: usize = 8;

/// The first error of a start, with those that would come after it.
fn with_others(specs: &[ExportSpec], missing: MissingImage, first: ConfigError) -> ConfigError {
    let (_, refused) = Assembly::inspect(specs, missing);
    if refused.len() <= 1 && refused.iter().all(|(_, error)| error.message == first.message) {
        return first;
    }
    let mut said: Vec<String> = Vec::new();
    if !refused.iter().any(|(_, error)| error.message == first.message) {
        said.push(first.message.to_string());
    }
    let told = |(index, error): &(usize, ConfigError)| match error.message.starts_with("export ") {
        true => error.message.to_string(),
        false => format!("export {}: {}", shown_export(&specs[*index].name), error.message),
    };
    said.extend(refused.iter().map(told));
    let more = said.len().saturating_sub(SHOWN_MAX);
    said.truncate(SHOWN_MAX);
    if more > 0 {
        said.push(format!("and {more} more"));
    }
    ConfigError::new(first.option, said.join("; "))
}

/// Finds out what [`open`] would open, and every error with the index of its export, if it has one.
pub(super) fn inspect(
    effective: &EffectiveOptions,
    specs: &[ExportSpec],
    live: bool,
) -> (Assembly, Vec<(Option<usize>, ConfigError)>) {
    let (mut assembly, refused) = Assembly::inspect(specs, missing(effective, live));
    let mut errors: Vec<_> =
        refused.into_iter().map(|(index, error)| (Some(index), error)).collect();
    if errors.is_empty()
        && let Err(error) = finish(effective, &mut assembly)
    {
        errors.push((None, error));
    }
    (assembly, errors)
}

/// What a missing image means for this server.
pub(super) fn missing(effective: &EffectiveOptions, live: bool) -> MissingImage {
    match effective.options.strict || !live {
        true => MissingImage::Refuse,
        false => MissingImage::Absent,
    }
}

/// Applies the queue options of the configuration; refuses a server that serves nothing and never could.
fn finish(effective: &EffectiveOptions, assembly: &mut Assembly) -> Result<(), ConfigError> {
    let EffectiveOptions { options, config, .. } = effective;
    for ((queue, _), named) in assembly.devices.iter_mut().zip(&assembly.named) {
        config.apply_queue(named.as_ref().map(|named| named.name.as_str()), queue)?;
    }
    let absent = &assembly.absent;
    match options.config {
        None if !absent.is_empty() && assembly.exports.is_empty() => {
            let reasons: Vec<&str> = absent.iter().map(|one| one.reason.as_str()).collect();
            let message = format!("{}; give size=1G to create an image", reasons.join("; "));
            Err(ConfigError::new("path", message))
        }
        _ => Ok(()),
    }
}
