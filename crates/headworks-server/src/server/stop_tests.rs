//! Stops beside volumes that hang or fail: the other volumes are written out, flushed and closed.

use std::time::{Duration, Instant};

use headworks::EngineChoice;
use headworks_nbd::client::{Client, ClientOptions};
use headworks_nbd::wire::CommandFlags;
use headworks_testing::{TempDir, TempFile};

use crate::reactor::shared::VolumeStop;
use crate::successor::marker::Marker;
use crate::{Address, Assembly, ExportSpec, Server, ServerOptions};

const SIZE: usize = 1 << 20;
const HEALTHY: usize = 7;
/// Turns a hang into a failure.
const LONG: Duration = Duration::from_secs(60);

/// A server with some healthy exports and `bad`, which is behind a wrapper.
struct Bench {
    images: Vec<TempFile>,
    folder: TempDir,
    server: Server,
}

fn image(name: &str, index: usize) -> TempFile {
    let image = TempFile::new(&format!("{name}-{index}"));
    std::fs::write(image.path(), vec![0; SIZE]).unwrap();
    image
}

impl Bench {
    fn start(name: &str, shards: u16, wrapper: &str) -> Self {
        let images: Vec<TempFile> = (0..=HEALTHY).map(|index| image(name, index)).collect();
        let folder = TempDir::new(name);
        let spec = |(index, image): (usize, &TempFile)| {
            let path = image.path().display();
            let text = match index {
                HEALTHY => format!("bad={wrapper},cache=writeback,of=file:path={path}"),
                _ => format!("good-{index}=file:path={path},cache=writeback"),
            };
            ExportSpec::parse(&text, false).unwrap()
        };
        let specs: Vec<_> = images.iter().enumerate().map(spec).collect();
        let options = ServerOptions {
            listen: vec![Address::Unix { path: folder.join("socket"), mode: 0o600 }],
            shards,
            engine: EngineChoice::Threads,
            buffers: 64 << 20,
            cache: 16 << 20,
            ..ServerOptions::default()
        };
        let server = Server::start(Assembly::new(&specs).unwrap(), &options, || ()).unwrap();
        Self { images, folder, server }
    }

    fn client(&self, export: &str) -> Client {
        let uri = format!("nbd+unix:///{export}?socket={}", self.folder.join("socket").display());
        Client::connect(&uri.parse().unwrap(), ClientOptions::default()).unwrap()
    }

    /// Writes to each healthy export, and leaves one client connected.
    fn write_to_healthy(&self) -> Client {
        let write = |index: usize| {
            let mut client = self.client(&format!("good-{index}"));
            client.write(0, &[index as u8 + 1; SIZE], CommandFlags::NONE).unwrap();
            client
        };
        let last = (0..HEALTHY).map(write).last();
        last.unwrap()
    }

    fn stop_of(&self, export: &str) -> (VolumeStop, u64) {
        let all = self.server.exports();
        let found = all.into_iter().find(|other| other.name == export).unwrap();
        (found.progress.stop, found.progress.requests)
    }

    fn wait_until(&self, what: &str, holds: impl Fn() -> bool) {
        let since = Instant::now();
        while !holds() {
            assert!(since.elapsed() < LONG, "{what}: {:?}", self.server.exports());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn is_marked(&self, index: usize) -> bool {
        Marker::of(&std::fs::canonicalize(self.images[index].path()).unwrap()).exists()
    }

    /// Each healthy image has what was written, and no mark.
    fn check_healthy(&self) {
        for index in 0..HEALTHY {
            assert_eq!(self.stop_of(&format!("good-{index}")), (VolumeStop::Closed, 0));
            assert!(!self.is_marked(index), "the next start would call its server killed");
            let bytes = std::fs::read(self.images[index].path()).unwrap();
            assert!(bytes.iter().all(|byte| *byte == index as u8 + 1), "image {index}");
        }
    }
}

#[test]
fn hung_volume_delays_no_other_volume_at_a_stop() {
    for shards in [1, 3] {
        let bench = Bench::start(&format!("stop-hung-{shards}"), shards, "delay:read=3600s");
        let mut hung = bench.client("bad");
        hung.write(0, &[9; 4096], CommandFlags::NONE).unwrap();
        let _idle = bench.write_to_healthy();
        // A read of a block that is not cached waits for the device.
        let reader = std::thread::spawn(move || hung.read(65536, &mut [0; 4096]));
        let requests = || {
            let call = bench.server.service().call("connections", &serde_json::Map::new());
            let rows = call.map_err(|fault| fault.into_message()).unwrap();
            rows.to_string().contains("\"in_flight\":1")
        };
        bench.wait_until("the read is in flight", requests);
        bench.server.stop();
        let closed = || {
            (0..HEALTHY)
                .all(|index| bench.stop_of(&format!("good-{index}")).0 == VolumeStop::Closed)
        };
        bench.wait_until("healthy volumes are closed", closed);
        bench.check_healthy();
        assert_eq!(bench.stop_of("bad"), (VolumeStop::Draining, 1));
        assert!(bench.is_marked(HEALTHY), "its stop has not ended");
        assert!(!reader.is_finished());
        drop(bench.folder);
        // Its threads wait for the device.
        std::mem::forget(bench.server);
        bench.images.iter().for_each(|image| drop(std::fs::remove_file(image.path())));
    }
}

#[test]
fn failed_last_flush_leaves_only_its_own_mark() {
    for shards in [1, 3] {
        let bench = Bench::start(&format!("stop-failed-{shards}"), shards, "error:op=flush");
        let mut bad = bench.client("bad");
        bad.write(0, &[9; 4096], CommandFlags::NONE).unwrap();
        let _idle = bench.write_to_healthy();
        bench.server.stop();
        let ended = || bench.stop_of("bad").0 == VolumeStop::Failed;
        bench.wait_until("the volume has failed", ended);
        let closed = || {
            (0..HEALTHY)
                .all(|index| bench.stop_of(&format!("good-{index}")).0 == VolumeStop::Closed)
        };
        bench.wait_until("healthy volumes are closed", closed);
        bench.check_healthy();
        assert!(bench.is_marked(HEALTHY), "acknowledged writes may be lost");
        let Bench { server, folder, images } = bench;
        assert!(server.join().unwrap_err().contains("1 final flushes failed"));
        drop((folder, images));
    }
}
