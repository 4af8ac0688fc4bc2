//! Exports of parts of an image: where their requests go, what they are told of sizes, and what is refused.

use std::path::Path;

use headworks_nbd::client::{Client, ClientOptions};
use headworks_nbd::wire::CommandFlags;
use headworks_testing::{TempDir, TempFile};
use headworks_vhost::RequestOp;
use serde_json::{Value, json};

use super::change_tests::{call, end, options, spec};
use super::rings_tests::{Folder, content, driver, each_block, nbd, one, wait_for};
use crate::exports::assemble::Assembly;
use crate::options::MissingImage;
use crate::{Address, Server, ServerOptions};

const MIB: u64 = 1 << 20;
const NO_FLAGS: CommandFlags = CommandFlags::NONE;

/// An image of 4 MiB, every block of 512 bytes filled with a number of its own.
fn image(name: &str) -> (TempFile, Vec<u8>) {
    let file = TempFile::new(name);
    let bytes: Vec<u8> = (0..4 * MIB).map(|at| (at / 512 % 251) as u8).collect();
    std::fs::write(file.path(), &bytes).unwrap();
    (file, bytes)
}

/// Writes an MBR with two partitions, of 1 MiB from 1 MiB on and of 512 KiB from sector 4099 on.
fn put_table(path: &Path, bytes: &mut [u8]) {
    for (at, (start, len)) in [(446, (2048_u32, 2048_u32)), (462, (4099, 1024))] {
        bytes[at..at + 16].fill(0);
        bytes[at + 4] = 0x83;
        bytes[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
        bytes[at + 12..at + 16].copy_from_slice(&len.to_le_bytes());
    }
    bytes[478..510].fill(0);
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    std::fs::write(path, bytes).unwrap();
}

struct Bench {
    folder: TempDir,
    server: Server,
}

impl Bench {
    fn start(name: &str, cache: u64, texts: &[&str]) -> Self {
        Self::start_with(name, cache, texts, |_| {})
    }

    fn start_with(
        name: &str,
        cache: u64,
        texts: &[&str],
        changed: impl FnOnce(&mut ServerOptions),
    ) -> Self {
        let folder = TempDir::new(name);
        let specs: Vec<_> = texts.iter().map(|text| spec(text)).collect();
        let mut options = ServerOptions {
            listen: vec![Address::Unix { path: folder.join("socket"), mode: 0o600 }],
            cache,
            ..options(2)
        };
        changed(&mut options);
        let server = Server::start(Assembly::new(&specs).unwrap(), &options, || ()).unwrap();
        Self { folder, server }
    }

    fn client(&self, export: &str) -> Client {
        let uri = format!("nbd+unix:///{export}?socket={}", self.folder.join("socket").display());
        Client::connect(&uri.parse().unwrap(), ClientOptions::default()).unwrap()
    }

    fn ask(&self, method: &str, params: Value) -> Result<Value, String> {
        call(&self.server, method, params)
    }

    /// Size and first byte of an export, as `exports` has them.
    fn row(&self, name: &str) -> (u64, u64) {
        let rows = self.ask("exports", json!({})).unwrap();
        let mut rows = rows.as_array().unwrap().iter();
        let row = rows.find(|row| row["name"] == name).unwrap();
        (row["size"].as_u64().unwrap(), row["offset"].as_u64().unwrap())
    }
}

fn refusal(text: &str) -> String {
    Assembly::new(&[spec(text)]).err().unwrap().message.to_string()
}

#[test]
fn requests_of_a_part_reach_its_bytes_and_no_others() {
    for (cache, offset) in [(0, MIB), (0, 32_256), (0, 1), (16 << 20, MIB), (16 << 20, 1)] {
        let (file, mut bytes) = image("range-bytes");
        let path = file.path().display();
        let (part, whole) = (
            format!("part=file:path={path},offset={offset},length=1000001"),
            format!("whole=file:path={path}"),
        );
        let bench = Bench::start("range-bytes", cache, &[&part, &whole]);
        let (mut client, mut other) = (bench.client("part"), bench.client("whole"));
        assert_eq!((client.export().size, other.export().size), (1_000_001, 4 * MIB));
        let start = offset as usize;
        let own = start..start + 1_000_001;
        let mut read = vec![0; 1_000_001];
        client.read(0, &mut read).unwrap();
        assert!(read == bytes[own.clone()], "{cache} {offset}");
        // The first and the last bytes, seen at once through the whole image.
        for (at, fill) in [(0, 1), (1_000_001 - 5000, 2), (1_000_000, 3)] {
            let len = 5000.min(1_000_001 - at);
            client.write(at as u64, &vec![fill; len], NO_FLAGS).unwrap();
            bytes[start + at..start + at + len].fill(fill);
        }
        client.write_zeroes(700, 9000, NO_FLAGS).unwrap();
        bytes[start + 700..start + 9700].fill(0);
        let mut seen = vec![0; bytes.len()];
        other.read(0, &mut seen).unwrap();
        assert!(seen == bytes, "{cache} {offset}");
        // Nothing behind its end, though the image goes on there.
        for (at, len) in
            [(1_000_001, 1), (1_000_000, 2), (u64::MAX, 1), (4 * MIB, 1), (0, 1_000_002)]
        {
            assert!(client.read(at, &mut vec![0; len]).is_err(), "{at} {len}");
            assert!(client.write(at, &vec![9; len], NO_FLAGS).is_err(), "{at} {len}");
            assert!(client.write_zeroes(at, len as u32, NO_FLAGS).is_err(), "{at} {len}");
            assert!(client.trim(at, len as u32, NO_FLAGS).is_err(), "{at} {len}");
        }
        other.read(0, &mut seen).unwrap();
        assert!(seen == bytes, "nothing was written");
        other.write(start as u64 + 10, &[8; 10], NO_FLAGS).unwrap();
        let mut few = [0; 10];
        client.read(10, &mut few).unwrap();
        assert_eq!(few, [8; 10]);
        end(bench.server);
    }
}

#[test]
fn part_grows_with_its_image_unless_it_has_a_length() {
    let (file, _) = image("range-grows");
    let path = file.path().display();
    let texts = [
        format!("open=file:path={path},offset=1M"),
        format!("fixed=file:path={path},offset=1M,length=2M"),
        format!("whole=file:path={path}"),
    ];
    let bench = Bench::start("range-grows", 16 << 20, &texts.each_ref().map(String::as_str));
    assert_eq!((bench.row("open"), bench.row("fixed")), ((3 * MIB, MIB), (2 * MIB, MIB)));
    let grown = bench.ask("resize", json!({ "export": "open", "size": "+1M" })).unwrap();
    assert_eq!(grown, json!({ "export": "open", "size": 4 * MIB, "before": 3 * MIB }));
    assert_eq!(file.path().metadata().unwrap().len(), 5 * MIB);
    let sizes = |bench: &Bench| ["open", "fixed", "whole"].map(|name| bench.row(name).0);
    assert_eq!(sizes(&bench), [4 * MIB, 2 * MIB, 5 * MIB]);
    let refused = bench.ask("resize", json!({ "export": "fixed", "size": "3M" })).unwrap_err();
    assert!(refused.contains("with a length of its own"), "{refused}");
    let refused = bench.ask("resize", json!({ "export": "open", "size": "1M" })).unwrap_err();
    assert!(refused.starts_with("open has 4194304 bytes and cannot shrink"), "{refused}");
    // The file grew by itself: told by the name of any part.
    let grow = |len: u64| {
        std::fs::File::options().write(true).open(file.path()).unwrap().set_len(len).unwrap();
    };
    grow(6 * MIB);
    let grown = bench.ask("resize", json!({ "export": "fixed" })).unwrap();
    assert_eq!(grown, json!({ "export": "fixed", "size": 2 * MIB, "before": 2 * MIB }));
    assert_eq!(sizes(&bench), [5 * MIB, 2 * MIB, 6 * MIB]);
    bench.client("open").write(5 * MIB - 512, &[1; 512], NO_FLAGS).unwrap();
    // One that is added later begins with the size that the image has now.
    bench.ask("add", json!({ "spec": format!("late=file:path={path},offset=5M") })).unwrap();
    assert_eq!(bench.row("late"), (MIB, 5 * MIB));
    end(bench.server);
}

#[test]
fn ranges_that_an_image_does_not_have_are_refused() {
    let (file, _) = image("range-refused");
    let path = file.path().display();
    for (keys, why) in [
        ("offset=4M", "has 4194304 bytes, and offset=4194304 is not before its end"),
        ("offset=3M,length=2M", "has 1048576 bytes from 3145728 on, less than length=2097152"),
        ("length=5M", "has 4194304 bytes from 0 on, less than length=5242880"),
        ("partition=1", "has no partition table, neither GPT nor MBR"),
    ] {
        let said = refusal(&format!("p=file:path={path},{keys}"));
        assert!(said.starts_with(&path.to_string()) && said.contains(why), "{said}");
    }
    let strict = format!("p=file:path={path},direct=off,cache=none,strict-blocks=on");
    let start = |keys: &str| {
        let assembly = Assembly::new(&[spec(&format!("{strict},{keys}"))]).unwrap();
        Server::start(assembly, &options(1), || ())
    };
    let block = Assembly::new(&[spec(&strict)]).unwrap().volumes[0].1.block_size;
    if block > 1 {
        for keys in [format!("offset={}", block + 1), format!("length={}", block + 1)] {
            let refused = start(&keys).err().unwrap().message;
            assert!(refused.contains("no whole blocks"), "{refused}");
        }
    }
    end(start(&format!("offset={block},length={block}")).unwrap());
}

#[test]
fn partition_is_served_and_a_missing_one_is_absent() {
    let (file, mut bytes) = image("range-partition");
    put_table(file.path(), &mut bytes);
    let path = file.path().display();
    let said = refusal(&format!("p=file:path={path},partition=3"));
    assert!(said.ends_with("has no partition 3; there are 1 (1 MiB), 2 (512 KiB)"), "{said}");
    let texts = [
        format!("two=delay:read=1us,partition=2,of=file:path={path}"),
        format!("one=delay:read=1us,partition=1,of=file:path={path}"),
        format!("three=delay:read=1us,partition=3,of=file:path={path}"),
    ];
    let specs: Vec<_> = texts.iter().map(|text| spec(text)).collect();
    let leftovers = Default::default();
    let assembly = Assembly::open(&specs, MissingImage::Absent, &leftovers).unwrap();
    let told: Vec<&str> = assembly.exports.iter().map(|it| it.description.as_str()).collect();
    assert!(told[0].ends_with("(delay), partition 2, 512 KiB"), "{told:?}");
    assert!(assembly.absent[0].reason.contains("has no partition 3"));
    assert_eq!((assembly.volumes.len(), assembly.absent.len()), (1, 1));
    drop(assembly);
    let bench = Bench::start("range-partition", 16 << 20, &[&texts[0], &texts[1]]);
    let mut two = bench.client("two");
    let mut read = vec![0; MIB as usize / 2];
    two.read(0, &mut read).unwrap();
    assert!(read == bytes[4099 * 512..][..read.len()]);
    assert_eq!((bench.row("one"), bench.row("two").1), ((MIB, MIB), 4099 * 512));
    // A table that a client writes counts for what is added, and moves nothing under anybody.
    let whole = format!("whole=delay:read=1us,of=file:path={path}");
    bench.ask("add", json!({ "spec": whole })).unwrap();
    let mut table = bytes[..512].to_vec();
    table[446 + 8..446 + 12].copy_from_slice(&6144_u32.to_le_bytes());
    bench.client("whole").write(0, &table, NO_FLAGS).unwrap();
    let again = format!("again=delay:read=1us,partition=1,of=file:path={path}");
    bench.ask("add", json!({ "spec": again })).unwrap();
    assert_eq!((bench.row("one"), bench.row("again")), ((MIB, MIB), (MIB, 3 * MIB)));
    let missing = format!("m=delay:read=1us,partition=9,of=file:path={path}");
    let refused = bench.ask("add", json!({ "spec": missing })).unwrap_err();
    assert!(refused.ends_with("has no partition 9; there are 1 (1 MiB), 2 (512 KiB)"), "{refused}");
    end(bench.server);
}

/// A server of one client at a time, as `qemu-nbd` is without `-e`.
#[test]
fn partitions_of_a_remote_that_permits_one_client_are_served() {
    let (file, mut bytes) = image("range-remote");
    put_table(file.path(), &mut bytes);
    let below = Bench::start_with(
        "range-remote-a",
        0,
        &[&format!("d={}", file.path().display())],
        |options| {
            options.clients.connections = 1;
            options.shards = 1;
        },
    );
    let uri = format!("nbd+unix:///d?socket={}", below.folder.join("socket").display());
    let text = |name: &str, keys: &str| format!("{name}=nbd:uri={uri},connections=1{keys}");
    let texts = [text("whole", ""), text("one", ",partition=1"), text("two", ",partition=2")];
    let bench = Bench::start("range-remote-b", 0, &texts.each_ref().map(String::as_str));
    assert_eq!((bench.row("one"), bench.row("two").1), ((MIB, MIB), 4099 * 512));
    let mut read = [0; 512];
    bench.client("two").read(512, &mut read).unwrap();
    assert!(read[..] == bytes[4100 * 512..][..512]);
    end(bench.server);
    end(below.server);
}

#[test]
fn partition_of_an_overlay_is_that_of_its_own_table() {
    let folder = TempDir::new("range-overlay");
    let (base, top) = (folder.join("base.img"), folder.join("top.hwo"));
    let mut bytes = vec![0; 4 * MIB as usize];
    put_table(&base, &mut bytes);
    headworks_images::NewOverlay::new(&base, None).unwrap().create(&top).unwrap();
    let overlay = |name: &str, keys: &str| format!("{name}=overlay:path={}{keys}", top.display());
    let bench = Bench::start("range-overlay-a", 16 << 20, &[&overlay("whole", "")]);
    let mut table = bytes[..512].to_vec();
    table[446 + 8..446 + 12].copy_from_slice(&6144_u32.to_le_bytes());
    let mut client = bench.client("whole");
    client.write(0, &table, NO_FLAGS).unwrap();
    client.write(3 * MIB, &[5; 512], NO_FLAGS).unwrap();
    bench.ask("add", json!({ "spec": overlay("one", ",partition=1") })).unwrap();
    assert_eq!(bench.row("one"), (MIB, 3 * MIB));
    drop(client);
    end(bench.server);
    let bench = Bench::start("range-overlay-b", 0, &[&overlay("one", ",partition=1")]);
    let mut read = [0; 512];
    bench.client("one").read(0, &mut read).unwrap();
    assert_eq!((bench.row("one"), read), ((MIB, 3 * MIB), [5; 512]));
    end(bench.server);
}

#[test]
fn part_is_a_disk_of_its_own_for_a_machine() {
    for cache in [0, 16 << 20] {
        let folder = Folder::new("range-machine");
        let image = folder.path("image");
        std::fs::write(&image, vec![0; 4 << 20]).unwrap();
        let path = image.display();
        let texts = [
            format!("part=file:path={path},offset=32256,length=1049088"),
            format!("open=file:path={path},offset=1"),
            format!("whole=file:path={path}"),
        ];
        let server = folder.serve(&texts.each_ref().map(String::as_str), |options| {
            options.cache = cache;
        });
        let mut machine = driver(&folder.path("part"), |options| options.pieces = 4);
        // What is beyond the last whole sector is not offered.
        let mut other = driver(&folder.path("open"), |_| {});
        assert_eq!((machine.capacity().size, other.capacity().size), (1_049_088, (4 << 20) - 512));
        let [queue] = machine.queues() else { panic!("one queue") };
        each_block(queue, RequestOp::Write, 0, 256);
        each_block(queue, RequestOp::Read, 0, 256);
        let mut bytes = vec![0; 4096];
        nbd(&folder, "whole").read(32_256 + 5 * 4096, &mut bytes).unwrap();
        assert_eq!(bytes, content(5), "{cache}");
        for op in [RequestOp::Read, RequestOp::Write, RequestOp::WriteZeroes] {
            assert_eq!(one(queue, op, 1 << 20, 512), 0, "the last sector");
            assert_eq!(one(queue, op, 1 << 20, 1024), 1, "the image goes on, the disk does not");
        }
        call(&server, "resize", json!({ "export": "whole", "size": "5M" })).unwrap();
        wait_for("the other disk has grown", || {
            other.read_capacity().unwrap().size == (5 << 20) - 512
        });
        assert_eq!(machine.read_capacity().unwrap().size, 1_049_088);
        end(server);
    }
}
