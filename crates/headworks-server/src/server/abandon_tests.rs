//! Exports that are given up (`remove --abandon`): what goes at once, what goes when the device answers, and what never waits.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use headworks_nbd::client::{Client, ClientOptions};
use headworks_nbd::transmission::Request;
use headworks_nbd::wire::{Command, CommandFlags};
use headworks_testing::{TempDir, TempFile};
use serde_json::{Value, json};

use super::change_tests::{call, end, options, spec};
use crate::exports::assemble::Assembly;
use crate::observe::metrics::page::metrics_page;
use crate::options::{CacheFile, ProcessContext};
use crate::{Address, Server, ServerOptions};

/// Turns a hang into a failure.
const LIMIT: Duration = Duration::from_secs(30);
const BLOCK: usize = 4096;

struct Bench {
    image: TempFile,
    memory: TempFile,
    folder: TempDir,
    server: Server,
}

fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(began.elapsed() < LIMIT, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Bench {
    /// A server of `calm`, and of `hung` with this wrapper and cache mode on an image of bytes 1.
    fn start(name: &str, wrapper: &str, mode: &str) -> Self {
        let (image, memory) = (TempFile::new(name), TempFile::new(&format!("{name}-memory")));
        std::fs::write(image.path(), vec![1; 1 << 20]).unwrap();
        let folder = TempDir::new(name);
        let path = image.path().display();
        let hung = format!("hung={wrapper},cache={mode},of=file:path={path}");
        let specs = ["calm=mem:size=1M", &hung].map(spec);
        let file = std::fs::File::options().read(true).write(true).open(memory.path()).unwrap();
        let cache_file = CacheFile { file: Arc::new(file), name: "memory".into(), required: true };
        let options = ServerOptions {
            listen: vec![Address::Unix { path: folder.join("socket"), mode: 0o600 }],
            cache: 16 << 20,
            process: ProcessContext { cache_file: Some(cache_file), ..ProcessContext::default() },
            ..options(2)
        };
        let server = Server::start(Assembly::new(&specs).unwrap(), &options, || ()).unwrap();
        Self { image, memory, folder, server }
    }

    fn client(&self, export: &str) -> Client {
        let uri = format!("nbd+unix:///{export}?socket={}", self.folder.join("socket").display());
        Client::connect(&uri.parse().unwrap(), ClientOptions::default()).unwrap()
    }

    /// Sends a read and does not wait for its answer; returns when the device has it.
    fn hang(&self) -> impl Read + use<> {
        let mut socket = self.client("hung").into_parts().0;
        let (len, command, flags) = (BLOCK as u32, Command::Read, CommandFlags::NONE);
        let request = Request { cookie: 1, offset: 8192, len, command, flags };
        socket.write_all(&request.header()).unwrap();
        until("its device has the read", || {
            let stats = self.ask("stats", json!({}));
            (stats["exports"]["hung"]["in_flight"]["oldest"]["stage"] == "device").then_some(())
        });
        socket
    }

    fn ask(&self, method: &str, params: Value) -> Value {
        call(&self.server, method, params).unwrap()
    }

    fn give_up(&self) -> Value {
        self.ask("remove", json!({ "export": "hung", "abandon": true }))
    }

    fn has_mark(&self) -> bool {
        PathBuf::from(format!("{}.headworks-dirty", self.image.path().display())).exists()
    }

    fn until_ended(&self) {
        until("its device has answered", || self.server.abandoned().is_empty().then_some(()));
    }

    fn end(self) {
        // Memory and folder stay until the server has ended.
        let Self { server, memory: _memory, .. } = self;
        end(server);
    }
}

#[test]
fn abandoned_export_is_nowhere_at_once_and_closed_when_its_device_answers() {
    let bench = Bench::start("abandon-read", "delay:read=4s", "none");
    let mut socket = bench.hang();
    let given_up = bench.give_up();
    let waits_for = given_up["abandoned"]["waits_for"].as_str().unwrap();
    assert!(waits_for.contains("requests of 1 clients of export hung are still in"), "{waits_for}");
    assert_eq!((&given_up["clients"], &given_up["closed"]), (&json!(1), &json!(false)));
    assert_eq!(given_up["abandoned"]["unwritten_bytes"], 0);
    assert_eq!(socket.read(&mut [0; 1]).unwrap(), 0, "its client is closed");
    // Its name is free, and its image is not.
    for method in ["exports", "stats", "why", "top", "list", "connections"] {
        let Ok(answer) = call(&bench.server, method, json!({})) else { continue };
        assert!(!answer.to_string().contains("hung"), "{method}: {answer}");
    }
    let page =
        metrics_page(bench.server.service().queries(), &bench.server.service().tree()).unwrap();
    assert!(!page.contains("hung") && page.contains("calm"), "{page}");
    let same = format!("again=file:path={}", bench.image.path().display());
    let refused = call(&bench.server, "add", json!({ "spec": same })).unwrap_err();
    assert!(refused.contains("given up"), "{refused}");
    bench.ask("add", json!({ "spec": "hung=mem:size=1M" }));
    let mut other = bench.client("hung");
    other.write(0, &[3; BLOCK], CommandFlags::NONE).unwrap();
    assert_eq!(bench.server.abandoned(), ["hung"]);
    bench.until_ended();
    // Memory, tags and ids are back: the same again.
    bench.ask("add", json!({ "spec": same }));
    let mut found = [0; BLOCK];
    bench.client("again").read(8192, &mut found).unwrap();
    assert_eq!(found, [1; BLOCK]);
    let mut found = [0; BLOCK];
    other.read(0, &mut found).unwrap();
    assert_eq!(found, [3; BLOCK], "another one of its name is untouched");
    let buffers = bench.ask("stats", json!({}))["buffers"].clone();
    assert_eq!(buffers["taken"], 0, "{buffers}");
    bench.end();
}

#[test]
fn acknowledged_writes_of_abandoned_export_are_in_recovery_file_and_written_later() {
    let bench = Bench::start("abandon-dirty", "delay:write=3s", "writeback");
    let mut client = bench.client("hung");
    client.write(4096, &[5; 2 * BLOCK], CommandFlags::NONE).unwrap();
    client.write(65536, &[6; BLOCK], CommandFlags::NONE).unwrap();
    let given_up = bench.give_up();
    let left = &given_up["abandoned"];
    assert_eq!(left["unwritten_bytes"], 3 * BLOCK, "{left}");
    let recovery = PathBuf::from(left["recovery_file"].as_str().unwrap());
    let (bytes, map) = (std::fs::read(&recovery).unwrap(), recovery.display().to_string() + ".map");
    assert_eq!(bytes.len(), 1 << 20);
    assert!(bytes[4096..][..2 * BLOCK].iter().all(|byte| *byte == 5), "they are all there");
    assert!(bytes[65536..][..BLOCK].iter().all(|byte| *byte == 6) && bytes[0] == 0);
    let lines = std::fs::read_to_string(&map).unwrap();
    assert!(lines.ends_with("\n4096 8192\n65536 4096\n"), "{lines}");
    assert!(bench.has_mark(), "the image is not whole");
    bench.until_ended();
    let image = std::fs::read(bench.image.path()).unwrap();
    assert!(image[4096..][..2 * BLOCK].iter().all(|byte| *byte == 5), "its device has them now");
    assert!(image[65536..][..BLOCK].iter().all(|byte| *byte == 6));
    assert!(!bench.has_mark(), "and nothing is missing");
    let _ = (std::fs::remove_file(recovery), std::fs::remove_file(map));
    bench.end();
}

#[test]
fn export_whose_device_answers_is_removed_as_ever() {
    let bench = Bench::start("abandon-answers", "delay:all=1ms", "writeback");
    bench.client("hung").write(0, &[5; BLOCK], CommandFlags::NONE).unwrap();
    let removed = bench.give_up();
    assert_eq!((&removed["closed"], &removed["abandoned"]), (&json!(true), &Value::Null));
    assert_eq!(std::fs::read(bench.image.path()).unwrap()[0], 5);
    bench.end();
}

#[test]
fn writes_that_an_abandoned_device_refuses_are_discarded() {
    let bench = Bench::start("abandon-error", "error:rate=100%,op=write", "writeback");
    bench.client("hung").write(0, &[5; BLOCK], CommandFlags::NONE).unwrap();
    let left = bench.give_up()["abandoned"].clone();
    assert_eq!(left["unwritten_bytes"], BLOCK, "{left}");
    bench.until_ended();
    assert!(bench.has_mark(), "the image lacks a write");
    bench.end();
}
