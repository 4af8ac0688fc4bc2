//! `headworks man [DIR]`: manual pages of all commands, generated from the description of the command line.
//!
//! Text behind the options of `--help` becomes sections: a block that begins with `Examples:` is EXAMPLES, other
//! paragraphs are NOTES; indented lines keep their form. Pages about files and protocols are written by hand, in
//! packaging/man.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Command};
use clap_mangen::Man;

use crate::complain;
use headworks_control::reference::escaped;

/// Pages that are in packaging/man.
const BY_HAND: &str =
    "headworks.toml(5), headworks-protocol(7), headworks-tuning(7), headworks-control(7)";

/// Lists the manual pages, or writes them to a directory
#[derive(Args)]
#[command(after_help = "\
Examples:
  headworks man                                         the names of the pages
  headworks man /tmp/man && man -l /tmp/man/headworks-serve.1

`make install` writes them to where man(1) looks, with those of packaging/man.")]
pub struct ManArgs {
    /// Target directory; created if missing
    directory: Option<PathBuf>,
    /// Print headworks-control(7), which is made of the server's table of methods
    #[arg(long, hide = true, conflicts_with = "directory")]
    control: bool,
}

/// A page with its file name.
struct Page {
    name: String,
    text: Vec<u8>,
}

/// Lists or writes the pages and returns the exit code.
pub fn run(options: &ManArgs, command: Command) -> ExitCode {
    if options.control {
        crate::shown::print(crate::describe::man_control::page());
        return ExitCode::SUCCESS;
    }
    let written = pages(command).and_then(|pages| match &options.directory {
        Some(directory) => write(directory, &pages),
        None => {
            let names: String = pages.iter().map(|page| format!("{}\n", page.name)).collect();
            crate::shown::print(names);
            Ok(())
        }
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let directory = options.directory.clone().unwrap_or_default();
            complain(format!("cannot write the pages to {}: {error}", directory.display()));
            ExitCode::FAILURE
        }
    }
}

fn write(directory: &std::path::Path, pages: &[Page]) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    pages.iter().try_for_each(|page| std::fs::write(directory.join(&page.name), &page.text))
}

/// Renders all pages, each command before its subcommands.
fn pages(command: Command) -> io::Result<Vec<Page>> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut commands = Vec::new();
    collect(&command, command.get_name().to_owned(), &mut commands);
    let names: Vec<String> = commands.iter().map(|(command, _)| page_name(command)).collect();
    commands.iter().map(|(command, called)| page(command, called, &names)).collect()
}

/// Collects every command with its full invocation.
fn collect<'a>(command: &'a Command, called: String, into: &mut Vec<(&'a Command, String)>) {
    let of_command = |one: &Command| {
        let own = command.get_positionals().flat_map(|argument| {
            let names = argument.get_value_names().into_iter().flatten();
            names.map(|name| match argument.is_required_set() {
                true => format!("{name} "),
                false => format!("[{name}] "),
            })
        });
        let own: String = own.collect();
        format!("{called} {own}{}", one.get_name())
    };
    // headworks-lab has its own pages.
    let below =
        command.get_subcommands().filter(|one| !one.is_hide_set() && one.get_name() != "lab");
    let below: Vec<_> = below.map(|one| (one, of_command(one))).collect();
    into.push((command, called));
    below.into_iter().for_each(|(one, called)| collect(one, called, into));
}

fn page_name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn page(command: &Command, called: &str, names: &[String]) -> io::Result<Page> {
    let name = page_name(command);
    let man = Man::new(command.clone().bin_name(called))
        .title(name.to_uppercase())
        .source(format!("headworks {}", env!("CARGO_PKG_VERSION")))
        .manual("Headworks");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut text)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    let help = command.get_after_long_help().or_else(|| command.get_after_help());
    if let Some(help) = help {
        text.extend_from_slice(sections(&help.to_string()).as_bytes());
    }
    text.extend_from_slice(see_also(&name, names).as_bytes());
    Ok(Page { name: format!("{name}.1"), text })
}

/// Renders the sections EXAMPLES and NOTES.
fn sections(help: &str) -> String {
    let (mut examples, mut notes) = (String::new(), String::new());
    for block in help.split("\n\n") {
        match block.trim_end().strip_prefix("Examples:\n") {
            Some(lines) => examples += &as_it_is(lines.lines()),
            None => notes += &paragraph(block),
        }
    }
    let section = |name: &str, text: String| match text.is_empty() {
        true => text,
        false => format!(".SH {name}\n{text}"),
    };
    section("EXAMPLES", examples) + &section("NOTES", notes)
}

/// Renders lines that keep their form.
fn as_it_is<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let lines: String = lines.map(|line| escaped(line.trim_start()) + "\n").collect();
    format!(".nf\n{lines}.fi\n")
}

/// Renders a paragraph; indented lines keep their form.
fn paragraph(block: &str) -> String {
    let mut text = String::from(".PP\n");
    let lines: Vec<&str> = block.lines().filter(|line| !line.trim().is_empty()).collect();
    for run in lines.chunk_by(|one, other| one.starts_with(' ') == other.starts_with(' ')) {
        match run[0].starts_with(' ') {
            true => text += &as_it_is(run.iter().copied()),
            false => run.iter().for_each(|line| text += &(escaped(line) + "\n")),
        }
    }
    text
}

/// Renders SEE ALSO: pages of the parent, sibling and child commands, and those written by hand.
fn see_also(own: &str, names: &[String]) -> String {
    let parent = own.rsplit_once('-').map_or("", |(parent, _)| parent);
    let is_near = |name: &&String| {
        let (above, below) = (name.as_str() == parent, name.starts_with(&format!("{own}-")));
        let beside = name.rsplit_once('-').is_some_and(|(of, _)| of == parent);
        name.as_str() != own && (above || beside || below)
    };
    let near: String =
        names.iter().filter(is_near).map(|name| format!("{}(1), ", escaped(name))).collect();
    format!(".SH SEE ALSO\n{near}{}\n", escaped(BY_HAND))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn all() -> Vec<Page> {
        pages(crate::Cli::command()).unwrap()
    }

    fn text(name: &str) -> String {
        let page = all().into_iter().find(|page| page.name == name).expect(name);
        String::from_utf8(page.text).unwrap()
    }

    #[test]
    fn every_command_has_a_page_with_every_option() {
        let mut command = crate::Cli::command().disable_help_subcommand(true);
        command.build();
        let mut commands = Vec::new();
        collect(&command, "headworks".into(), &mut commands);
        assert_eq!(commands.len(), all().len());
        for (command, _) in commands {
            let text = text(&format!("{}.1", page_name(command)));
            let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
            for long in shown.filter_map(|argument| argument.get_long()) {
                let shown = format!("\\-\\-{}", long.replace('-', "\\-"));
                assert!(text.contains(&shown), "{}: no --{long}", command.get_name());
            }
        }
        for name in ["headworks.1", "headworks-serve.1", "headworks-ctl.1", "headworks-ctl-get.1"] {
            assert!(all().iter().any(|page| page.name == name), "{name}");
        }
    }

    #[test]
    fn examples_keep_lines_and_notes_are_filled() {
        let text = sections("Examples:\n  one -x\n  .two\n\nA note\ngoes on:\n  as it is\nend.");
        let expected = ".SH EXAMPLES\n.nf\none \\-x\n\\&.two\n.fi\n\
            .SH NOTES\n.PP\nA note\ngoes on:\n.nf\nas it is\n.fi\nend.\n";
        assert_eq!(text, expected);
        assert_eq!(sections("Only a note."), ".SH NOTES\n.PP\nOnly a note.\n");
    }

    #[test]
    fn no_text_becomes_a_troff_request() {
        for page in all() {
            let text = String::from_utf8(page.text).unwrap();
            let requests = [
                ".TH", ".SH", ".SS", ".TP", ".PP", ".RS", ".RE", ".nf", ".fi", ".br", ".sp", ".ie",
                ".el", ".IP",
            ];
            for line in text.lines().filter(|line| line.starts_with(['.', '\''])) {
                assert!(requests.iter().any(|one| line.starts_with(one)), "{}: {line}", page.name);
            }
        }
    }

    #[test]
    fn see_also_names_parent_and_children() {
        let text = text("headworks-ctl-get.1");
        assert!(text.contains("\\fBheadworks ctl [SOCKET] get\\fR "), "{text}");
        let end = text.rsplit_once(".SH SEE ALSO\n").unwrap().1;
        assert!(end.contains("headworks\\-ctl(1), ") && end.contains("headworks\\-ctl\\-set(1), "));
        assert!(!end.contains("headworks\\-serve(1)") && !end.contains("headworks\\-ctl\\-get(1)"));
    }
}
