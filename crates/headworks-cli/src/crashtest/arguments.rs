//! Arguments of `headworks crashtest`, and the words of a cut.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use headworks_core::prng::Prng;

use headworks_server::{parse_size, parse_time};

/// Arguments of the command.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct CrashtestArgs {
    /// Program that is cut: a shell command that writes to $uri; $state is a directory for what it promised, empty at first
    #[arg(long, value_name = "CMD")]
    pub run: String,
    /// Program that checks what is left at $uri against $state: exit 0 if it is right
    #[arg(long, value_name = "CMD")]
    pub check: String,
    /// Program that prepares the disk at $uri, once
    #[arg(long, value_name = "CMD")]
    pub setup: Option<String>,
    /// Image to begin with; it is copied
    #[arg(long, value_name = "FILE", conflicts_with = "size")]
    pub image: Option<PathBuf>,
    /// Size of a disk of zeros to begin with
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64M")]
    pub size: u64,
    /// Number of cuts to make
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub cuts: u64,
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
    /// Directory for images and logs, which stays; default: a temporary one, which stays after a broken image
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

const EXAMPLES: &str = "\
Examples:
  headworks crashtest --run './load $uri $state' --check './verify $uri $state' --cuts 200
  headworks crashtest --setup 'mkfs.ext4 -q $uri' ...       any NBD client: libnbd, qemu-io, fio, nbdfuse, a guest
  headworks crashtest --cut 37:1182 --run ... --check ...   the cut that was reported, again

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
            words.push(format!("--size {}", self.size));
        }
        words.extend(self.lie.then(|| "--lie".to_owned()));
        if self.cache != "0" {
            words.push(format!("--cache {}", self.cache));
        }
        let setup = self.setup.as_ref().map(|setup| ("setup", setup));
        for (name, program) in setup.into_iter().chain([("run", &self.run), ("check", &self.check)])
        {
            words.push(format!("--{name} {}", quoted(program)));
        }
        words.join(" ")
    }
}

/// A word of a shell's command line.
fn quoted(text: &str) -> String {
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
        let again = parsed(&["--cut", "3:9", "--run", "it's $uri", "--check", "b"]);
        assert_eq!(again.cut, Some(Cut { place: 3, seed: 9 }));
        assert!(["0:1", "3", "x:1", "1:"].iter().all(|word| word.parse::<Cut>().is_err()));
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
