//! Arguments of `headworks crashtest`, and the words of a cut.

use std::path::PathBuf;

use clap::Args;
use clap::builder::TypedValueParser;
use headworks_crash::{Model, Record, State};

use headworks_server::{parse_size, parse_time};

use super::files::FileSystem;
use crate::known_words::{FILE_SYSTEMS, MODELS};
use crate::serve::check::missing_folder;

/// Arguments of the command.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CrashtestArgs {
    /// Program that is cut: a shell command that works in $dir, or that writes to the disk $uri; each line that it prints is a promise, and what it notes in $state survives
    #[arg(long, value_name = "CMD", required_unless_present = "again")]
    pub run: Option<String>,
    /// Program that checks what is left in $dir, or at $uri, with the promises on its standard input: exit 0 if it is right
    #[arg(long, value_name = "CMD", required_unless_present = "again")]
    pub check: Option<String>,
    /// Program that prepares $dir, or the disk at $uri, once
    #[arg(long, value_name = "CMD")]
    pub setup: Option<String>,
    /// Image to begin with; it is copied
    #[arg(long, value_name = "FILE", conflicts_with = "size")]
    pub image: Option<PathBuf>,
    /// Size of a disk of zeros to begin with, 64M; room for the files of $dir, 1G
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub size: Option<u64>,
    /// Number of states to draw: of $dir under each model 1000, of a disk 300
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub cuts: Option<u64>,
    /// Of the places of the cuts and of what survives
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Gone: a disk is recorded, too, and a state of its record is repeated
    #[arg(long, hide = true, value_name = "PLACE:SEED")]
    pub cut: Option<String>,
    /// A disk that acknowledges flushes and loses what they cover
    #[arg(long)]
    pub lie: bool,
    /// Page cache of the server, which a cut empties; 0: every write reaches the disk as the program sends it
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub cache: String,
    /// Time limit of each program
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "60s")]
    pub timeout: u64,
    /// Directory for images, records and logs, which stays; default: a temporary one, which stays after a broken image or state
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Write a report for a CI system: a test case for each cause
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
    #[command(flatten)]
    pub files: FilesArgs,
}

/// Arguments for programs that use files.
#[derive(Args)]
#[command(next_help_heading = "Files: --run names $dir")]
pub struct FilesArgs {
    /// What a file system may lose: journal (ext4, XFS), log-tree (btrfs, f2fs), any (what POSIX allows); default: each, and any alone is no failure
    #[arg(long, value_name = "MODEL", value_parser = MODELS.try_map(|word| word.parse::<Model>()))]
    pub model: Option<Model>,
    /// Fail also for what POSIX alone allows
    #[arg(long)]
    pub strict: bool,
    /// Check all states of each place that has at most K
    #[arg(long, value_name = "K", num_args = 0..=1, require_equals = true, default_missing_value = "4096",
          value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub exhaustive: Option<u64>,
    /// Run each check on a recording directory, and draw N states of cuts inside it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub recovery: Option<u64>,
    /// Number of directories: with 2 the program also gets $dir2, on a disk of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    pub dirs: u8,
    /// Bytes that are written together: 4096, or 512 to tear pages; of a disk 4096 if the program writes whole ones
    #[arg(long, value_name = "BYTES", value_parser = ["4096", "512"])]
    pub sector: Option<String>,
    /// Repeat the run on these file systems of the kernel, cut their disk, and say which causes they show; needs root
    #[arg(long, value_name = "FS", value_delimiter = ',', value_parser = FILE_SYSTEMS.try_map(|word| word.parse::<FileSystem>()),
          conflicts_with = "state")]
    pub fs: Vec<FileSystem>,
    /// Cuts of each of them
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..=1_000_000), requires = "fs")]
    pub fs_cuts: u64,
    /// Keep the record of what the program did
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Size of the record in memory at most
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G")]
    pub record_max: u64,
    /// Explore a record again, without running the program
    #[arg(long, value_name = "FILE", conflicts_with_all = ["run", "setup", "record"])]
    pub again: Option<PathBuf>,
    /// Check this state of the record alone
    #[arg(long, value_name = "PLACE:LOSSES", requires = "again", conflicts_with_all = ["exhaustive", "recovery"])]
    pub state: Option<StateWord>,
    /// Leave the directory of that state at DIR, as it was before the check
    #[arg(long, value_name = "DIR", requires = "state")]
    pub keep_dir: Option<PathBuf>,
    /// Time for exploring; a minute, no limit with --exhaustive
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub time: Option<u64>,
    /// Checks at once; default: one for each processor
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
    pub jobs: Option<u64>,
    /// End at the first cause
    #[arg(long)]
    pub stop_at_first: bool,
}

const EXAMPLES: &str = "\
Examples:
  headworks crashtest --run './my-db $dir' --check './verify $dir'
  headworks crashtest --run './my-db $dir' --check './verify $dir' --exhaustive --model journal
  headworks crashtest --again crash.hwrec --state 230:2.3+7   the state that was reported, again
  headworks crashtest --again crash.hwrec --fs ext4,xfs       do these file systems of this kernel do the same?

A disk instead of files, for any NBD client (libnbd, qemu-io, fio, a virtual machine):
  headworks crashtest --run './load $uri' --check './verify $uri'
  headworks crashtest --run './load $uri' --check './verify $uri' --exhaustive

Exit status: 0 nothing was broken, 1 a check failed, 2 the test could not run.";

impl CrashtestArgs {
    /// Bytes that are lost or kept together in states of a record.
    pub fn block(&self, record: &Record) -> u64 {
        let given = self.files.sector.as_ref().and_then(|word| word.parse().ok());
        given.unwrap_or_else(|| record.image_block())
    }

    /// Whether the program works in a directory: one of its commands names it, or a record is explored.
    pub fn uses_files(&self) -> bool {
        let named = |program: &Option<String>| {
            program
                .as_ref()
                .is_some_and(|program| program.contains("$dir") || program.contains("${dir"))
        };
        self.files.again.is_some() || [&self.setup, &self.run, &self.check].into_iter().any(named)
    }

    /// The first option that has no meaning for files, or for a disk.
    pub fn misplaced(&self) -> Option<String> {
        let Self { image, cut, lie, cache, files, .. } = self;
        if cut.is_some() {
            return Some("--cut is gone: a program that writes to a disk is recorded once, and --again RECORD --state repeats what was reported".into());
        }
        let of_disks = [("image", image.is_some()), ("lie", *lie), ("cache", cache != "0")];
        let of_files = [
            ("model", files.model.is_some()),
            ("strict", files.strict),
            ("recovery", files.recovery.is_some()),
            ("dirs", files.dirs > 1),
            ("fs", !files.fs.is_empty()),
        ];
        let (wrong, hint): (&[(&str, bool)], _) = match self.uses_files() {
            true => (&of_disks, "of a disk, and the program works in $dir"),
            false => (&of_files, "of files, and no command names $dir"),
        };
        let found = wrong.iter().find(|(_, given)| *given);
        found.map(|(name, _)| format!("--{name} is {hint}"))
    }

    /// A report that could not be written when the test has ended.
    pub fn homeless(&self) -> Option<String> {
        let folder = missing_folder(self.junit.as_ref()?)?;
        Some(format!("junit: no such directory: {}", folder.display()))
    }

    /// Bytes of a disk of zeros.
    pub fn disk_size(&self) -> u64 {
        self.size.unwrap_or(64 << 20)
    }

    /// The program that is cut; empty for a record.
    pub fn program(&self) -> &str {
        self.run.as_deref().unwrap_or_default()
    }
}

/// A word of a shell's command line.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// A state as a report names it, with the number of its directories or without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateWord {
    pub state: State,
    /// Number of its directories: a record that makes others is another one.
    pub hash: Option<u64>,
}

impl std::str::FromStr for StateWord {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let (state, hash) = match word.split_once('@') {
            Some((state, hash)) => (state, Some(hash)),
            None => (word, None),
        };
        let number = |hash| {
            u64::from_str_radix(hash, 16)
                .map_err(|_| format!("`{hash}` is no number of a directory"))
        };
        Ok(Self { state: state.parse()?, hash: hash.map(number).transpose()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: CrashtestArgs,
    }

    fn parsed(words: &[&str]) -> CrashtestArgs {
        Line::try_parse_from([&["crashtest"], words].concat()).unwrap().arguments
    }

    #[test]
    fn states_are_named_with_the_number_of_their_directories() {
        let word: StateWord = "12:3.2+7@00000000000000ff".parse().unwrap();
        assert_eq!((word.state.to_string(), word.hash), ("12:3.2+7".to_owned(), Some(255)));
        assert!(["12", "12:1@x"].iter().all(|word| word.parse::<StateWord>().is_err()));
    }

    #[test]
    fn options_of_the_other_mode_are_refused() {
        let wrong = |words: &[&str]| {
            parsed(&[&["--run", words[0], "--check", "c"], &words[1..]].concat()).misplaced()
        };
        assert_eq!(wrong(&["./load $uri", "--exhaustive", "--sector", "512", "--lie"]), None);
        assert!(wrong(&["./load $uri", "--cut", "3:9"]).unwrap().starts_with("--cut is gone"));
        assert_eq!(wrong(&["./load $dir", "--exhaustive", "--sector", "512"]), None);
        assert_eq!(
            wrong(&["./load ${dir}2", "--lie"]).unwrap(),
            "--lie is of a disk, and the program works in $dir"
        );
        assert_eq!(
            wrong(&["./load", "--model", "any"]).unwrap(),
            "--model is of files, and no command names $dir"
        );
    }
}
