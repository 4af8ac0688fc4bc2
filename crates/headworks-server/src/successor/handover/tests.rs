//! Servers that replace each other in one process: clients, cache and images go on.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use headworks::{EngineChoice, FileOptions, OpenFile};
use headworks_core::ConfigError;
use headworks_house::{Identity, ImageHandles};
use headworks_nbd::client::{Client, ClientOptions};
use headworks_nbd::transmission::Request;
use headworks_nbd::wire::{Command, CommandFlags};
use headworks_testing::{TempDir, TempFile};

use super::takeover::refused;
use super::{Handover, Takeover, TakeoverSteps, UnmatchedClients};
use crate::change;
use crate::options::{CacheFile, MissingImage, ProcessContext};
use crate::successor::marker::Marker;
use crate::{
    AccessSpec, Address, Assembly, ExportSpec, Leftovers, ListenerKind, ListenerSpec, Mounts,
    Server, ServerOptions,
};
use headworks_nbd::tls::TlsOptions;

pub(super) const LIMIT: Duration = Duration::from_secs(20);
pub(super) const BLOCK: usize = 4096;

/// An image, a socket and memory for servers one after the other.
pub(super) struct Place {
    pub image: TempFile,
    memory: TempFile,
    socket: PathBuf,
    _folder: TempDir,
    shards: u16,
    kept: bool,
    /// The directory with files of FUSE, the patterns of its listener, and what mounts.
    pub files: Option<(PathBuf, Vec<String>, Arc<dyn Mounts>)>,
}

impl Place {
    pub fn new(name: &str, shards: u16, kept: bool) -> Self {
        let (image, memory) = (TempFile::new(name), TempFile::new(&format!("{name}-memory")));
        std::fs::write(image.path(), vec![7; 4 << 20]).unwrap();
        // Directories of their own: sockets are bound under a name of the process first.
        let folder = TempDir::new(name);
        Self {
            image,
            memory,
            socket: folder.join("socket"),
            _folder: folder,
            shards,
            kept,
            files: None,
        }
    }

    fn start(&self, takeover: Option<Takeover>) -> Result<Server, ConfigError> {
        let text = format!("disk={}", self.image.path().display());
        self.serve(&[&text], takeover)
    }

    pub fn serve(&self, texts: &[&str], takeover: Option<Takeover>) -> Result<Server, ConfigError> {
        let memory = self.kept.then(|| {
            let is_new = takeover.is_none();
            let mut options = std::fs::File::options();
            let file = options.read(true).write(true).create(true).truncate(is_new);
            Arc::new(file.open(self.memory.path()).unwrap())
        });
        let cache_file =
            memory.map(|file| CacheFile { file, name: "memory".into(), required: true });
        let leftovers = Leftovers::default();
        if let Some(takeover) = &takeover {
            takeover.give_locks(&leftovers);
        }
        let specs: Vec<_> =
            texts.iter().map(|text| ExportSpec::parse(text, false).unwrap()).collect();
        let assembly = Assembly::open(&specs, MissingImage::Refuse, &leftovers)?;
        let listener = |(directory, exports, _): &(PathBuf, Vec<String>, _)| ListenerSpec {
            name: "files".to_owned(),
            kind: ListenerKind::Fuse,
            address: Address::Directory(directory.clone()),
            owner: None,
            exports: exports.clone(),
            tenant: None,
            tls: TlsOptions::default(),
        };
        let listeners = self.files.iter().map(listener).collect();
        let options = ServerOptions {
            access: AccessSpec { listeners, ..AccessSpec::default() },
            listen: vec![Address::Unix { path: self.socket.clone(), mode: 0o600 }],
            shards: self.shards,
            engine: EngineChoice::Threads,
            buffers: 64 << 20,
            cache: 8 << 20,
            live: true,
            process: ProcessContext {
                cache_file,
                leftovers,
                takeover,
                mounts: self.files.as_ref().map(|(_, _, mounts)| Arc::clone(mounts)),
                ..ProcessContext::default()
            },
            ..ServerOptions::default()
        };
        Server::start(assembly, &options, || ())
    }

    fn client(&self) -> Client {
        self.client_of("disk")
    }

    pub fn client_of(&self, export: &str) -> Client {
        let uri = format!("nbd+unix:///{export}?socket={}", self.socket.display());
        Client::connect(&uri.parse().unwrap(), ClientOptions::default()).unwrap()
    }

    /// The new server; the old one is paused without end, as if its process were gone.
    fn replace(&self, old: Server) -> Server {
        let text = format!("disk={}", self.image.path().display());
        self.replace_by(old, &[&text])
    }

    pub fn replace_by(&self, old: Server, texts: &[&str]) -> Server {
        let old = Arc::new(old);
        let new = self.try_replace(&old, texts, UnmatchedClients::Refuse).unwrap();
        std::mem::forget(old);
        new
    }

    /// The new server; after an error the old one is paused, and may go on.
    pub fn try_replace(
        &self,
        old: &Arc<Server>,
        texts: &[&str],
        unmatched: UnmatchedClients,
    ) -> Result<Server, ConfigError> {
        let paused = Arc::clone(old);
        let takeover = Takeover::new(TakeoverSteps {
            unmatched,
            standing: old.standing().unwrap(),
            live: Box::new(move || paused.pause(LIMIT).map_err(refused)),
            adopted: Box::new(|| Ok(())),
        });
        self.serve(texts, Some(takeover.unwrap()))
    }
}

fn exports(server: &Server) -> serde_json::Value {
    let call = server.service().call("exports", &serde_json::Map::new());
    call.map_err(|fault| fault.into_message()).unwrap()
}

fn dirty(server: &Server) -> u64 {
    exports(server)[0]["dirty"].as_u64().unwrap()
}

pub(super) fn until(holds: impl Fn() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < LIMIT);
        std::thread::yield_now();
    }
}

/// Exports with clients.
fn with_clients(server: &Server) -> Vec<String> {
    let exports = exports(server);
    let rows = exports.as_array().unwrap().iter().filter(|row| row["clients"] != 0);
    rows.map(|row| row["name"].as_str().unwrap().to_owned()).collect()
}

fn block_of(image: &Path, block: usize) -> u8 {
    std::fs::read(image).unwrap()[block * BLOCK]
}

pub(super) fn end(server: Server) {
    server.stop();
    server.join().unwrap();
}

#[test]
fn client_and_dirty_cache_go_on_in_next_server() {
    for shards in [1, 2] {
        let place = Place::new(&format!("handover-{shards}"), shards, true);
        let mut server = place.start(None).unwrap();
        let mut client = place.client();
        client.write(0, &[1; BLOCK], CommandFlags::NONE).unwrap();
        for round in 2..6_u8 {
            let before = dirty(&server);
            assert!(before > 0, "not written out yet");
            server = place.replace(server);
            assert_eq!(dirty(&server), before, "nothing was written out or lost");
            let mut found = [0; BLOCK];
            client.read(0, &mut found).unwrap();
            assert_eq!(found, [round - 1; BLOCK]);
            client.write(0, &[round; BLOCK], CommandFlags::NONE).unwrap();
            place.client().disconnect().unwrap();
        }
        assert_eq!(block_of(place.image.path(), 0), 7);
        client.flush().unwrap();
        assert_eq!(block_of(place.image.path(), 0), 5);
        client.disconnect().unwrap();
        end(server);
        assert!(!place.socket.exists(), "the last server removes the socket");
    }
}

#[test]
fn partition_goes_on_where_it_was_though_its_table_is_gone() {
    let place = Place::new("handover-partition", 2, true);
    let path = place.image.path().display().to_string();
    let mut bytes = std::fs::read(place.image.path()).unwrap();
    bytes[..510].fill(0);
    // One partition of 2048 sectors from sector 2049 on.
    bytes[450..462].copy_from_slice(&[0x83, 0, 0, 0, 1, 8, 0, 0, 0, 8, 0, 0]);
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    std::fs::write(place.image.path(), &bytes).unwrap();
    let texts = [format!("disk=file:path={path},partition=1"), format!("whole={path}")];
    let texts = texts.each_ref().map(String::as_str);
    let mut server = place.serve(&texts, None).unwrap();
    let mut client = place.client();
    client.write(0, &[1; BLOCK], CommandFlags::NONE).unwrap();
    // It is gone from the cache, and later from the disk.
    place.client_of("whole").write(0, &[0; 512], CommandFlags::NONE).unwrap();
    for _ in 0..2 {
        server = place.replace_by(server, &texts);
        let mut found = [0; BLOCK];
        client.read(0, &mut found).unwrap();
        assert_eq!(found, [1; BLOCK]);
        assert_eq!(exports(&server)[0]["offset"], 2049 * 512);
        place.client_of("whole").flush().unwrap();
    }
    // Another place is another disk for its client.
    let old = Arc::new(server);
    let moved = format!("disk=file:path={path},offset=1M,length=1M");
    let refused = place.try_replace(&old, &[&moved, texts[1]], UnmatchedClients::Refuse).err();
    let refused = refused.unwrap().message;
    let why = "it begins at byte 1048576 of its image now and began at 1049088";
    assert!(refused.contains(why), "{refused}");
    old.resume();
    client.write(BLOCK as u64, &[2; BLOCK], CommandFlags::NONE).unwrap();
    client.disconnect().unwrap();
    end(Arc::into_inner(old).unwrap());
    assert_eq!(std::fs::read(place.image.path()).unwrap()[2049 * 512 + BLOCK], 2);
}

#[test]
fn half_sent_request_goes_on_at_its_next_byte() {
    let place = Place::new("handover-half", 1, true);
    let mut server = place.start(None).unwrap();
    let request = Request {
        cookie: 42,
        offset: BLOCK as u64,
        len: BLOCK as u32,
        command: Command::Write,
        flags: CommandFlags::NONE,
    };
    let mut wire = request.header().to_vec();
    wire.extend_from_slice(&[9; BLOCK]);
    // Within the header, at its end, within the payload.
    for cut in [5, request.header().len(), 100, BLOCK] {
        let mut socket = place.client().into_parts().0;
        socket.write_all(&wire[..cut]).unwrap();
        server = place.replace(server);
        socket.write_all(&wire[cut..]).unwrap();
        let mut reply = [0; 16];
        socket.read_exact(&mut reply).unwrap();
        assert_eq!((&reply[4..8], &reply[8..]), (&[0; 4][..], &42_u64.to_be_bytes()[..]), "{cut}");
    }
    let mut found = [0; BLOCK];
    place.client().read(BLOCK as u64, &mut found).unwrap();
    assert_eq!(found, [9; BLOCK]);
    end(server);
}

#[test]
fn unread_reply_is_sent_by_next_server() {
    let place = Place::new("handover-unread", 1, true);
    let server = place.start(None).unwrap();
    let mut socket = place.client().into_parts().0;
    // More than a socket takes.
    let (count, len) = (16, 256 << 10);
    for cookie in 0..count {
        let (command, flags) = (Command::Read, CommandFlags::NONE);
        let request = Request { cookie, offset: 0, len, command, flags };
        socket.write_all(&request.header()).unwrap();
    }
    let server = place.replace(server);
    let mut all = vec![0; count as usize * (len as usize)];
    socket.read_exact(&mut all).expect("replies go on where they stopped");
    end(server);
}

#[test]
fn old_server_goes_on_when_new_one_fails() {
    let place = Place::new("handover-fails", 2, true);
    let server = Arc::new(place.start(None).unwrap());
    let mut client = place.client();
    client.write(0, &[1; BLOCK], CommandFlags::NONE).unwrap();
    let failure = || refused("the old one says no".to_owned());
    for at_adoption in [false, true] {
        let paused = Arc::clone(&server);
        let takeover = Takeover::new(TakeoverSteps {
            unmatched: UnmatchedClients::Refuse,
            standing: server.standing().unwrap(),
            live: Box::new(move || match at_adoption {
                true => paused.pause(LIMIT).map_err(refused),
                false => {
                    Ok(Handover { record: b"another version".to_vec(), ..Handover::default() })
                }
            }),
            adopted: Box::new(move || Err(failure())),
        });
        let refused = place.start(Some(takeover.unwrap())).err().unwrap();
        let expected = if at_adoption { "says no" } else { "restart instead" };
        assert!(refused.message.contains(expected), "{refused}");
        server.resume();
        let mut found = [0; BLOCK];
        client.read(0, &mut found).unwrap();
        assert_eq!(found, [1; BLOCK]);
        assert!(dirty(&server) > 0 && place.socket.exists());
        client.write(BLOCK as u64, &[2; BLOCK], CommandFlags::NONE).unwrap();
    }
    client.flush().unwrap();
    assert_eq!([0, 1].map(|block| block_of(place.image.path(), block)), [1, 2]);
    client.disconnect().unwrap();
    end(Arc::into_inner(server).unwrap());
}

#[test]
fn volumes_keep_their_dirty_blocks_when_their_order_changes() {
    let place = Place::new("handover-order", 1, true);
    let other = TempFile::new("handover-order-b");
    std::fs::write(other.path(), vec![7; 4 << 20]).unwrap();
    let a = format!("a={}", place.image.path().display());
    let b = format!("b={}", other.path().display());
    let gone = "gone=null:size=1M";
    let server = place.serve(&[gone, &a, &b], None).unwrap();
    let (mut on_a, mut on_b) = (place.client_of("a"), place.client_of("b"));
    on_a.write(0, &[1; BLOCK], CommandFlags::NONE).unwrap();
    on_b.write(0, &[2; BLOCK], CommandFlags::NONE).unwrap();
    let server = place.replace_by(server, &[&b, &a]);
    on_a.write(BLOCK as u64, &[3; BLOCK], CommandFlags::NONE).unwrap();
    // What a process finds that comes after a kill.
    let file = std::fs::File::options().read(true).write(true).open(place.memory.path()).unwrap();
    let left = headworks_cache_memory::LeftCache::open(file).unwrap().unwrap();
    for (image, expected) in [(place.image.path(), [1, 3]), (other.path(), [2, 0])] {
        let volumes = left.volumes();
        let volume =
            volumes.iter().find(|volume| volume.row.as_ref().is_some_and(|row| row.path == image));
        let volume = volume.unwrap().volume;
        let found: Vec<_> = left.blocks(volume, u64::MAX).map(|block| block.bytes[0]).collect();
        assert_eq!(found, expected[..found.len()]);
        assert_eq!(found.len(), expected.iter().filter(|&&byte| byte > 0).count());
    }
    drop(left);
    let mut found = [0; BLOCK];
    on_b.read(0, &mut found).unwrap();
    assert_eq!(found, [2; BLOCK]);
    on_a.disconnect().unwrap();
    on_b.disconnect().unwrap();
    end(server);
    assert_eq!([place.image.path(), other.path()].map(|image| block_of(image, 0)), [1, 2]);
}

#[test]
fn without_shared_memory_everything_is_written_out_first() {
    let place = Place::new("handover-clean", 1, false);
    let server = place.start(None).unwrap();
    let mut client = place.client();
    client.write(0, &[3; BLOCK], CommandFlags::NONE).unwrap();
    let server = place.replace(server);
    assert_eq!((dirty(&server), block_of(place.image.path(), 0)), (0, 3));
    let mut found = [0; BLOCK];
    client.read(0, &mut found).unwrap();
    assert_eq!(found, [3; BLOCK]);
    client.disconnect().unwrap();
    end(server);
}

#[test]
fn hung_export_is_named_and_given_up_the_others_are_handed_over() {
    let mut place = Place::new("handover-abandon", 2, true);
    let hung = TempFile::new("handover-abandon-hung");
    std::fs::write(hung.path(), vec![7; 1 << 20]).unwrap();
    let disk = format!("disk={}", place.image.path().display());
    let other = format!("hung=delay:read=600s,cache=none,of=file:path={}", hung.path().display());
    let server = Arc::new(place.serve(&[&disk, &other], None).unwrap());
    let mut client = place.client();
    client.write(0, &[3; BLOCK], CommandFlags::NONE).unwrap();
    let mut hanging = place.client_of("hung").into_parts().0;
    let (len, command, flags) = (BLOCK as u32, Command::Read, CommandFlags::NONE);
    hanging.write_all(&Request { cookie: 1, offset: 0, len, command, flags }.header()).unwrap();
    while change::held_up::oldest_command(server.service().changes()).is_none() {
        std::thread::yield_now();
    }
    let refused = server.pause(Duration::from_millis(300)).map(drop).unwrap_err();
    assert!(refused.contains("export hung, device hw1, oldest"), "{refused}");
    assert!(refused.contains("remove hung --abandon"), "{refused}");
    let asked = serde_json::json!({ "export": "hung", "abandon": true });
    server.service().call("remove", asked.as_object().unwrap()).map_err(drop).unwrap();
    // Its memory is in use: the other one begins with memory of its own.
    place.memory = TempFile::new("handover-abandon-other");
    let new = place.try_replace(&server, &[&disk], UnmatchedClients::Refuse).unwrap();
    assert_eq!((dirty(&new), block_of(place.image.path(), 0)), (0, 3), "written out");
    let mut found = [0; BLOCK];
    client.read(0, &mut found).unwrap();
    assert_eq!(found, [3; BLOCK], "its client goes on");
    client.write(0, &[4; BLOCK], CommandFlags::NONE).unwrap();
    client.disconnect().unwrap();
    std::mem::forget(server);
    end(new);
    assert_eq!(block_of(place.image.path(), 0), 4);
}

#[test]
fn volume_in_memory_refuses() {
    let place = Place::new("handover-mem", 1, true);
    let server = place.start(None).unwrap();
    let spec = serde_json::json!({ "spec": "scratch=mem:size=1M" });
    let added = server.service().call("add", spec.as_object().unwrap());
    assert!(added.is_ok());
    let refused = server.standing().unwrap_err();
    assert!(refused.contains("only in the memory of this process"), "{refused}");
    end(server);
}

#[test]
fn change_after_standing_part_refuses_pause() {
    let place = Place::new("handover-changed", 1, true);
    let server = place.start(None).unwrap();
    server.standing().unwrap();
    let weight = serde_json::json!({ "path": "exports/disk/weight", "value": 300 });
    assert!(server.service().call("set", weight.as_object().unwrap()).is_ok());
    let refused = server.pause(LIMIT).unwrap_err();
    assert!(refused.contains("changed meanwhile"), "{refused}");
    server.standing().unwrap();
    server.pause(LIMIT).unwrap();
    server.resume();
    place.client().disconnect().unwrap();
    end(server);
}

#[test]
fn pause_for_restart_writes_everything_out_while_clients_are_served() {
    let place = Place::new("handover-restart", 2, true);
    let server = place.start(None).unwrap();
    let mut client = place.client();
    client.write(0, &[4; BLOCK], CommandFlags::NONE).unwrap();
    let mut pause = server.begin_pause_for_restart(LIMIT);
    let live = loop {
        if let Some(live) = server.poll_pause_for_restart(&mut pause) {
            break live.unwrap();
        }
        std::thread::yield_now();
    };
    assert_eq!(live.descriptors.len(), 1);
    assert_eq!(block_of(place.image.path(), 0), 4);
    let mark = place.image.path().with_file_name(format!(
        "{}.headworks-dirty",
        place.image.path().file_name().unwrap().to_string_lossy()
    ));
    assert!(!mark.exists() && !place.socket.exists(), "as after a clean stop");
    server.resume();
    client.disconnect().unwrap();
    end(server);
}

/// Also if nothing in it is dirty: it is what shows that nothing is lost.
#[test]
fn memory_of_a_process_that_is_ending_is_waited_for() {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    fn lock(_: &std::fs::File) -> std::io::Result<bool> {
        Ok(ASKED.fetch_add(1, Ordering::Relaxed) >= 3)
    }
    for is_dirty in [true, false] {
        ASKED.store(0, Ordering::Relaxed);
        let place = Place::new("handover-ending", 1, true);
        let server = place.start(None).unwrap();
        let mut client = place.client();
        client.write(0, &[5; BLOCK], CommandFlags::NONE).unwrap();
        if !is_dirty {
            client.flush().unwrap();
        }
        let (copy, other) =
            (TempFile::new("handover-ending-copy"), TempFile::new("handover-other"));
        std::fs::copy(place.memory.path(), copy.path()).unwrap();
        std::fs::write(other.path(), vec![7; 1 << 20]).unwrap();
        let mut mark = place.image.path().as_os_str().to_owned();
        mark.push(".headworks-dirty");
        let told = std::fs::read(&mark).unwrap();
        client.disconnect().unwrap();
        end(server);
        std::fs::write(&mark, told).unwrap();
        let leftovers = Leftovers::default();
        let held = std::fs::File::options().read(true).write(true).open(copy.path()).unwrap();
        leftovers.add_held(held, "the copy", lock, || {});
        let restored = |path: &Path| {
            let image = OpenFile::open_locked(path, &FileOptions::default(), None).unwrap();
            let done = leftovers.restore_image(path, &image, &image.writer()).unwrap();
            (done.covered.is_some(), ASKED.load(Ordering::Relaxed))
        };
        assert_eq!(restored(other.path()), (false, 0), "a server that runs may have it");
        assert_eq!(restored(place.image.path()), (true, 4), "dirty: {is_dirty}");
        std::fs::remove_file(&mark).unwrap();
    }
}

/// What is done to the images `a` and `b` before the new server starts, and what it serves then.
struct DiskChange {
    label: &'static str,
    act: fn(&Path, &Path),
    /// With the paths in place of `A` and `B`.
    exports: &'static [&'static str],
    /// What the refusal says; empty if there is none.
    refusal: &'static str,
    /// Exports with clients after a restart.
    stay: &'static [&'static str],
}

fn replace_image(image: &Path, _: &Path) {
    let new = image.with_extension("new");
    std::fs::write(&new, vec![9; 4 << 20]).unwrap();
    std::fs::rename(new, image).unwrap();
}

fn set_size(image: &Path, size: u64) {
    std::fs::File::options().write(true).open(image).unwrap().set_len(size).unwrap();
}

const DISK_CHANGES: [DiskChange; 9] = [
    DiskChange {
        label: "grown, reordered and wrapped",
        act: |a, _| set_size(a, 8 << 20),
        exports: &["b=B", "a=delay:read=1us,of=A"],
        refusal: "",
        stay: &["a", "b"],
    },
    DiskChange {
        label: "swapped",
        act: |_, _| (),
        exports: &["a=B", "b=A"],
        refusal: "export a has clients, and its image changed",
        stay: &[],
    },
    DiskChange {
        label: "renamed",
        act: |_, _| (),
        exports: &["other=A", "b=B"],
        refusal: "export a has clients, and it is not served any more",
        stay: &["b"],
    },
    DiskChange {
        label: "replaced",
        act: replace_image,
        exports: &["a=A", "b=B"],
        refusal: "export a has clients, and its image changed",
        stay: &["b"],
    },
    DiskChange {
        label: "shortened",
        act: |a, _| set_size(a, 1 << 20),
        exports: &["a=A", "b=B"],
        refusal: "export a has clients, and it has 1 MiB now, less than the 4 MiB before",
        stay: &["b"],
    },
    DiskChange {
        label: "read-only",
        act: |_, _| (),
        exports: &["a=file:path=A,read-only=on", "b=B"],
        refusal: "export a has clients, and it is read-only now",
        stay: &["b"],
    },
    DiskChange {
        label: "another type",
        act: |_, _| (),
        exports: &["a=null:size=4M", "b=B"],
        refusal: "export a has clients, and its image changed",
        stay: &["b"],
    },
    DiskChange {
        label: "a volatile cache around it",
        act: |_, _| (),
        exports: &["a=powercut:of=A", "b=B"],
        refusal: "export a has clients, and its image changed",
        stay: &["b"],
    },
    DiskChange {
        label: "another cache mode",
        act: |_, _| (),
        exports: &["a=file:path=A,cache=unsafe", "b=B"],
        refusal: "export a has clients, and its cache mode does not keep",
        stay: &["b"],
    },
];

#[test]
fn connection_moves_only_to_the_disk_it_was_bound_to() {
    for (number, change) in DISK_CHANGES.iter().enumerate() {
        let place = Place::new(&format!("handover-disk-{number}"), 1, true);
        let other = TempFile::new(&format!("handover-disk-{number}-b"));
        std::fs::write(other.path(), vec![8; 4 << 20]).unwrap();
        let (a, b) = (place.image.path().to_owned(), other.path().to_owned());
        let path = |path: &Path| path.display().to_string();
        let texts: Vec<String> = change
            .exports
            .iter()
            .map(|text| text.replace('A', &path(&a)).replace('B', &path(&b)))
            .collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let (first, second) = (format!("a={}", path(&a)), format!("b={}", path(&b)));
        let old = Arc::new(place.serve(&[&first, &second], None).unwrap());
        let (mut on_a, mut on_b) = (place.client_of("a"), place.client_of("b"));
        (change.act)(&a, &b);
        let label = change.label;
        let server = match place.try_replace(&old, &texts, UnmatchedClients::Refuse) {
            Ok(new) => {
                assert_eq!(change.refusal, "", "{label}");
                new
            }
            Err(error) => {
                assert!(error.message.contains(change.refusal), "{label}: {error}");
                assert_ne!(change.refusal, "", "{label}: {error}");
                old.resume();
                let mut found = [[0; BLOCK]; 2];
                on_a.read(0, &mut found[0]).unwrap();
                on_b.read(0, &mut found[1]).unwrap();
                assert_eq!(found, [[7; BLOCK], [8; BLOCK]], "{label}: the old server goes on");
                // What a service manager does in its place: the old server is gone.
                place.try_replace(&old, &texts, UnmatchedClients::Close).unwrap()
            }
        };
        std::mem::forget(old);
        let mut stay = with_clients(&server);
        stay.sort();
        assert_eq!(stay, change.stay, "{label}");
        for (client, name, byte) in [(on_a, "a", 7), (on_b, "b", 8)] {
            let mut client = client;
            if change.stay.contains(&name) {
                let mut found = [0; BLOCK];
                client.read(0, &mut found).unwrap();
                assert_eq!(found, [byte; BLOCK], "{label}");
                client.disconnect().unwrap();
            }
        }
        end(server);
    }
}

#[test]
fn refused_takeover_removes_the_images_that_it_made() {
    let place = Place::new("handover-made", 1, true);
    let old = Arc::new(place.start(None).unwrap());
    let mut client = place.client();
    std::fs::remove_file(place.image.path()).unwrap();
    let text = format!("disk=file:path={},size=4M", place.image.path().display());
    let refused = place.try_replace(&old, &[&text], UnmatchedClients::Refuse).err().unwrap();
    assert!(
        refused.message.contains("export disk has clients, and its image changed"),
        "{refused}"
    );
    assert!(!place.image.path().exists(), "the old server serves the deleted image");
    old.resume();
    let mut found = [0; BLOCK];
    client.read(0, &mut found).unwrap();
    assert_eq!(found, [7; BLOCK]);
    client.disconnect().unwrap();
    end(Arc::into_inner(old).unwrap());
}

#[test]
fn dirty_blocks_without_their_disk_refuse_and_name_the_export() {
    let place = Place::new("handover-dirty-gone", 1, true);
    let old = Arc::new(place.start(None).unwrap());
    let mut client = place.client();
    client.write(0, &[1; BLOCK], CommandFlags::NONE).unwrap();
    client.disconnect().unwrap();
    until(|| with_clients(&old).is_empty());
    let path = place.image.path().display();
    let read_only = format!("disk=file:path={path},read-only=on");
    let kept = TempFile::absent("handover-dirty-gone-kept");
    let replaced = |text: &str| {
        let refused = place.try_replace(&old, &[text], UnmatchedClients::Refuse).err().unwrap();
        old.resume();
        refused.message
    };
    let said = replaced(&read_only);
    assert!(
        said.contains("1 dirty blocks") && said.contains("export disk: it is read-only now"),
        "{said}"
    );
    std::fs::rename(place.image.path(), kept.path()).unwrap();
    std::fs::write(place.image.path(), vec![9; 4 << 20]).unwrap();
    let said = replaced(&format!("disk={path}"));
    assert!(
        said.contains("1 dirty blocks")
            && said.contains("export disk: its image is not served any more"),
        "{said}"
    );
    let mut client = place.client();
    client.flush().unwrap();
    client.disconnect().unwrap();
    assert_eq!([block_of(kept.path(), 0), block_of(place.image.path(), 0)], [1, 9]);
    end(Arc::into_inner(old).unwrap());
}

#[test]
fn mark_goes_with_the_last_writer_of_its_image() {
    let place = Place::new("handover-marks", 1, true);
    let other = TempFile::new("handover-marks-b");
    std::fs::write(other.path(), vec![8; 4 << 20]).unwrap();
    let (a, b) = (place.image.path().display(), other.path().display());
    let mark = |path: &Path| PathBuf::from(format!("{}.headworks-dirty", path.display())).exists();
    let marks = || [place.image.path(), other.path()].map(mark);
    let server = place.serve(&[&format!("a={a}"), &format!("b={b}")], None).unwrap();
    assert_eq!(marks(), [true, true]);
    let server = place.replace_by(server, &[&format!("a={a}")]);
    assert_eq!(marks(), [true, false], "b is written out");
    // Another image in its place: the mark is that of the old server, and says nothing of a kill.
    replace_image(place.image.path(), other.path());
    let server = place.replace_by(server, &[&format!("a={a}")]);
    assert!(server.notes().iter().all(|note| !note.contains("killed")), "{:?}", server.notes());
    let image = Identity::of(place.image.path()).unwrap();
    assert!(Marker::of(place.image.path()).found(image).is_some(), "it is marked as the new one");
    assert_eq!(marks(), [true, false]);
    let server = place.replace_by(server, &[&format!("a=file:path={a},read-only=on")]);
    assert_eq!(marks(), [false, false]);
    end(server);
}

#[test]
fn volume_that_holds_writes_in_memory_refuses() {
    let place = Place::new("handover-powercut", 1, true);
    let text = format!("disk=powercut:of={}", place.image.path().display());
    let server = place.serve(&[&text], None).unwrap();
    let refused = server.standing().unwrap_err();
    assert!(refused.contains("partly in the memory of this process"), "{refused}");
    end(server);
}

#[test]
fn resize_after_standing_part_refuses_pause() {
    let place = Place::new("handover-resized", 1, true);
    let server = place.start(None).unwrap();
    server.standing().unwrap();
    let size = serde_json::json!({ "export": "disk", "size": 8 << 20 });
    assert!(server.service().call("resize", size.as_object().unwrap()).is_ok());
    let refused = server.pause(LIMIT).unwrap_err();
    assert!(refused.contains("a resize was made meanwhile"), "{refused}");
    server.standing().unwrap();
    server.pause(LIMIT).unwrap();
    server.resume();
    place.client().disconnect().unwrap();
    end(server);
}

#[test]
fn hung_export_refuses_pause_by_name_while_others_are_served() {
    let place = Place::new("handover-hung", 1, true);
    let other = TempFile::new("handover-hung-b");
    std::fs::write(other.path(), vec![8; 4 << 20]).unwrap();
    let hung = format!("hung=delay:read=3s,of={}", place.image.path().display());
    let server = place.serve(&[&hung, &format!("b={}", other.path().display())], None).unwrap();
    let mut socket = place.client_of("hung").into_parts().0;
    let (command, flags) = (Command::Read, CommandFlags::NONE);
    let request = Request { cookie: 1, offset: 0, len: BLOCK as u32, command, flags };
    socket.write_all(&request.header()).unwrap();
    let age =
        || change::held_up::oldest_command(server.service().changes()).map(|oldest| oldest.age);
    until(|| age().is_some_and(|age| age > Duration::from_millis(200)));
    let mut client = place.client_of("b");
    let refused = std::thread::scope(|scope| {
        let pause = scope.spawn(|| server.pause(Duration::from_millis(300)));
        while !pause.is_finished() {
            assert!(server.service().accepts_clients(), "the others are served meanwhile");
            std::thread::yield_now();
        }
        pause.join().unwrap().unwrap_err()
    });
    client.read(0, &mut [0; BLOCK]).unwrap();
    let expected = "requests in flight did not end in time: export hung, device hw";
    assert!(refused.starts_with(expected) && refused.contains(", oldest "), "{refused}");
    // The device answers in the end, and then it can be paused.
    let mut reply = [0; 16 + BLOCK];
    socket.read_exact(&mut reply).unwrap();
    server.standing().unwrap();
    server.pause(LIMIT).unwrap();
    server.resume();
    client.disconnect().unwrap();
    drop(socket);
    end(server);
}
