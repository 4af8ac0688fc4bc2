//! A served disk under this project's own NBD clients.

use std::time::Duration;

use headworks_nbd::client::bench::{self, BenchOptions, Pattern};
use headworks_nbd::client::{Client, ClientError, ClientOptions, Target, Uri};
use headworks_nbd::wire::CommandFlags;

use super::*;
use crate::live::server::TempFolder;

/// Serves a disk to `use_it`, which connects and disconnects, until it has left.
fn serve(depth: u32, keep: u64, use_it: impl FnOnce(&Uri) + Send) -> ServedDisk {
    let folder = TempFolder::make().unwrap();
    let socket = folder.path("disk");
    let disk = Disk::Nvme;
    let options = ServeDiskOptions { disk, socket: socket.clone(), depth, keep, once: true };
    let server = DiskServer::new(&options).unwrap();
    let uri = Uri { target: Target::Unix(socket), export: String::new(), tls: None };
    std::thread::scope(|scope| {
        scope.spawn(|| use_it(&uri));
        server.run().unwrap()
    })
}

#[test]
fn client_reads_what_it_wrote() {
    for structured in [false, true] {
        let served = serve(32, 1 << 20, |uri| {
            let options = ClientOptions { structured, ..ClientOptions::default() };
            let mut client = Client::connect(uri, options).unwrap();
            assert_eq!(client.export().size, Disk::Nvme.size());
            let bytes: Vec<u8> = (0..300_000u32).map(|n| (n >> 3) as u8).collect();
            client.write(1 << 30, &bytes, CommandFlags::NONE).unwrap();
            client.flush().unwrap();
            let mut read = vec![9; bytes.len() + 4096];
            client.read((1 << 30) - 4096, &mut read).unwrap();
            assert!(read[..4096].iter().all(|&byte| byte == 0) && read[4096..] == bytes);
            client.read(0, &mut read).unwrap();
            assert!(read.iter().all(|&byte| byte == 0));
            client.disconnect().unwrap();
        });
        assert_eq!((served.commands, served.bytes[1]), ([2, 1, 1], 300_000));
        assert_eq!(served.lateness.count(), 4);
    }
}

#[test]
fn bad_requests_are_refused_and_the_connection_continues() {
    serve(1, 4096, |uri| {
        let mut client = Client::connect(uri, ClientOptions::default()).unwrap();
        let end = Disk::Nvme.size();
        let mut bytes = vec![1; 4096];
        let is = |found: Result<(), ClientError>, error: NbdError| {
            assert!(matches!(found, Err(ClientError::Request(found)) if found == error));
        };
        is(client.read(end - 4095, &mut bytes), NbdError::Invalid);
        is(client.write(end, &bytes, CommandFlags::NONE), NbdError::NoSpace);
        is(client.trim(0, 4096, CommandFlags::NONE), NbdError::Invalid);
        client.write(0, &bytes, CommandFlags::NONE).unwrap();
        is(client.write(4096, &bytes, CommandFlags::NONE), NbdError::NoSpace);
        client.read(end - 4096, &mut bytes).unwrap();
        client.disconnect().unwrap();
    });
}

#[test]
fn depth_is_the_most_commands_in_the_disk() {
    let served = serve(8, 0, |uri| {
        let report = bench::run(&BenchOptions {
            pattern: Pattern::RandRw { read_percent: 50 },
            iodepth: 32,
            threads: 3,
            runtime: Duration::from_millis(200),
            ..BenchOptions::new(uri.clone())
        });
        assert_eq!(report.unwrap().run.errors, 0);
    });
    assert_eq!(served.in_disk_max, 8, "{served}");
    assert!(served.commands[0] > 0 && served.commands[1] > 0, "{served}");
}

#[test]
fn second_server_of_a_socket_is_refused() {
    let folder = TempFolder::make().unwrap();
    let socket = folder.path("disk");
    let options = ServeDiskOptions { disk: Disk::Hdd, socket, depth: 32, keep: 0, once: true };
    let first = DiskServer::new(&options).unwrap();
    assert!(DiskServer::new(&options).is_err());
    drop(first);
}
