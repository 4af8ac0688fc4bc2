//! A program that writes to a disk: it runs once on a served disk that logs its writes and flushes, and the image is a file of the record.
//!
//! ```text
//!   image (zeros, or a copy) --> --setup, served --> the durable tree of the record: disk.img
//!   serve powercut:log=SOCKET,of=image --run RUN     each write and flush is in the record before it is answered
//!   a state's disk.img --> serve it --run CHECK
//! ```
//!
//! Lines that RUN has printed are taken before each change is recorded: a line stands behind what was answered before it, and before what
//! the same thread did next.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use headworks_crash::{
    Action, AttributeChange, Change, Disk, ImageChange, Limits, MountUser, NewNode, ROOT, Record,
    SharedRecording, Time, Tree, lock,
};
use headworks_images::{DiskChange, DiskLogReader};

use super::super::arguments::CrashtestArgs;
use super::super::image;
use super::program::{self, Mounted, mount};
use super::workplace::{NAME, Workplace, size};

/// Name of the image in the directory of its disk.
const IMAGE: &str = "disk.img";
/// Longest path of a unix socket, with its closing zero.
const SOCKET_PATH: usize = 108;
/// Bytes of an image that are read at once.
const CHUNK: usize = 256 << 10;

/// Runs the program once, and returns what it did.
pub fn record(options: &CrashtestArgs, place: &Workplace) -> Result<Record, String> {
    let path = place.file(IMAGE);
    let made = match &options.image {
        Some(from) => image::copy(from, &path),
        None => File::create(&path).and_then(|file| file.set_len(options.disk_size())),
    };
    made.map_err(|error| format!("{} cannot be made: {error}", path.display()))?;
    let limits = Limits { size: size(options), record: options.files.record_max };
    let has_state = place.access().is_ok();
    let mounted = mount(place, empty_record(options, has_state), limits, "", MountUser::Program)?;
    if let Some(setup) = &options.setup {
        let spec = format!("file:path={}", specified(&path));
        let command = served(place, &spec, &options.cache, setup, &mounted.paths)?;
        program::set_up(options, place, &mounted, command, setup)?;
    }
    let node = load(&path, &mounted)?;
    program::checkpoint(options, &mounted)?;
    let listener = Listener::new(place, &mounted, node, options.lie)?;
    let log = specified(&listener.path);
    let spec = format!("powercut:log={log},of=file:path={}", specified(&path));
    let command = served(place, &spec, &options.cache, options.program(), &mounted.paths)?;
    let record = program::recorded(options, place, &mounted, command);
    drop(listener);
    let _ = std::fs::remove_file(&path);
    let record = record?;
    let writes = |change: &Change| matches!(change.action, Action::Write { .. });
    let wrote = record.changes.iter().any(|change| change.disk == 0 && writes(change));
    match (wrote, place.access()) {
        (false, _) => Err("the program wrote nothing: it gets the disk as $uri".into()),
        (true, Err(why)) if record.counts().promises == 0 => Err(format!(
            "the program promised nothing: each line that it prints is a promise, and there is no $state here: {why}"
        )),
        (true, _) => Ok(record),
    }
}

/// The disk, and the directory in which the program may note its promises.
fn empty_record(options: &CrashtestArgs, has_state: bool) -> Record {
    let mut disks = vec![Disk { name: Disk::IMAGE.into(), keeps_all: false }];
    if has_state {
        disks.push(Disk { name: "state".into(), keeps_all: true });
    }
    program::empty_record_of(options, disks)
}

/// Takes an image into the record, as a file. Returns its node.
fn load(path: &Path, mounted: &Mounted) -> Result<u64, String> {
    let mut recording = lock(&mounted.recording);
    let now = Time::default();
    let mut take = || -> io::Result<u64> {
        let failed = io::Error::from_raw_os_error;
        let new = NewNode { mode: 0o100_600, uid: 0, gid: 0, target: [].into(), device: 0 };
        let node = recording.make(0, ROOT, IMAGE.as_bytes(), new, now).map_err(failed)?;
        let mut file = File::open(path)?;
        let (mut chunk, mut offset) = (vec![0; CHUNK], 0);
        loop {
            let read = file.read(&mut chunk)?;
            if read == 0 {
                break;
            }
            let bytes = &chunk[..read];
            if bytes.iter().any(|byte| *byte != 0) {
                recording.write(0, node, offset, bytes, (false, false), now).map_err(failed)?;
            }
            offset += read as u64;
        }
        let size = AttributeChange { size: Some(offset), ..AttributeChange::default() };
        recording.set_attributes(0, node, &size, now).map_err(failed)?;
        Ok(node)
    };
    take().map_err(|error| format!("the image cannot be taken into the record: {error}"))
}

/// Where the served disk tells its changes; ends when it is dropped.
struct Listener {
    path: PathBuf,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Listener {
    /// Records what a served disk tells of the image `node`; one that `lies` has acknowledged flushes without effect.
    fn new(place: &Workplace, mounted: &Mounted, node: u64, lies: bool) -> Result<Self, String> {
        let mut path = place.file("log.sock");
        if path.as_os_str().len() >= SOCKET_PATH {
            path = std::env::temp_dir().join(format!("{NAME}.{}.log", std::process::id()));
        }
        // Of a test that was killed.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)
            .map_err(|error| format!("{} cannot be made: {error}", path.display()))?;
        let (ended, recording) = (Arc::new(AtomicBool::new(false)), Arc::clone(&mounted.recording));
        let seen = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                // Acquire: pairs with the Release of `drop`.
                if seen.load(Ordering::Acquire) {
                    return;
                }
                // A server that is gone has told what it answered.
                let _ = stream.and_then(|stream| hear(stream, &recording, node, lies));
            }
        });
        Ok(Self { path, ended, thread: Some(thread) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Release: the thread that this connection wakes sees it.
        self.ended.store(true, Ordering::Release);
        if UnixStream::connect(&self.path).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Records the changes of a disk until it ends, each before its answer.
fn hear(
    mut stream: UnixStream,
    recording: &SharedRecording,
    node: u64,
    lies: bool,
) -> io::Result<()> {
    let mut log = DiskLogReader::new(stream.try_clone()?);
    while let Some(change) = log.next_change()? {
        let change = match change {
            DiskChange::Flush if lies => None,
            DiskChange::Flush => Some(ImageChange::Flush),
            DiskChange::Write { offset, data, fua } => {
                Some(ImageChange::Write { offset, data: data.to_vec(), fua: fua && !lies })
            }
        };
        // An error is that of a record which has reached its limit, which is told at the end.
        let _ = change.map(|change| lock(recording).change_image(0, node, change));
        stream.write_all(&[1])?;
    }
    Ok(())
}

/// The check of a state whose image is in a directory. What the server says goes to a log beside it.
pub fn check_of(directory: &Path, check: &str, paths: &[(String, PathBuf)]) -> io::Result<Command> {
    let spec = format!("file:path={}", specified(&directory.join(IMAGE)));
    let mut server = server(directory, &spec, "0", &format!("exec 2>&1\n{check}"), paths)?;
    server.stderr(File::create(directory.join("server.log"))?);
    Ok(server)
}

/// A tree of an image with zeros alone, as large as the image of `tree`.
pub fn zeroed(tree: &Tree) -> Tree {
    let mut zeros = tree.clone();
    if let Ok(node) = zeros.lookup(ROOT, IMAGE.as_bytes()) {
        let size = zeros.content(node).map_or(0, headworks_crash::Content::size);
        let _ = zeros.truncate(node, 0, Time::default());
        let _ = zeros.truncate(node, size, Time::default());
    }
    zeros
}

fn served(
    place: &Workplace,
    spec: &str,
    cache: &str,
    program: &str,
    paths: &[(String, PathBuf)],
) -> Result<Command, String> {
    server(&place.file(""), spec, cache, program, paths)
        .map_err(|error| format!("the server cannot be started: {error}"))
}

/// A server of a device that runs while a program does, and ends as that does; its socket is in a directory of the test.
fn server(
    directory: &Path,
    spec: &str,
    cache: &str,
    program: &str,
    paths: &[(String, PathBuf)],
) -> io::Result<Command> {
    let socket = directory.join("socket");
    // A server that was killed leaves its socket.
    let _ = std::fs::remove_file(&socket);
    let fits = socket.as_os_str().len() < SOCKET_PATH;
    let mut server = Command::new(std::env::current_exe()?);
    server
        .arg("serve")
        .arg("--unix")
        .arg(if fits { socket.as_os_str() } else { "-".as_ref() })
        .args(["--cache-file", "off", "--cache", cache])
        .args([spec, "--run", program])
        .stdin(Stdio::null())
        .process_group(0);
    let directories = paths.iter().filter(|(name, _)| name != Disk::IMAGE);
    server.envs(directories.map(|(name, path)| (name, path)));
    Ok(server)
}

/// A path as a value in a specification.
fn specified(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}
