//! Servers that start, stop and are killed at once over the same names: every step of theirs on the file system may come between two of
//! another's.
//!
//! The code is the server's, over real files. A server is a thread that runs only in its turns; a seed draws whose turn is next. Rules, after
//! every step: the name of a running server's file names that file, and no two servers have the same one. In the end a server
//! alone finds only files that no process has locked, and leaves one.
//!
//! `HEADWORKS_SEED=N` runs one seed, `HEADWORKS_SCHEDULES=N` more of them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use headworks_core::prng::Prng;

use super::{CacheStore, is_named};

/// Servers at once.
const SERVERS: usize = 3;
/// Starts of each.
const LIVES: usize = 3;
/// Seeds of a run.
const SEEDS: u64 = 150;

thread_local! {
    static TURNS: RefCell<Option<(Arc<Turns>, usize)>> = const { RefCell::new(None) };
}

/// Whether files are looked at again after they were locked; not with the planted defect.
pub(super) fn looks_again() -> bool {
    TURNS.with_borrow(|turns| turns.as_ref().is_none_or(|(turns, _)| !turns.defect))
}

/// Lets others take steps before the next one of this server.
pub(super) fn step() {
    let turns = TURNS.with_borrow(Clone::clone);
    if let Some((turns, server)) = turns {
        turns.wait(server);
    }
}

#[derive(Default)]
struct State {
    /// Whose turn it is.
    turn: Option<usize>,
    /// Servers that wait for a turn.
    waiting: Vec<usize>,
    ended: usize,
    /// The files of running servers.
    files: BTreeMap<usize, (Arc<std::fs::File>, PathBuf)>,
    errors: Vec<String>,
}

struct Turns {
    state: Mutex<State>,
    changed: Condvar,
    defect: bool,
}

impl Turns {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the turn of a server, and waits for its next.
    fn wait(&self, server: usize) {
        let mut state = self.lock();
        state.turn = None;
        state.waiting.push(server);
        self.changed.notify_all();
        while state.turn != Some(server) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn end(&self) {
        let mut state = self.lock();
        state.turn = None;
        state.ended += 1;
        self.changed.notify_all();
    }

    /// Gives turns until all servers have ended; the first broken rule.
    fn run(&self, prng: &mut Prng) -> Result<(), String> {
        let mut broken = Ok(());
        loop {
            let mut state = self.lock();
            while state.turn.is_some() || state.waiting.len() + state.ended < SERVERS {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if broken.is_ok() {
                broken = check(&state);
            }
            if state.waiting.is_empty() {
                return broken;
            }
            // In the order of their numbers, whichever came first.
            state.waiting.sort_unstable();
            let next = prng.below(state.waiting.len() as u64) as usize;
            state.turn = Some(state.waiting.swap_remove(next));
            self.changed.notify_all();
        }
    }
}

fn check(state: &State) -> Result<(), String> {
    if let Some(error) = state.errors.first() {
        return Err(error.clone());
    }
    let gone = |(server, (file, path)): (&usize, &(Arc<std::fs::File>, PathBuf))| {
        (!names(file, path))
            .then(|| format!("server {server} runs without its file {}", path.display()))
    };
    state.files.iter().find_map(gone).map_or(Ok(()), Err)
}

fn names(file: &std::fs::File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(own), Ok(named)) = (file.metadata(), std::fs::symlink_metadata(path)) else {
        return false;
    };
    (own.dev(), own.ino()) == (named.dev(), named.ino())
}

/// Starts a server, lets it run for some turns, and stops or kills it.
fn live(turns: &Turns, server: usize, path: &Path, prng: &mut Prng) {
    let option = path.to_str().expect("the test's own path");
    let started = CacheStore::find(option, Vec::new(), None, None, true);
    let started = started.and_then(|mut store| store.create().map(|file| (store, file)));
    let (store, file) = match started {
        Ok((store, Some(file))) => (store, file),
        other => {
            let error = other.err().map(|error| error.to_string());
            return turns.lock().errors.push(format!("server {server} has no file: {error:?}"));
        }
    };
    let own = store.path().expect("it has a name").to_owned();
    turns.lock().files.insert(server, (Arc::clone(&file.file), own));
    for _ in 0..prng.below(6) {
        step();
    }
    turns.lock().files.remove(&server);
    if prng.below(2) == 0 {
        store.remove();
    }
    // Without that it is killed: its file and name stay, its lock goes.
}

fn run(seed: u64, defect: bool) -> Result<(), String> {
    let directory =
        PathBuf::from(format!("/dev/shm/headworks-starts-{}-{seed}-{defect}", std::process::id()));
    std::fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    let path = directory.join("cache");
    let turns = Arc::new(Turns { state: Mutex::default(), changed: Condvar::new(), defect });
    let servers: Vec<_> = (0..SERVERS)
        .map(|server| {
            let (turns, path) = (Arc::clone(&turns), path.clone());
            std::thread::spawn(move || {
                TURNS.with_borrow_mut(|own| *own = Some((Arc::clone(&turns), server)));
                let mut prng = Prng::new(seed << 8 | server as u64).split("starts");
                for _ in 0..LIVES {
                    step();
                    live(&turns, server, &path, &mut prng);
                }
                turns.end();
            })
        })
        .collect();
    let broken = turns.run(&mut Prng::new(seed).split("turns"));
    servers.into_iter().for_each(|server| server.join().expect("a server does not panic"));
    let left = last_start(&path);
    std::fs::remove_dir_all(&directory).map_err(|error| error.to_string())?;
    broken.and(left)
}

/// What the last start says, as soon as the locks of servers that ended are gone: a process that another test starts has copies of their
/// descriptors until it executes its program.
fn last_start(path: &Path) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let left = start_alone(path);
        if left.is_ok() || Instant::now() > deadline {
            return left;
        }
        std::thread::yield_now();
    }
}

/// A server that starts alone removes the files that no process has locked.
fn start_alone(path: &Path) -> Result<(), String> {
    let option = path.to_str().expect("the test's own path");
    let mut store = CacheStore::find(option, Vec::new(), None, None, true)
        .map_err(|error| error.to_string())?;
    let file = store.create().map_err(|error| error.to_string())?.expect("files are asked for");
    let count = std::fs::read_dir(path.parent().expect("it is in a directory"))
        .into_iter()
        .flatten()
        .count();
    let own = store.path().is_some_and(|own| is_named(&file.file, own));
    if count == 1 && own {
        Ok(())
    } else {
        Err(format!("{count} files are left of servers that ended"))
    }
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("HEADWORKS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("HEADWORKS_SCHEDULES").unwrap_or(SEEDS),
    }
}

#[test]
fn servers_that_start_together_have_files_of_their_own() {
    for seed in seeds() {
        if let Err(rule) = run(seed, false) {
            panic!(
                "{rule}; repeat with: HEADWORKS_SEED={seed} cargo test -p headworks-cli servers_that_start_together"
            );
        }
    }
}

#[test]
fn file_that_is_not_looked_at_after_its_lock_is_found() {
    let found = (0..SEEDS).find(|&seed| run(seed, true).is_err());
    println!("not looked at again: {found:?}");
    assert!(found.is_some());
}
