//! `headworks crashtest`: cuts the power of a program at every place, and checks what may be left (`files/`). The program runs once, and what
//! it does is recorded: in `$dir`, a directory, or at `$uri`, a served disk. States are made from the record, without a second run.

mod arguments;
mod child;
mod files;
mod image;
mod junit;

use std::process::ExitCode;

pub use arguments::CrashtestArgs;
#[cfg(test)]
pub use files::FileSystem;

/// Exit code of a test that found a broken state.
const BROKEN: u8 = 1;

/// Runs the command with its arguments.
pub fn run(options: &CrashtestArgs) -> ExitCode {
    let tested = match options.misplaced().or_else(|| options.homeless()) {
        Some(wrong) => Err(wrong),
        None => match child::heed_signals() {
            Ok(()) => files::test(options),
            Err(error) => Err(format!("signals cannot be caught: {error}")),
        },
    };
    if let Some(signal) = child::ended_by().filter(|_| tested.is_err()) {
        crate::complain(format_args!("interrupted by signal {signal}"));
        child::end_by(signal);
    }
    match tested {
        Ok(false) => ExitCode::SUCCESS,
        Ok(true) => ExitCode::from(BROKEN),
        Err(error) => {
            // With what the check said, in lines.
            crate::complain_in_lines(&error);
            ExitCode::from(crate::USAGE)
        }
    }
}
