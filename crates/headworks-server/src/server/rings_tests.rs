//! Virtual machines at a running server: a front end and driver without a machine, beside NBD clients of the same export.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::change_tests::{call, end, options, spec};
use crate::exports::assemble::{Assembly, ExportSpec};
use crate::{AccessSpec, Address, ListenerKind, ListenerSpec, Server, ServerOptions};
use headworks_nbd::client::{Client, ClientOptions, Uri};
use headworks_nbd::tls::TlsOptions;
use headworks_nbd::wire::CommandFlags;
use headworks_testing::TempDir;
use headworks_vhost::driver::{Driver, DriverError, DriverOptions, Queue, Waited, Waiting};
use headworks_vhost::{RequestOp, features};

/// Longer than anything here takes on a loaded machine.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
const BLOCK: usize = 4096;

/// A folder for sockets and images, removed on drop.
pub(super) struct Folder(TempDir);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        Self(TempDir::new(name))
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn uri(&self, export: &str) -> Uri {
        let path = self.path("nbd");
        format!("nbd+unix:///{export}?socket={}", path.display()).parse().unwrap()
    }

    /// A server with these exports, each behind a socket of its own name, and all behind one for NBD.
    pub(super) fn serve(&self, texts: &[&str], changed: impl FnOnce(&mut ServerOptions)) -> Server {
        self.serve_specs(texts.iter().map(|text| spec(text)).collect(), changed)
    }

    fn serve_specs(
        &self,
        specs: Vec<ExportSpec>,
        changed: impl FnOnce(&mut ServerOptions),
    ) -> Server {
        let listener = |kind, name: &str, exports: Vec<String>| ListenerSpec {
            name: name.to_owned(),
            kind,
            address: Address::Unix { path: self.path(name), mode: 0o600 },
            owner: None,
            exports,
            tenant: None,
            tls: TlsOptions::default(),
        };
        let disks = specs
            .iter()
            .map(|spec| listener(ListenerKind::VhostUser, &spec.name, vec![spec.name.clone()]));
        let nbd = listener(ListenerKind::Nbd, "nbd", Vec::new());
        let access =
            AccessSpec { listeners: disks.chain([nbd]).collect(), ..AccessSpec::default() };
        let mut options = ServerOptions { access, ..options(2) };
        changed(&mut options);
        Server::start(Assembly::new(&specs).unwrap(), &options, || ()).unwrap()
    }
}

pub(super) fn driver(socket: &Path, changed: impl FnOnce(&mut DriverOptions)) -> Driver {
    let mut options = DriverOptions { timeout: LIMIT, ..DriverOptions::new(socket.to_owned()) };
    changed(&mut options);
    Driver::connect(options).unwrap()
}

/// Content of a block, which no other has.
pub(super) fn content(block: u64) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    for (place, word) in bytes.chunks_exact_mut(8).zip(0..) {
        place.copy_from_slice(&(block << 16 | word).to_le_bytes());
    }
    bytes
}

/// Carries out one request of slot 0; returns its status byte.
pub(super) fn one(queue: &mut Queue, op: RequestOp, offset: u64, len: usize) -> u8 {
    queue.put(0, op, offset, len as u32, 0);
    queue.submit();
    answer(queue)
}

fn answer(queue: &mut Queue) -> u8 {
    assert_eq!(queue.wait(LIMIT), Waited::Answered, "the device answers");
    let mut status = None;
    queue.reap(|one| status = Some(one.status));
    status.unwrap()
}

/// Writes or reads and checks blocks with as many requests at once as there are slots.
pub(super) fn each_block(queue: &mut Queue, op: RequestOp, first: u64, count: u64) {
    let (mut next, mut left) = (first, count);
    let mut blocks = vec![0; usize::from(queue.depth())];
    while left > 0 {
        for slot in 0..queue.depth() {
            if next == first + count || queue.is_in_flight(slot) {
                continue;
            }
            let bytes = if op == RequestOp::Write { content(next) } else { [0xaa; BLOCK] };
            queue.buffer(slot)[..BLOCK].copy_from_slice(&bytes);
            blocks[usize::from(slot)] = next;
            queue.put(slot, op, next * BLOCK as u64, BLOCK as u32, 0);
            next += 1;
        }
        queue.submit();
        assert_eq!(queue.wait(LIMIT), Waited::Answered, "the device answers");
        let mut done = Vec::new();
        queue.reap(|one| done.push(one));
        for one in done {
            assert_eq!(one.status, 0);
            let block = blocks[usize::from(one.slot)];
            let read = if op == RequestOp::Read { BLOCK as u32 } else { 0 };
            assert_eq!(one.written, read + 1);
            if op == RequestOp::Read {
                assert_eq!(queue.buffer(one.slot)[..BLOCK], content(block), "block {block}");
            }
            left -= 1;
        }
    }
}

pub(super) fn nbd(folder: &Folder, export: &str) -> Client {
    Client::connect(&folder.uri(export), ClientOptions::default()).unwrap()
}

pub(super) fn wait_for(what: &str, mut has_come: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !has_come() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The rows of `connections` of a kind.
pub(super) fn clients(server: &Server, kind: &str) -> Vec<Value> {
    let all = call(server, "connections", json!({})).unwrap();
    let rows = all.as_array().unwrap().iter();
    rows.filter(|row| row["kind"] == kind).cloned().collect()
}

#[test]
fn what_a_machine_writes_is_what_it_and_others_read() {
    let folder = Folder::new("data");
    let server = folder.serve(&["a=mem:size=4M", "b=mem:size=4M"], |options| {
        options.cache = 16 << 20;
    });
    for (name, pieces, is_indirect, waiting) in
        [("a", 1, false, Waiting::Sleep), ("b", 4, true, Waiting::Poll)]
    {
        let mut machine = driver(&folder.path(name), |options| {
            (options.queues, options.pieces) = (2, pieces);
            (options.is_indirect, options.waiting) = (is_indirect, waiting);
        });
        assert_eq!(machine.capacity().size, 4 << 20);
        let [first, second] = machine.queues() else { panic!("two queues") };
        each_block(first, RequestOp::Write, 0, 300);
        each_block(second, RequestOp::Write, 300, 200);
        assert_eq!(one(second, RequestOp::Flush, 0, 0), 0);
        each_block(second, RequestOp::Read, 0, 300);
        each_block(first, RequestOp::Read, 300, 200);
        assert_eq!(one(first, RequestOp::WriteZeroes, 0, BLOCK), 0);
        assert_eq!(one(first, RequestOp::Discard, BLOCK as u64, BLOCK), 0);
        let mut client = nbd(&folder, name);
        let mut bytes = vec![0xaa; BLOCK];
        client.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; BLOCK]);
        client.read(300 * BLOCK as u64, &mut bytes).unwrap();
        assert_eq!(bytes, content(300));
        client.write(7 * BLOCK as u64, &content(1007), CommandFlags::NONE).unwrap();
        assert_eq!(one(first, RequestOp::Read, 7 * BLOCK as u64, BLOCK), 0);
        assert_eq!(first.buffer(0)[..BLOCK], content(1007));
    }
    end(server);
}

#[test]
fn device_is_one_client_whatever_its_queues() {
    let folder = Folder::new("client");
    let server = folder.serve(&["a=mem:size=4M"], |_| {});
    let mut machine = driver(&folder.path("a"), |options| options.queues = 8);
    let _nbd = nbd(&folder, "a");
    for queue in machine.queues() {
        each_block(queue, RequestOp::Write, 0, 64);
    }
    let [row] = &clients(&server, "vhost-user")[..] else { panic!("one client") };
    assert_eq!((&row["export"], clients(&server, "nbd").len()), (&json!("a"), 1));
    assert_eq!(row["listener"], "a");
    assert!(row["latency"]["write"]["total"].is_object(), "{row}");
    let listeners = call(&server, "listeners", json!({})).unwrap();
    let kinds: Vec<_> = listeners.as_array().unwrap().iter().map(|row| &row["kind"]).collect();
    assert_eq!(kinds, ["vhost-user", "nbd"]);
    drop(machine);
    wait_for("its device leaves", || clients(&server, "vhost-user").is_empty());
    end(server);
}

#[test]
fn limit_is_taken_before_a_request_is_answered() {
    let folder = Folder::new("limit");
    // One at once, and then one a second.
    let server = folder.serve(&["a=mem:size=4M,iops-write=1"], |_| {});
    let mut machine = driver(&folder.path("a"), |_| {});
    let [queue] = machine.queues() else { panic!("one queue") };
    for slot in 0..4 {
        queue.put(slot, RequestOp::Write, u64::from(slot) * BLOCK as u64, BLOCK as u32, 0);
    }
    queue.put(4, RequestOp::Read, 0, BLOCK as u32, 0);
    queue.submit();
    let mut answered = Vec::new();
    wait_for("what is within the limit passes, and the read", || {
        queue.reap(|one| answered.push(one.slot));
        answered.len() >= 2
    });
    assert!(answered.contains(&4), "reads have a limit of their own: {answered:?}");
    assert!(queue.in_flight() > 0, "{answered:?}");
    call(&server, "set", json!({ "path": "exports/a/iops-write", "value": "max" })).unwrap();
    wait_for("without the limit all pass", || {
        queue.reap(|one| answered.push(one.slot));
        queue.in_flight() == 0
    });
    end(server);
}

#[test]
fn ring_without_room_for_pieces_goes_on_when_requests_are_answered() {
    let folder = Folder::new("pieces");
    let server = folder.serve(&["a=delay:all=5ms,of=mem:size=4M"], |_| {});
    let mut machine = driver(&folder.path("a"), |options| {
        (options.depth, options.pieces, options.is_indirect) = (128, 126, true);
        options.buffer_bytes = 126 * 512;
    });
    let [queue] = machine.queues() else { panic!("one queue") };
    for slot in 0..128 {
        queue.put(slot, RequestOp::Read, 0, 126 * 512, 0);
    }
    queue.submit();
    wait_for("all are answered", || {
        queue.reap(|one| assert_eq!(one.status, 0));
        queue.in_flight() == 0
    });
    end(server);
}

#[test]
fn ring_stops_without_waiting_for_limits() {
    let folder = Folder::new("drain");
    let server = folder.serve(&["a=mem:size=4M,iops-write=1"], |_| {});
    let mut machine = driver(&folder.path("a"), |options| options.depth = 128);
    let [queue] = machine.queues() else { panic!("one queue") };
    for slot in 0..128 {
        queue.put(slot, RequestOp::Write, u64::from(slot) * BLOCK as u64, BLOCK as u32, 0);
    }
    queue.submit();
    // Longer than the driver waits for an answer, if each took a second.
    let base = machine.stop_queue(0).unwrap();
    let mut answered = 0;
    machine.queues()[0].reap(|_| answered += 1);
    assert_eq!(answered, usize::from(base), "what was taken is answered");
    machine.start_queue(0, base).unwrap();
    end(server);
}

#[test]
fn request_that_is_larger_than_any_buffer_fails_and_others_pass() {
    let folder = Folder::new("large");
    let server = folder.serve(&["a=null:size=1G"], |_| {});
    let mut machine = driver(&folder.path("a"), |options| {
        (options.depth, options.pieces, options.buffer_bytes) = (2, 2, 64 << 20);
    });
    let [queue] = machine.queues() else { panic!("one queue") };
    assert_eq!(one(queue, RequestOp::Write, 0, 64 << 20), 1);
    assert_eq!(one(queue, RequestOp::Read, 0, 64 << 20), 1);
    assert_eq!(one(queue, RequestOp::Read, 0, 1 << 20), 0);
    end(server);
}

#[test]
fn request_that_takes_too_long_is_answered_when_its_memory_is_free() {
    let folder = Folder::new("late");
    let server = folder.serve(&["a=delay:all=2s,of=mem:size=4M"], |_| {});
    let set_limit = |ms: u32| {
        let limit = json!({ "path": "hw0/queue/io_timeout", "value": ms });
        call(&server, "set", limit).unwrap();
    };
    set_limit(100);
    let mut machine = driver(&folder.path("a"), |_| {});
    let [queue] = machine.queues() else { panic!("one queue") };
    let begin = Instant::now();
    queue.buffer(0)[..BLOCK].fill(0xaa);
    assert_eq!(one(queue, RequestOp::Read, 0, BLOCK), 1, "it took too long");
    assert!(begin.elapsed() >= Duration::from_secs(2), "not before the device has ended it");
    // The last flush is as slow.
    set_limit(30_000);
    end(server);
}

#[test]
fn writes_of_a_frozen_export_wait_for_the_thaw() {
    let folder = Folder::new("freeze");
    let server = folder.serve(&["a=mem:size=4M"], |_| {});
    let mut machine = driver(&folder.path("a"), |_| {});
    let [queue] = machine.queues() else { panic!("one queue") };
    call(&server, "freeze", json!({ "exports": ["a"] })).unwrap();
    queue.put(0, RequestOp::Write, 0, BLOCK as u32, 0);
    queue.submit();
    wait_for("it is known to wait", || {
        let row = clients(&server, "vhost-user").remove(0);
        row["oldest_s"].as_f64().is_some()
    });
    assert_eq!((queue.in_flight(), queue.reap(|_| {})), (1, 0));
    call(&server, "thaw", json!({ "exports": ["a"] })).unwrap();
    assert_eq!(answer(queue), 0);
    end(server);
}

#[test]
fn read_only_export_refuses_what_changes_it_and_unknown_requests_are_not_supported() {
    let folder = Folder::new("read-only");
    let read_only = ExportSpec { read_only: true, ..spec("a=mem:size=4M") };
    let server = folder.serve_specs(vec![read_only, spec("b=mem:size=4M")], |_| {});
    let mut machine = driver(&folder.path("a"), |_| {});
    assert!(machine.capacity().is_read_only && machine.features() & features::RO != 0);
    let [queue] = machine.queues() else { panic!("one queue") };
    assert_eq!(one(queue, RequestOp::Read, 0, BLOCK), 0);
    assert_eq!(one(queue, RequestOp::Write, 0, BLOCK), 1);
    assert_eq!(one(queue, RequestOp::Read, 4 << 20, BLOCK), 1, "beyond the end");
    let mut machine = driver(&folder.path("b"), |_| {});
    let [queue] = machine.queues() else { panic!("one queue") };
    queue.put_raw(0, 99, 0, 512, false);
    queue.submit();
    assert_eq!(answer(queue), 2);
    queue.put_raw(0, 8, 0, 20, true);
    queue.submit();
    assert_eq!(answer(queue), 0);
    assert_eq!(&queue.buffer(0)[..2], b"b\0", "the name of the export");
    end(server);
}

#[test]
fn grown_export_is_another_disk_at_once() {
    let folder = Folder::new("resize");
    let image = folder.path("image");
    std::fs::File::create(&image).unwrap().set_len(1 << 20).unwrap();
    let server = folder.serve(&[&format!("a=file:path={}", image.display())], |_| {});
    let mut machine = driver(&folder.path("a"), |_| {});
    assert_eq!(one(&mut machine.queues()[0], RequestOp::Write, 1 << 20, BLOCK), 1);
    call(&server, "resize", json!({ "export": "a", "size": "2M" })).unwrap();
    wait_for("the configuration has the new size", || {
        machine.read_capacity().unwrap().size == 2 << 20
    });
    assert_eq!(one(&mut machine.queues()[0], RequestOp::Write, 1 << 20, BLOCK), 0);
    end(server);
}

#[test]
fn second_machine_waits_until_the_first_has_left() {
    let folder = Folder::new("second");
    let server = folder.serve(&["a=mem:size=4M"], |_| {});
    let mut first = driver(&folder.path("a"), |_| {});
    let socket = folder.path("a");
    let second = std::thread::spawn(move || {
        let mut second = driver(&socket, |_| {});
        one(&mut second.queues()[0], RequestOp::Read, 0, BLOCK)
    });
    assert_eq!(one(&mut first.queues()[0], RequestOp::Write, 0, BLOCK), 0);
    assert_eq!(clients(&server, "vhost-user").len(), 1);
    drop(first);
    assert_eq!(second.join().unwrap(), 0);
    end(server);
}

#[test]
fn machine_goes_on_at_the_next_server() {
    let folder = Folder::new("restart");
    let image = folder.path("image");
    std::fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
    let text = format!("a=file:path={}", image.display());
    let mut server = folder.serve(&[&text], |_| {});
    let mut machine = driver(&folder.path("a"), |options| options.queues = 2);
    assert!(machine.has_in_flight(), "without a cache nothing acknowledged dies with the process");
    for round in 0..3 {
        each_block(&mut machine.queues()[0], RequestOp::Write, round * 100, 100);
        let [_, queue] = machine.queues() else { panic!("two queues") };
        for slot in 0..8 {
            let block = 600 + round * 8 + u64::from(slot);
            queue.buffer(slot)[..BLOCK].copy_from_slice(&content(block));
            queue.put(slot, RequestOp::Write, block * BLOCK as u64, BLOCK as u32, 0);
        }
        queue.submit();
        end(server);
        server = folder.serve(&[&text], |_| {});
        machine.reconnect().unwrap();
        let [_, queue] = machine.queues() else { panic!("two queues") };
        let mut answered = 0;
        wait_for("what the last server did not answer, this one does", || {
            answered += queue.reap(|one| assert_eq!(one.status, 0));
            answered == 8
        });
        assert_eq!(queue.counts().strays, 0);
    }
    each_block(&mut machine.queues()[0], RequestOp::Read, 0, 300);
    each_block(&mut machine.queues()[0], RequestOp::Read, 600, 24);
    end(server);
}

#[test]
fn requests_in_flight_are_kept_only_where_what_was_answered_is() {
    let folder = Folder::new("outlives");
    let texts = ["none", "writethrough", "writeback"].map(|mode| {
        let path = folder.path(&format!("{mode}.img"));
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        format!("{mode}=file:path={},cache={mode}", path.display())
    });
    let mut texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let below = folder.path("cut.img");
    let cut = format!("cut=powercut:seed=1,cache=none,of=file:path={},size=1M", below.display());
    texts.extend(["memory=mem:size=1M,cache=none", &cut]);
    let server = folder.serve(&texts, |options| options.cache = 16 << 20);
    let outlive = ["none", "writethrough"].map(|name| (name, true));
    let die = ["writeback", "memory", "cut"].map(|name| (name, false));
    for (name, outlives) in outlive.into_iter().chain(die) {
        assert_eq!(driver(&folder.path(name), |_| {}).has_in_flight(), outlives, "{name}");
    }
    end(server);
}

#[test]
fn export_that_is_removed_ends_its_machine_and_a_new_one_is_served() {
    let folder = Folder::new("removed");
    let server = folder.serve(&["a=mem:size=4M", "b=mem:size=4M"], |_| {});
    let mut machine = driver(&folder.path("a"), |_| {});
    each_block(&mut machine.queues()[0], RequestOp::Write, 0, 10);
    call(&server, "remove", json!({ "export": "a", "force": true })).unwrap();
    wait_for("its client is gone", || clients(&server, "vhost-user").is_empty());
    let mut other = DriverOptions::new(folder.path("a"));
    other.timeout = LIMIT;
    let refused = Driver::connect(other).unwrap_err();
    assert!(matches!(refused, DriverError::Io(_) | DriverError::Device(_)), "{refused}");
    call(&server, "add", json!({ "spec": "a=mem:size=8M" })).unwrap();
    let machine = driver(&folder.path("a"), |_| {});
    assert_eq!(machine.capacity().size, 8 << 20);
    end(server);
}
