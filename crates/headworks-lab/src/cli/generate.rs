//! `headworks-lab completions` and `headworks-lab man`: generated from the description of the command line.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::complain;

/// Options of `headworks-lab completions`.
#[derive(Args)]
pub struct CompletionArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Options of `headworks-lab man`.
#[derive(Args)]
pub struct ManArgs {
    /// The directory; without one, the names of the pages are listed
    directory: Option<PathBuf>,
}

/// Prints the completion script for a shell.
pub fn completions(options: &CompletionArgs, mut command: Command) -> ExitCode {
    let (name, mut script) = (command.get_name().to_owned(), Vec::new());
    clap_complete::generate(options.shell, &mut command, name, &mut script);
    // A closed standard output does not change how the command ends.
    let _ = io::stdout().write_all(&script);
    ExitCode::SUCCESS
}

/// Lists the manual pages, or writes them to a directory.
pub fn man(options: &ManArgs, command: Command) -> ExitCode {
    let written = pages(command).and_then(|pages| match &options.directory {
        None => pages.iter().try_for_each(|(name, _)| writeln!(io::stdout(), "{name}")),
        Some(directory) => write_pages(directory, &pages),
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(format!("manual pages: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn write_pages(directory: &Path, pages: &[(String, Vec<u8>)]) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    pages.iter().try_for_each(|(name, text)| std::fs::write(directory.join(name), text))
}

/// The file name and text of every page, one page for each command.
fn pages(mut command: Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add_pages(&command, &mut pages)?;
    Ok(pages)
}

fn add_pages(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    pages.push(page(command)?);
    // Hidden commands are what other commands of this program start.
    let mut below = command.get_subcommands().filter(|below| !below.is_hide_set());
    below.try_for_each(|below| add_pages(below, pages))
}

fn page(command: &Command) -> io::Result<(String, Vec<u8>)> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .source(format!("headworks {}", env!("CARGO_PKG_VERSION")))
        .manual("Headworks");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    // Examples and notes keep their lines.
    if let Some(help) = command.get_after_help() {
        text.extend_from_slice(b".SH EXAMPLES AND NOTES\n.nf\n");
        for line in help.to_string().trim_start_matches("Examples:\n").lines() {
            text.extend_from_slice(literal(line).as_bytes());
        }
        text.extend_from_slice(b".fi\n");
    }
    Ok((format!("{name}.1"), text))
}

/// A line that roff prints as it is.
fn literal(line: &str) -> String {
    format!("\\&{}\n", line.replace('\\', "\\e").replace('-', "\\-"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_experiment_has_a_page_with_its_options() {
        let pages = pages(crate::cli::Cli::command()).unwrap();
        let text = |name: &str| {
            let page = pages.iter().find(|(page, _)| page == name).expect(name);
            String::from_utf8(page.1.clone()).unwrap()
        };
        assert!(pages.iter().all(|(page, _)| !page.contains("bfq-linux-client")));
        assert!(text("headworks-lab-run-bfq-linux.1").contains("OVERWRITTEN"));
        assert!(text("headworks-lab.1").contains("headworks\\-lab\\-run(1)"));
        assert!(text("headworks-lab-run-smoke.1").contains("\\-\\-scenarios"));
        assert!(text("headworks-lab-run-seed-002.1").contains("\\-\\-case scaling \\-\\-svg"));
        assert_eq!(literal(".a-b\\"), "\\&.a\\-b\\e\n");
    }
}
