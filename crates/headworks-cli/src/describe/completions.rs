//! `headworks completions SHELL`: completion scripts, generated from the description of the command line.
//!
//! Behind `headworks ctl` the scripts of bash and fish also offer names that the running server has: they ask `ctl_names`, and go on as
//! generated when it says nothing. They start the program of the search path, never one that only stands on the line.

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

/// Names of the server come first; candidates are whole words, so that bash expands nothing in them. A path goes on behind its slash.
const NAMES_IN_BASH: &str = r#"
_headworks_with_names() {
    local names
    if [[ "${COMP_WORDS[1]}" == ctl ]]; then
        names=$(command headworks complete-ctl "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
        if [[ -n "$names" ]]; then
            mapfile -t COMPREPLY <<<"$names"
            if [[ "$names" == */ ]]; then
                compopt -o nospace 2>/dev/null
            fi
            return 0
        fi
    fi
    _headworks "$@"
}
complete -F _headworks_with_names -o bashdefault -o default headworks
"#;

const NAMES_IN_FISH: &str = r#"
complete -c headworks -n "__fish_seen_subcommand_from ctl" -a "(command headworks complete-ctl (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)"
"#;

/// Prints the script and returns the exit code.
pub fn run(options: &CompletionsArgs, command: Command) -> ExitCode {
    // Standard output may be closed.
    crate::shown::print(String::from_utf8_lossy(&script(options.shell, command)));
    ExitCode::SUCCESS
}

fn script(shell: Shell, mut command: Command) -> Vec<u8> {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    match shell {
        Shell::Bash => {
            clap_complete::generate(shells::Bash, &mut command, name, &mut script);
            script.extend_from_slice(NAMES_IN_BASH.as_bytes());
        }
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut command, name, &mut script),
        Shell::Fish => {
            clap_complete::generate(shells::Fish, &mut command, name, &mut script);
            script.extend_from_slice(NAMES_IN_FISH.as_bytes());
        }
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
