//! Arguments of `headworks crashtest`, and the words of a cut.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use clap::builder::TypedValueParser;
use headworks_core::prng::Prng;
use headworks_crash::State;

use headworks_server::{parse_size, parse_time};

use super::files::FileSystem;
use crate::known_words::{FILE_SYSTEMS, MODELS};

/// Arguments of the command.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CrashtestArgs {
    /// Program that is cut: a shell command that works in $dir, each line that it prints is a promise; or that writes to the disk $uri and notes promises in $state
    #[arg(long, value_name = "CMD", required_unless_present = "again")]
    pub run: Option<String>,
    /// Program that checks what is left in $dir, with the promises on its standard input (or at $uri, against $state): exit 0 if it is right
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
    /// Number of cuts to make on a disk, 100; number of states of $dir to draw under each model, 1000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub cuts: Option<u64>,
    /// Of the places of the cuts and of what survives
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Repeat this cut alone
    #[arg(long, value_name = "PLACE:SEED", conflicts_with_all = ["cuts", "seed"])]
    pub cut: Option<Cut>,
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
    #[arg(long, value_name = "MODEL", value_parser = MODELS)]
    pub model: Option<String>,
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
    /// Bytes that are written together: 4096, or 512 to tear pages
    #[arg(long, value_name = "BYTES", default_value = "4096", value_parser = ["4096", "512"])]
    pub sector: String,
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
  headworks crashtest --run './load $uri $state' --check './verify $uri $state' --cuts 200
  headworks crashtest --cut 37:1182 --run ... --check ...     the cut that was reported, again

Exit status: 0 nothing was broken, 1 a check failed, 2 the test could not run.";

impl CrashtestArgs {
    /// The command line that repeats a cut.
    pub fn again(&self, cut: Cut) -> String {
        let mut words = vec![format!("headworks crashtest --cut {cut}")];
        let paths = [("image", &self.image), ("work", &self.work)];
        for (name, path) in
            paths.into_iter().filter_map(|(name, path)| Some((name, path.as_ref()?)))
        {
            words.push(format!("--{name} {}", quoted(&path.display().to_string())));
        }
        if self.image.is_none() {
            words.push(format!("--size {}", self.disk_size()));
        }
        words.extend(self.lie.then(|| "--lie".to_owned()));
        if self.cache != "0" {
            words.push(format!("--cache {}", self.cache));
        }
        for (name, program) in [("setup", &self.setup), ("run", &self.run), ("check", &self.check)]
        {
            words.extend(program.as_ref().map(|program| format!("--{name} {}", quoted(program))));
        }
        words.join(" ")
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
        let of_disks = [
            ("image", image.is_some()),
            ("cut", cut.is_some()),
            ("lie", *lie),
            ("cache", cache != "0"),
        ];
        let of_files = [
            ("model", files.model.is_some()),
            ("strict", files.strict),
            ("exhaustive", files.exhaustive.is_some()),
            ("recovery", files.recovery.is_some()),
            ("dirs", files.dirs > 1),
            ("sector", files.sector != "4096"),
            ("fs", !files.fs.is_empty()),
            ("record", files.record.is_some()),
            ("time", files.time.is_some()),
            ("jobs", files.jobs.is_some()),
            ("stop-at-first", files.stop_at_first),
        ];
        let (wrong, hint): (&[(&str, bool)], _) = match self.uses_files() {
            true => (&of_disks, "of a disk, and the program works in $dir"),
            false => (&of_files, "of files, and no command names $dir"),
        };
        let found = wrong.iter().find(|(_, given)| *given);
        found.map(|(name, _)| format!("--{name} is {hint}"))
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

/// Where the power is cut, and what decides what survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Number of the write or flush that gets no answer, from 1.
    pub place: u64,
    /// Seed of what survives.
    pub seed: u64,
}

impl Cut {
    /// The cut number `index` of `cuts` in a load of so many commands: if there are enough, each place in turn, and else places at random.
    pub fn draw(prng: &mut Prng, index: u64, cuts: u64, commands: u64) -> Self {
        let seed = prng.below(1 << 32);
        let random = 1 + prng.below(commands.max(1));
        let place = if cuts >= commands.max(1) { 1 + index % commands.max(1) } else { random };
        Self { place, seed }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.place, self.seed)
    }
}

impl std::str::FromStr for Cut {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let parts = word.split_once(':').and_then(|(place, seed)| {
            Some(Self {
                place: place.parse().ok().filter(|place| *place > 0)?,
                seed: seed.parse().ok()?,
            })
        });
        parts.ok_or_else(|| format!("`{word}` is no cut; 37:1182 is one: place 37, seed 1182"))
    }
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
    fn printed_command_repeats_the_cut() {
        let first = parsed(&[
            "--run",
            "it's $uri",
            "--check",
            "b",
            "--lie",
            "--size",
            "1M",
            "--cache",
            "8M",
        ]);
        let again = first.again(Cut { place: 3, seed: 9 });
        let words = "headworks crashtest --cut 3:9 --size 1048576 --lie --cache 8M --run 'it'\\''s $uri' --check 'b'";
        assert_eq!(again, words);
        let word: StateWord = "12:3.2+7@00000000000000ff".parse().unwrap();
        assert_eq!((word.state.to_string(), word.hash), ("12:3.2+7".to_owned(), Some(255)));
        assert!(["12", "12:1@x"].iter().all(|word| word.parse::<StateWord>().is_err()));
        let again = parsed(&["--cut", "3:9", "--run", "it's $uri", "--check", "b"]);
        assert_eq!(again.cut, Some(Cut { place: 3, seed: 9 }));
        assert!(["0:1", "3", "x:1", "1:"].iter().all(|word| word.parse::<Cut>().is_err()));
    }

    #[test]
    fn options_of_the_other_mode_are_refused() {
        let wrong = |words: &[&str]| {
            parsed(&[&["--run", words[0], "--check", "c"], &words[1..]].concat()).misplaced()
        };
        assert_eq!(wrong(&["./load $uri"]), None);
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

    #[test]
    fn enough_cuts_meet_each_place_and_fewer_are_inside() {
        let mut prng = Prng::new(1);
        let mut places: Vec<u64> = (0..10).map(|i| Cut::draw(&mut prng, i, 10, 5).place).collect();
        places.sort_unstable();
        assert_eq!(places, [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
        assert!((0..50).all(|i| (1..=100).contains(&Cut::draw(&mut prng, i, 50, 100).place)));
        assert_eq!(Cut::draw(&mut prng, 0, 1, 0).place, 1);
    }
}
