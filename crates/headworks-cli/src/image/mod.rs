//! `headworks image`: makes overlays, and does to one that is not served what the server cannot do to it.
//!
//! Each command can be killed at any moment: it leaves what was, or what it can be told to continue. Anything that copies says every
//! second how far it is.

mod arguments;
mod show;

use crate::shown::error_line;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use headworks::house::display_size;
use headworks_core::ConfigError;
use headworks_images::formats::format_of;
use headworks_images::{
    CommitOptions, NewBase, NewOverlay, OpenOverlay, OverlayOptions, REMOTE_BASE, ResetOptions,
};
use headworks_server::{BASES, is_remote_base};
use serde_json::json;

pub use arguments::ImageArgs;
use arguments::{Backing, BaseFormat, ImageCommand};

use crate::complain;
use crate::shown::{Lines, line, path_text};

/// Time between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// The result of a command: a sentence or a table, and the same as JSON.
struct Outcome {
    text: String,
    json: serde_json::Value,
    /// What `check` found.
    is_good: bool,
}

impl Outcome {
    fn good(text: String, json: serde_json::Value) -> Self {
        Self { text, json, is_good: true }
    }
}

/// Carries out a command and returns the exit code.
pub fn run(options: &ImageArgs) -> ExitCode {
    match carry_out(&options.command) {
        Ok(Outcome { text, json, is_good }) => {
            let text = if options.json { format!("{json:#}\n") } else { text };
            crate::shown::print(text);
            if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            complain(error.message);
            ExitCode::FAILURE
        }
    }
}

fn carry_out(command: &ImageCommand) -> Result<Outcome, ConfigError> {
    match command {
        ImageCommand::Create { base, base_format, size, file } => {
            create(&new_base(base, *base_format)?, *size, file)
        }
        ImageCommand::Info { file, backing } => Ok(show::info(&inspect(file, *backing)?)),
        ImageCommand::Check { file, backing, forget_here } => {
            if *forget_here {
                let bytes = OpenOverlay::forget_here(file)?;
                error_line!("{}: {} forgotten", file.display(), display_size(bytes));
            }
            Ok(show::check(file, inspect(file, *backing)))
        }
        ImageCommand::Commit { file, backing, others_are_lost } => {
            let (base_anywhere, others_are_lost) = (backing.is_anywhere(), *others_are_lost);
            commit(file, &CommitOptions { base_anywhere, others_are_lost })
        }
        ImageCommand::Flatten { file, out, backing } => flatten(file, out, *backing),
        ImageCommand::Reset { file, backing, yes, keep_mixture } => {
            let (base_anywhere, keep_mixture) = (backing.is_anywhere(), *keep_mixture);
            reset(file, &ResetOptions { base_anywhere, formats: BASES, keep_mixture }, *yes)
        }
        ImageCommand::Rebase { base, base_format, file } => {
            rebase(&new_base(base, *base_format)?, file)
        }
    }
}

fn inspect(file: &Path, backing: Backing) -> Result<OpenOverlay, ConfigError> {
    OpenOverlay::inspect(file, &reading(backing))
}

fn reading(backing: Backing) -> OverlayOptions {
    OverlayOptions {
        read_only: true,
        base_anywhere: backing.is_anywhere(),
        formats: BASES,
        ..OverlayOptions::default()
    }
}

/// A base in the format that was said. A file that begins like an image is no base without a word: a client may have written its first
/// bytes, and what such an image names would be read.
fn new_base(path: &Path, format: Option<BaseFormat>) -> Result<NewBase<'_>, ConfigError> {
    if format.is_none() && is_remote_base(path) {
        return Ok(NewBase { path, format: Some(REMOTE_BASE), formats: BASES });
    }
    let format = match (format, format_of(path)) {
        (Some(said), _) => said.name(),
        (None, None) => None,
        (None, Some(found)) => {
            let shown = path.display();
            let read = found.format.map_or_else(
                || {
                    "it is not read here; qemu-img convert -O raw makes a raw image of it"
                        .to_owned()
                },
                |format| format!("--base-format {} takes what is in it", format.name()),
            );
            let message = format!(
                "{shown} {}: {read}; --base-format raw takes its bytes as they are",
                found.resemblance()
            );
            return Err(ConfigError::new("base", message));
        }
    };
    Ok(NewBase { path, format, formats: BASES })
}

fn create(base: &NewBase<'_>, size: Option<u64>, file: &Path) -> Result<Outcome, ConfigError> {
    let new = NewOverlay::on(base, size)?;
    let named = new.create(file)?;
    let size = new.size();
    // Of the same options as `serve` by default.
    let usual = OverlayOptions { formats: BASES, ..OverlayOptions::default() };
    let beside = OpenOverlay::inspect(file, &usual).is_ok();
    let mut text = Lines::default();
    text.push(format!("{}: {} on {}", file.display(), display_size(size), named.display()));
    match (beside, base.format) {
        (true, _) => {}
        (false, Some(REMOTE_BASE)) => {
            text.push("its base is a remote: it is opened with backing=allow (--backing allow)");
        }
        (false, _) => text.push(
            "its base is in another directory: it is opened with backing=allow (--backing allow)",
        ),
    }
    let json = json!({
        "path": path_text(file),
        "size": size,
        "base": path_text(&named),
        "needs_backing_allow": !beside,
    });
    Ok(Outcome::good(text.into_text(), json))
}

fn commit(file: &Path, options: &CommitOptions) -> Result<Outcome, ConfigError> {
    let mut progress = Progress::new("commit");
    let bytes = OpenOverlay::commit(file, options, &mut |done, all| progress.tell(done, all))?;
    let mut outcome = moved(file, bytes, "committed into its base; it is empty now");
    for above in OpenOverlay::overlays_on(file, file) {
        let (above, file) = (above.display(), file.display());
        outcome.text += &format!(
            "{above} lies on it: give that another base (headworks image rebase) before {file} is removed\n"
        );
    }
    Ok(outcome)
}

fn reset(file: &Path, options: &ResetOptions, yes: bool) -> Result<Outcome, ConfigError> {
    if yes {
        let bytes = OpenOverlay::reset(file, options)?;
        return Ok(moved(file, bytes, "given up; it is its base now"));
    }
    let bytes = OpenOverlay::bytes_to_reset(file, options)?;
    let what = "would be lost; nothing was changed; repeat with --yes to give them up";
    Ok(Outcome { is_good: false, ..moved(file, bytes, what) })
}

fn moved(file: &Path, bytes: u64, what: &str) -> Outcome {
    let text = line(format!("{}: {} {what}", file.display(), display_size(bytes)));
    Outcome::good(text, json!({ "path": path_text(file), "bytes": bytes }))
}

fn flatten(file: &Path, out: &Path, backing: Backing) -> Result<Outcome, ConfigError> {
    let open = OpenOverlay::open(file, &reading(backing), None)?;
    let mut progress = Progress::new("flatten");
    let bytes = open.flatten(out, &mut |done, all| progress.tell(done, all))?;
    let size = open.volume_options().size;
    let text = line(format!(
        "{}: a raw image of {}, {} of it data",
        out.display(),
        display_size(size),
        display_size(bytes)
    ));
    Ok(Outcome::good(text, json!({ "path": path_text(out), "size": size, "bytes": bytes })))
}

fn rebase(base: &NewBase<'_>, file: &Path) -> Result<Outcome, ConfigError> {
    OpenOverlay::rebase(file, base)?;
    let text = line(format!("{}: its base is {} now", file.display(), base.path.display()));
    Ok(Outcome::good(text, json!({ "path": path_text(file), "base": path_text(base.path) })))
}

/// Lines on standard error about work that takes long.
struct Progress {
    what: &'static str,
    began: Instant,
    told: Instant,
}

impl Progress {
    fn new(what: &'static str) -> Self {
        let now = Instant::now();
        Self { what, began: now, told: now }
    }

    fn tell(&mut self, done: u64, all: u64) -> bool {
        let now = Instant::now();
        if now - self.told >= PROGRESS_EVERY {
            self.told = now;
            error_line!("{}", self.line(now - self.began, done, all));
        }
        true
    }

    fn line(&self, took: Duration, done: u64, all: u64) -> String {
        let rate = (done as f64 / took.as_secs_f64()) as u64;
        let left = all.saturating_sub(done).checked_div(rate);
        let left = left.map_or(String::new(), |seconds| format!(", about {seconds} s left"));
        let [done, all, rate] = [done, all, rate].map(display_size);
        format!("{}: {done} of {all}, {rate}/s{left}", self.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_bytes_rate_and_time_left() {
        let progress = Progress::new("commit");
        let line = progress.line(Duration::from_secs(2), 64 << 20, 256 << 20);
        assert_eq!(line, "commit: 64 MiB of 256 MiB, 32 MiB/s, about 6 s left");
        let line = progress.line(Duration::from_secs(1), 0, 1 << 20);
        assert_eq!(line, "commit: 0 bytes of 1 MiB, 0 bytes/s");
    }
}
