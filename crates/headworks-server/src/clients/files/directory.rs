//! The thread of a FUSE listener: a directory in which each export that the listener offers is a file.
//!
//! ```text
//!   listener begins, exports change --> for each export without a file: mount --device--> client --Attach--> home shard of the export
//!   client has left its shard --Ended--> unmount
//!   an export was added --Ask--> answered when it has its file, or gets none: why
//!   another process takes over --Rest--> nothing is mounted and unmounted until it has, or has not
//!   another process has left --TakeOver--> its files are this one's, before the listener begins
//!   listener closes --> unmount all
//! ```
//!
//! What mounts is given by the process ([`Mounts`]): the server itself may not, it has given its rights up by the time it serves.
//!
//! Invariants: an export has at most one file of the directory; a file that its user has unmounted comes back with the next start alone;
//! nothing here looks at a file that this server serves, since it would wait for itself.

use std::convert::Infallible;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use headworks::house::safe_open::EXPORT_MOUNT;
use headworks_core::{ExportId, ShardId};
use headworks_fuse::MountedFiles;
use tracing::{info, warn};

use super::mounts::Mounts;
use super::news::DirectoryNews;
use super::news::ServedFile;
use super::{FilePlace, FuseClient};
use crate::clients::client::ShardClient;
use crate::clients::nbd::connection::ConnectionLimits;
use crate::exports::access::ListenerSpec;
use crate::exports::assemble::shown_name;
use crate::listen::Directory;
use crate::reactor::messages::ControlMessage;
use crate::reactor::messages::doors::DoorMessage;
use crate::reactor::shared::ServerShared;

/// A shard answers within a turn.
const ANSWER: Duration = Duration::from_secs(5);
/// Time until a file is tried again whose place another listener may just leave, and how often.
const AGAIN: Duration = Duration::from_millis(500);
const TRIES: u32 = 6;
/// Longest wait for the outcome of these tries.
const OUTCOME: Duration = Duration::from_secs(20);
/// Why a directory cannot be served that the helper which mounts was not started with.
pub const BY_START: &str = "its files can be mounted by a start alone; restart the server";
/// Longest name of a file.
const NAME_MAX: usize = 255;

/// An export that a directory may have as a file.
#[derive(Clone, Debug)]
pub struct OfferedExport {
    /// Id of the export.
    pub id: ExportId,
    /// Shard of its clients.
    pub home: ShardId,
    /// Its name; may be empty.
    pub name: String,
}

/// The exports that are served now.
pub type OfferedExports = dyn Fn() -> Vec<OfferedExport> + Send + Sync;
/// Calls back after each change of the exports, until that returns false.
pub type WatchExports = dyn Fn(Box<dyn Fn() -> bool + Send + Sync>) + Send + Sync;

/// The directories of a server, to ask them for files.
#[derive(Default)]
pub struct ServedDirectories(Mutex<Vec<(PathBuf, Sender<DirectoryNews>)>>);

/// Directories that mount and unmount nothing, until this is dropped.
#[derive(Debug)]
pub struct RestingDirectories {
    /// Files that are mounted.
    pub mounted: Vec<FilePlace>,
    /// The other end of each [`DirectoryNews::Rest`].
    pub ends: Vec<Sender<Infallible>>,
}

impl ServedDirectories {
    fn all(&self) -> MutexGuard<'_, Vec<(PathBuf, Sender<DirectoryNews>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way to the thread of a directory; none if it is not served.
    pub fn thread_of(&self, directory: &Path) -> Option<Sender<DirectoryNews>> {
        let all = self.all();
        // The newest: of one that was removed the thread has ended.
        let found = all.iter().rev().find(|(path, _)| path == directory);
        found.map(|(_, news)| news.clone())
    }

    /// Stops all mounting and unmounting, since another process may take over.
    ///
    /// # Errors
    /// A sentence: a mount does not end in time.
    pub fn rest(&self, until: Instant) -> Result<RestingDirectories, String> {
        let mut resting = RestingDirectories { mounted: Vec::new(), ends: Vec::new() };
        let mut asked = Vec::new();
        self.all().retain(|(path, news)| {
            let ((names, answer), (end, ended)) = (channel(), channel());
            let is_there = news.send(DirectoryNews::Rest { names, end: ended }).is_ok();
            if is_there {
                resting.ends.push(end);
                asked.push((path.clone(), answer));
            }
            is_there
        });
        for (directory, answer) in asked {
            match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(names) => {
                    let place = |name| FilePlace { directory: directory.clone(), name };
                    resting.mounted.extend(names.into_iter().map(place));
                }
                // Its listener was removed, with all files.
                Err(RecvTimeoutError::Disconnected) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let shown = directory.display();
                    return Err(format!("files of {shown} are being mounted; try again"));
                }
            }
        }
        Ok(resting)
    }

    /// Waits until each directory has a file of an export that was added, or has tried; returns a sentence for each that has none.
    pub fn problems_of(&self, export: ExportId) -> Vec<String> {
        let (answer, answers) = channel();
        let ask = |(_, one): &(PathBuf, Sender<_>)| {
            one.send(DirectoryNews::Ask(export, answer.clone())).is_ok()
        };
        self.all().retain(ask);
        // The answers end when each directory has dropped its sender.
        drop(answer);
        let (deadline, mut problems) = (Instant::now() + OUTCOME, Vec::new());
        loop {
            match answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(why) => problems.push(why),
                Err(RecvTimeoutError::Disconnected) => return problems,
                Err(RecvTimeoutError::Timeout) => {
                    problems.push("its file is not mounted yet".to_owned());
                    return problems;
                }
            }
        }
    }
}

/// What the threads of directories have of the server.
#[derive(Clone)]
pub struct DirectoryContext {
    /// Mailboxes of the shards.
    pub shared: Arc<ServerShared>,
    /// Bounds of each client.
    pub limits: ConnectionLimits,
    /// What mounts; none in a process that cannot.
    pub mounts: Option<Arc<dyn Mounts>>,
    /// The exports that are served now.
    pub exports: Arc<OfferedExports>,
    /// Tells of their changes.
    pub watch: Arc<WatchExports>,
    /// The directories that are served, to which each adds itself.
    pub served: Arc<ServedDirectories>,
}

/// Ends the thread when the listener is closed.
struct CloseGuard(Sender<DirectoryNews>);

impl Drop for CloseGuard {
    fn drop(&mut self) {
        let _ = self.0.send(DirectoryNews::Close);
    }
}

/// Starts the thread of a listener, whose files come when it begins.
///
/// # Errors
/// Nothing mounts here, or no thread can be started.
pub fn start(
    context: &DirectoryContext,
    spec: &ListenerSpec,
    path: &Path,
) -> Result<Directory, String> {
    let Some(mounts) = context.mounts.clone() else {
        return Err(BY_START.to_owned());
    };
    let ((news, told), (first, begun)) = (channel(), channel());
    let thread = DirectoryThread {
        context: context.clone(),
        mounts,
        spec: spec.clone(),
        path: path.to_owned(),
        news: news.clone(),
        files: Vec::new(),
        left: Vec::new(),
        asked: Vec::new(),
        first: Some(first),
    };
    let builder = std::thread::Builder::new().name("headworks-fuse".into());
    builder.spawn(move || thread.run(&told)).map_err(|error| error.to_string())?;
    context.served.all().push((path.to_owned(), news.clone()));
    let guard = CloseGuard(news);
    let begin = Box::new(move || drop(guard.0.send(DirectoryNews::Exports)));
    Ok(Directory { begin, first: Some(begun) })
}

struct DirectoryThread {
    context: DirectoryContext,
    mounts: Arc<dyn Mounts>,
    spec: ListenerSpec,
    path: PathBuf,
    news: Sender<DirectoryNews>,
    files: Vec<ServedFile>,
    /// Exports that have no file any more, or get none, and why.
    left: Vec<(ExportId, String)>,
    /// Questions for exports that have no file yet.
    asked: Vec<(ExportId, Sender<String>)>,
    first: Option<Sender<Result<(), String>>>,
}

impl DirectoryThread {
    fn run(mut self, told: &Receiver<DirectoryNews>) {
        let (mut is_begun, mut tries) = (false, 0);
        loop {
            let news = match tries {
                0 => told.recv().map_err(|_| RecvTimeoutError::Disconnected),
                _ => told.recv_timeout(AGAIN),
            };
            match news {
                Ok(DirectoryNews::Exports) => {
                    if !std::mem::replace(&mut is_begun, true) {
                        self.watch();
                    }
                    tries = TRIES;
                }
                Ok(DirectoryNews::Ended(client)) => {
                    self.end(*client);
                    continue;
                }
                Ok(DirectoryNews::Ask(export, answer)) => {
                    self.asked.push((export, answer));
                    self.answer(is_begun && tries > 0);
                    continue;
                }
                Ok(DirectoryNews::Rest { names, end }) => {
                    let all = self.files.iter().map(|file| file.name.clone()).collect();
                    if names.send(all).is_ok() {
                        let _ = end.recv();
                    }
                    continue;
                }
                Ok(DirectoryNews::TakeOver { files, ended }) => {
                    self.files.extend(files);
                    for name in ended {
                        self.unmount(&name);
                        info!(listener = self.spec.name, "the file {name} has ended");
                    }
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Ok(DirectoryNews::Close) | Err(RecvTimeoutError::Disconnected) => break,
            }
            if is_begun {
                tries = if self.serve_all(tries == 1) { 0 } else { tries.saturating_sub(1) };
                self.answer(tries > 0);
            }
        }
        while let Some(file) = self.files.pop() {
            self.unmount(&file.name);
        }
    }

    /// From now on changes of the exports are told.
    fn watch(&self) {
        let news = self.news.clone();
        (self.context.watch)(Box::new(move || news.send(DirectoryNews::Exports).is_ok()));
    }

    /// Answers the questions whose outcome is known: with `is_trying` not those for exports that still may have their files.
    fn answer(&mut self, is_trying: bool) {
        let (files, left) = (&self.files, &self.left);
        self.asked.retain(|(export, answer)| {
            let why = left.iter().find(|(id, _)| id == export);
            if let Some((_, why)) = why {
                // The one that has asked may wait no more.
                let _ = answer.send(why.clone());
            }
            is_trying && why.is_none() && !files.iter().any(|file| file.export == *export)
        });
    }

    /// Gives each export that has none a file; false if one should be tried again. `is_last`: it is not.
    fn serve_all(&mut self, is_last: bool) -> bool {
        let exports = (self.context.exports)();
        self.left.retain(|(id, _)| exports.iter().any(|export| export.id == *id));
        let (mut outcome, mut is_done) = (Ok(()), true);
        for export in exports {
            let is_offered = self.spec.offers(&export.name, None);
            let is_known = self.files.iter().any(|file| file.export == export.id)
                || self.left.iter().any(|(id, _)| *id == export.id);
            if is_known || !is_offered {
                continue;
            }
            let name = file_name(&export.name);
            // Another try changes nothing about a name.
            let is_last = is_last || name.is_err();
            if let Err(why) = name.and_then(|name| self.serve(&export, name)) {
                let why = no_file(&export.name, &self.path, &why);
                if is_last || self.first.is_some() {
                    warn!("{why}");
                }
                if is_last {
                    self.left.push((export.id, why.clone()));
                }
                is_done &= is_last;
                outcome = Err(why);
            }
        }
        if let Some(first) = self.first.take() {
            let _ = first.send(outcome);
        }
        is_done
    }

    fn serve(&mut self, export: &OfferedExport, name: String) -> Result<(), String> {
        let device = self.mounts.mount(&self.path, &name)?;
        let attached = self.attach(export, device, &name);
        let client = attached.inspect_err(|_| self.unmount(&name))?;
        info!(listener = self.spec.name, "export {} is a file", shown_name(&export.name));
        self.files.push(ServedFile { export: export.id, name, client });
        Ok(())
    }

    /// Gives its shard a file; returns its number.
    fn attach(&self, export: &OfferedExport, device: OwnedFd, name: &str) -> Result<u64, String> {
        let place = FilePlace { directory: self.path.clone(), name: name.to_owned() };
        let names = (place, self.spec.name.as_str().into());
        let client = FuseClient::new(device, names, self.context.limits, self.news.clone());
        let client = client.map_err(|error| error.to_string())?;
        let number = client.number();
        let (client, (answer, answers)) = (ShardClient::Fuse(Box::new(client)), sync_channel(1));
        let message = DoorMessage::Attach { export: export.id, client, answer };
        self.context.shared.send(export.home, ControlMessage::Door(Box::new(message)));
        let attached = answers.recv_timeout(ANSWER);
        attached.map_err(|_| "its shard does not answer".to_owned())?.map(|_| number)
    }

    /// A file has left its shard: its export was removed, or its user has unmounted it.
    fn end(&mut self, client: FuseClient) {
        let Some(place) = self.files.iter().position(|file| file.client == client.number()) else {
            return;
        };
        let file = self.files.remove(place);
        if client.was_unmounted() {
            let why = format!("the file {} was unmounted by its user", file.name);
            self.left.push((file.export, why));
        }
        self.unmount(&file.name);
        info!(listener = self.spec.name, "the file {} has ended", file.name);
        // Its device closes: programs that have it open are told.
        drop(client);
    }

    fn unmount(&self, name: &str) {
        if let Err(why) = self.mounts.unmount(&self.path, name) {
            warn!("{} stays mounted: {why}", self.path.join(name).display());
        }
    }
}

/// Checks whether an export can be a file in a directory, as far as that is known without a mount.
///
/// # Errors
/// A sentence why not.
pub fn check_file(directory: &Path, export: &str) -> Result<(), String> {
    let check = |name: String| {
        let checked = MountedFiles::check(directory, EXPORT_MOUNT, &name);
        checked.map_err(|error| error.to_string())
    };
    file_name(export).and_then(check).map_err(|why| no_file(export, directory, &why))
}

fn no_file(export: &str, directory: &Path, why: &str) -> String {
    format!("export {} is no file in {}: {why}", shown_name(export), directory.display())
}

/// The name of an export's file: that of the export, with `%` and two hexadecimal digits for each byte that is a slash, a percent sign or a
/// control character, and for a dot at the beginning.
///
/// # Errors
/// It is longer than names of files are.
pub fn file_name(export: &str) -> Result<String, String> {
    let mut name = String::new();
    for (place, letter) in shown_name(export).char_indices() {
        let is_special = matches!(letter, '/' | '%') || letter == '.' && place == 0;
        if !is_special && !letter.is_control() {
            name.push(letter);
            continue;
        }
        let mut bytes = [0; 4];
        for byte in letter.encode_utf8(&mut bytes).bytes() {
            name.push_str(&format!("%{byte:02X}"));
        }
    }
    match name.len() <= NAME_MAX {
        true => Ok(name),
        false => Err(format!("its name is longer than the {NAME_MAX} bytes of a file's")),
    }
}

/// Path of the file of an export in a directory.
#[must_use]
pub fn file_of(directory: &Path, export: &str) -> PathBuf {
    directory.join(file_name(export).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_single_components_and_differ() {
        for (export, file) in [
            ("", "default"),
            ("vm1", "vm1"),
            ("a/b", "a%2Fb"),
            ("a%2Fb", "a%252Fb"),
            (".", "%2E"),
            ("..", "%2E."),
            (".hidden.img", "%2Ehidden.img"),
            ("line\nfeed", "line%0Afeed"),
            ("gr\u{f6}\u{df}e", "gr\u{f6}\u{df}e"),
        ] {
            assert_eq!(file_name(export).as_deref(), Ok(file));
        }
        assert!(file_name(&"x".repeat(256)).is_err());
        assert_eq!(file_of(Path::new("/mnt"), "a/b"), Path::new("/mnt/a%2Fb"));
    }
}
