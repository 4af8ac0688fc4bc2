//! `headworks completions SHELL`: completion scripts, generated from the description of the command line.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, Command, ValueEnum};
use clap_complete::shells;

/// Prints a completion script for a shell
#[derive(Args)]
#[command(after_help = "\
Examples:
  headworks completions bash > /usr/share/bash-completion/completions/headworks
  headworks completions zsh > /usr/share/zsh/vendor-completions/_headworks
  headworks completions fish > /usr/share/fish/vendor_completions.d/headworks.fish
  . <(headworks completions bash)                       only for this shell

`make install` writes all three.")]
pub struct CompletionsArgs {
    /// Shell that the script is for
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Prints the script and returns the exit code.
pub fn run(options: &CompletionsArgs, command: Command) -> ExitCode {
    // Standard output may be closed.
    let _ = std::io::stdout().write_all(&script(options.shell, command));
    ExitCode::SUCCESS
}

fn script(shell: Shell, mut command: Command) -> Vec<u8> {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    match shell {
        Shell::Bash => clap_complete::generate(shells::Bash, &mut command, name, &mut script),
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut command, name, &mut script),
        Shell::Fish => clap_complete::generate(shells::Fish, &mut command, name, &mut script),
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn every_shell_script_names_every_command() {
        let command = crate::Cli::command();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = String::from_utf8(script(shell, command.clone())).unwrap();
            for one in command.get_subcommands() {
                assert!(text.contains(one.get_name()), "{shell:?} has no {}", one.get_name());
            }
        }
    }
}
