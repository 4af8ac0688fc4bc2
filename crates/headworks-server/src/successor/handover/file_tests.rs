//! Servers that replace each other in one process: their files of FUSE go on, and what mounts sees nothing of it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};

use headworks_testing::{TempDir, TempFile};

use super::UnmatchedClients;
use super::tests::{BLOCK, LIMIT, Place, end, until};
use crate::clients::files::kernel::*;
use crate::{Mounts, Server};

/// What mounts for all servers, as one helper does, and the kernel behind each mount.
#[derive(Default)]
struct Mounter {
    mounted: Mutex<BTreeMap<String, Option<Kernel>>>,
    log: Mutex<Vec<String>>,
}

impl std::fmt::Debug for Mounter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mounter")
    }
}

impl Mounts for Mounter {
    fn knows(&self, _: &Path) -> bool {
        true
    }

    fn mount(&self, _: &Path, file: &str) -> Result<OwnedFd, String> {
        self.log.lock().unwrap().push(format!("+{file}"));
        let mut mounted = self.mounted.lock().unwrap();
        if mounted.contains_key(file) {
            return Err("something is mounted there".to_owned());
        }
        let (device, kernel) = Kernel::with_device();
        mounted.insert(file.to_owned(), Some(kernel));
        Ok(device)
    }

    fn unmount(&self, _: &Path, file: &str) -> Result<(), String> {
        self.log.lock().unwrap().push(format!("-{file}"));
        self.mounted.lock().unwrap().remove(file).map(drop).ok_or_else(|| "it is none".to_owned())
    }
}

impl Mounter {
    /// The kernel of a file: the programs that have it open.
    fn kernel(&self, file: &str) -> Kernel {
        self.mounted.lock().unwrap().get_mut(file).unwrap().take().unwrap()
    }

    /// What was mounted and unmounted since the last look.
    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    fn waits_for(&self, expected: &[&str]) {
        until(|| *self.log.lock().unwrap() == expected);
        self.log();
    }
}

struct Files {
    place: Place,
    other: TempFile,
    mounter: Arc<Mounter>,
    _folder: TempDir,
}

impl Files {
    fn new(name: &str, shards: u16) -> Self {
        let (mut place, folder) = (Place::new(name, shards, true), TempDir::new(name));
        let other = TempFile::new(&format!("{name}-other"));
        std::fs::write(other.path(), vec![8; 4 << 20]).unwrap();
        let mounter = Arc::new(Mounter::default());
        let mounts = Arc::clone(&mounter) as Arc<dyn Mounts>;
        place.files = Some((folder.join(""), Vec::new(), mounts));
        Self { place, other, mounter, _folder: folder }
    }

    /// The exports `a` and `b`, with options of their own.
    fn exports(&self, a: &str, b: &str) -> [String; 2] {
        let (image, other) = (self.place.image.path().display(), self.other.path().display());
        [format!("a=file:path={image}{a}"), format!("b=file:path={other}{b}")]
    }

    fn try_replace(&self, old: &Arc<Server>, texts: &[&str]) -> Result<Server, String> {
        let new = self.place.try_replace(old, texts, UnmatchedClients::Refuse);
        new.map_err(|error| error.message.to_string())
    }
}

fn open(kernel: &mut Kernel) {
    kernel.ask(14, 1, &words(&[libc::O_RDWR as u64]));
    assert_eq!(kernel.awaited().0, 0);
}

fn written(kernel: &mut Kernel, unique: u64, byte: u8) {
    kernel.ask(WRITE, unique, &write_of(0, &[byte; BLOCK], 0));
    assert_eq!(kernel.awaited(), (0, unique, words(&[BLOCK as u64])));
}

fn read(kernel: &mut Kernel, unique: u64) -> u8 {
    kernel.ask(READ, unique, &read_of(0, BLOCK as u32));
    let (errno, answered, data) = kernel.awaited();
    assert_eq!((errno, answered, data.len()), (0, unique, BLOCK));
    data[0]
}

#[test]
fn open_file_goes_on_in_next_server_with_its_mount() {
    for shards in [1, 2] {
        let files = Files::new(&format!("handover-files-{shards}"), shards);
        let texts = files.exports("", "");
        let texts = texts.each_ref().map(String::as_str);
        let mut server = files.place.serve(&texts, None).unwrap();
        files.mounter.waits_for(&["+a", "+b"]);
        let (mut a, mut b) = (files.mounter.kernel("a"), files.mounter.kernel("b"));
        open(&mut a);
        for round in 2..6_u8 {
            written(&mut a, 10, round);
            server = files.place.replace_by(server, &texts);
            assert_eq!((read(&mut a, 11), read(&mut b, 12)), (round, 8));
            assert_eq!(files.mounter.log(), Vec::<String>::new(), "round {round}");
        }
        // It is open, as the first server knew.
        let remove = serde_json::json!({ "export": "a" });
        assert!(server.service().call("remove", remove.as_object().unwrap()).is_err());
        let remove = serde_json::json!({ "export": "b" });
        assert!(server.service().call("remove", remove.as_object().unwrap()).is_ok());
        files.mounter.waits_for(&["-b"]);

        end(server);
        files.mounter.waits_for(&["-a"]);
    }
}

#[test]
fn files_of_a_failed_takeover_stay_with_the_old_server() {
    let files = Files::new("handover-files-failed", 2);
    let texts = files.exports("", "");
    let texts = texts.each_ref().map(String::as_str);
    let old = Arc::new(files.place.serve(&texts, None).unwrap());
    files.mounter.waits_for(&["+a", "+b"]);
    let (mut a, mut b) = (files.mounter.kernel("a"), files.mounter.kernel("b"));
    open(&mut a);
    written(&mut a, 2, 5);
    // The file of an export that is not there, and one that is read-only now: programs have the first one open.
    let read_only = files.exports(",read-only=on", "");
    for texts in [&texts[1..], &read_only.each_ref().map(String::as_str)] {
        // Asked in the pause, and answered after it.
        b.ask(READ, 7, &read_of(0, BLOCK as u32));
        let refused = files.try_replace(&old, texts).err().unwrap();
        assert!(refused.contains("export a") && refused.contains("open"), "{refused}");
        old.resume();
        assert_eq!((b.awaited().1, read(&mut a, 8)), (7, 5));
        assert_eq!(files.mounter.log(), Vec::<String>::new());
    }
    // An export that is added now has its file: the directory goes on.
    let new = serde_json::json!({ "spec": "c=null:size=1M" });
    assert!(old.service().call("add", new.as_object().unwrap()).is_ok());
    files.mounter.waits_for(&["+c"]);
    end(Arc::into_inner(old).unwrap());
    until(|| files.mounter.mounted.lock().unwrap().is_empty());
}

#[test]
fn next_server_mounts_and_unmounts_what_its_configuration_changed() {
    let mut files = Files::new("handover-files-changed", 1);
    let texts = files.exports("", "");
    let [a, b] = texts.each_ref().map(String::as_str);
    let server = files.place.serve(&[a, b], None).unwrap();
    files.mounter.waits_for(&["+a", "+b"]);
    let mut kernel = files.mounter.kernel("a");
    open(&mut kernel);
    // No program has b open; what has its name now is another disk.
    let server = files.place.replace_by(server, &[a, "b=null:size=1M", "c=null:size=1M"]);
    files.mounter.waits_for(&["-b", "+b", "+c"]);
    let mut other = files.mounter.kernel("b");
    assert_eq!((read(&mut other, 3), read(&mut kernel, 4)), (0, 7));
    // The listener has fewer.
    files.place.files.as_mut().unwrap().1.push("a".to_owned());
    let server = files.place.replace_by(server, &[a, "b=null:size=1M", "c=null:size=1M"]);
    files.mounter.waits_for(&["-b", "-c"]);
    // There is no directory any more, but a is open.
    let patterns = files.place.files.take();
    let server = Arc::new(server);
    let refused = files.try_replace(&server, &[a]).err().unwrap();
    assert!(refused.contains("no listener has it as a file"), "{refused}");
    server.resume();
    kernel.ask(18, 5, &[0; 24]);
    assert_eq!(kernel.awaited().0, 0);
    files.place.files = patterns;
    files.place.files.as_mut().unwrap().1[0] = "x".to_owned();
    let next = files.try_replace(&server, &[a]).unwrap();
    std::mem::forget(server);
    files.mounter.waits_for(&["-a"]);
    end(next);
}

#[test]
fn requests_that_wait_for_a_limit_hold_no_pause_up() {
    let files = Files::new("handover-files-limit", 1);
    let texts = files.exports(",iops-total=1", "");
    let server = files.place.serve(&texts.each_ref().map(String::as_str), None).unwrap();
    files.mounter.waits_for(&["+a", "+b"]);
    let mut kernel = files.mounter.kernel("a");
    // Of longer than the pause may last.
    for unique in 1..=40 {
        kernel.ask(READ, unique, &read_of(unique * 4096, BLOCK as u32));
    }
    assert_eq!(kernel.awaited().1, 1);
    server.standing().unwrap();
    server.pause(LIMIT).unwrap();
    server.resume();
    end(server);
}
