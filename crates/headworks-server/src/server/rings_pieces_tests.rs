//! Requests of virtual machines whose data lie in many pieces: contents against a model, over every kind of device.

use serde_json::json;

use super::change_tests::{call, end};
use super::rings_tests::{Folder, LIMIT, clients, driver, wait_for};
use headworks::EngineChoice;
use headworks_core::prng::Prng;
use headworks_vhost::RequestOp;
use headworks_vhost::driver::{Driver, Queue, Waited};

const SIZE: u64 = 8 << 20;
const SLOTS: u16 = 8;
/// Most data descriptors of a request.
const PIECES: u16 = 126;
/// Bytes of a slot's buffer: a multiple of pages and of the number of pieces.
const BUFFER: u32 = PIECES as u32 * 2048;
/// Most bytes of a request.
const MOST: u64 = 96 << 10;
const UNTOUCHED: u8 = 0xaa;

type Pieces = Vec<(u32, u32)>;

fn machine(folder: &Folder, export: &str) -> Driver {
    driver(&folder.path(export), |options| {
        (options.depth, options.pieces, options.is_indirect) = (SLOTS, PIECES, true);
        options.buffer_bytes = BUFFER;
    })
}

/// Pieces in the order of the data, apart from each other in the buffer and in another order there. All of them together are a multiple of
/// `unit`; each of them is, unless they are odd.
fn draw(prng: &mut Prng, unit: u64) -> Pieces {
    let grain = [unit, 4096, 1][prng.below(3) as usize];
    let most = [grain, 4 * grain, 16 << 10, 64 << 10][prng.below(4) as usize].max(2);
    let (mut pieces, mut at, mut total) = (Pieces::new(), 0, 0);
    for _ in 0..prng.between(1, u64::from(PIECES)) {
        let len = prng.between(1, most).next_multiple_of(grain).min(MOST - total);
        if total + len > MOST - unit || at + len > u64::from(BUFFER) - 2 * unit - MOST / 4 {
            break;
        }
        pieces.push((at as u32, len as u32));
        (at, total) = (at + len + prng.below(3) * grain, total + len);
    }
    // The last one makes the sum whole.
    let rest = total.next_multiple_of(unit) - total;
    match pieces.last_mut() {
        Some((_, last)) => *last += rest as u32,
        None => pieces.push((0, unit as u32)),
    }
    for index in (1..pieces.len() as u64).rev() {
        pieces.swap(index as usize, prng.below(index + 1) as usize);
    }
    pieces
}

fn total(pieces: &Pieces) -> u64 {
    pieces.iter().map(|(_, len)| u64::from(*len)).sum()
}

fn gather(buffer: &[u8], pieces: &Pieces) -> Vec<u8> {
    let parts = pieces.iter().map(|(at, len)| &buffer[*at as usize..][..*len as usize]);
    parts.collect::<Vec<_>>().concat()
}

/// Writes and reads with the requests of all slots at once, and checks every byte.
fn verify(machine: &mut Driver, model: &mut [u8], seed: u64, rounds: u32) {
    let mut prng = Prng::new(seed);
    let unit = u64::from(machine.capacity().block_size.max(512));
    let [queue] = machine.queues() else { panic!("one queue") };
    for round in 0..rounds {
        // Every third round one range in neighbouring parts of the most and smallest pieces, which merge.
        let small: Pieces = (0..u32::from(PIECES)).map(|at| (at * 1024, 512)).collect();
        let merges = round % 3 == 0 && unit == 512;
        let is_read = prng.below(2) == 0;
        let requests: Vec<(bool, u64, Pieces)> = (0..u64::from(SLOTS))
            .map(|slot| match merges {
                true => (is_read, slot * total(&small), small.clone()),
                false => {
                    let pieces = draw(&mut prng, unit);
                    let zone = SIZE / u64::from(SLOTS);
                    let place = prng.below((zone - total(&pieces)) / unit) * unit;
                    (prng.below(2) == 0, slot * zone + place, pieces)
                }
            })
            .collect();
        for (slot, (is_read, offset, pieces)) in (0..).zip(&requests) {
            let buffer = queue.buffer(slot);
            buffer.fill(UNTOUCHED);
            if !is_read {
                for word in buffer.chunks_exact_mut(8) {
                    word.copy_from_slice(&prng.next().to_le_bytes());
                }
                let bytes = gather(buffer, pieces);
                model[*offset as usize..][..bytes.len()].copy_from_slice(&bytes);
            }
            queue.put_pieces(slot, *is_read, *offset, pieces);
        }
        queue.submit();
        settle(queue, 0);
        for (slot, (is_read, offset, pieces)) in (0..).zip(&requests) {
            if !is_read {
                continue;
            }
            let buffer = queue.buffer(slot);
            let (bytes, wanted) = (gather(buffer, pieces), &model[*offset as usize..]);
            assert!(
                bytes == wanted[..bytes.len()],
                "seed {seed} round {round}: {offset} in {pieces:?}"
            );
            for (at, len) in pieces {
                buffer[*at as usize..][..*len as usize].fill(UNTOUCHED);
            }
            assert!(buffer.iter().all(|byte| *byte == UNTOUCHED), "beside {pieces:?}");
        }
    }
}

/// Waits until all requests are answered with this status.
fn settle(queue: &mut Queue, status: u8) {
    while queue.in_flight() > 0 {
        assert_eq!(queue.wait(LIMIT), Waited::Answered, "the device answers");
        queue.reap(|one| assert_eq!(one.status, status));
    }
}

/// A server of every kind of device with an engine and a cache, and a machine at each export.
fn verify_all(name: &str, engine: EngineChoice, cache: u64) {
    let folder = Folder::new(name);
    for image in ["file.img", "paged.img", "golden.img"] {
        std::fs::File::create(folder.path(image)).unwrap().set_len(SIZE).unwrap();
    }
    let path = |image: &str| folder.path(image).display().to_string();
    let texts = [
        format!("file=file:path={}", path("file.img")),
        format!("paged=file:path={},direct=off", path("paged.img")),
        format!("overlay=overlay:path={},base={}", path("top.hwo"), path("golden.img")),
        "memory=mem:size=8M".to_owned(),
    ];
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let server = folder.serve(&texts, |options| {
        (options.engine, options.cache) = (engine, cache);
    });
    for (seed, export) in (1..).zip(["file", "paged", "overlay", "memory"]) {
        let mut model = vec![0; SIZE as usize];
        verify(&mut machine(&folder, export), &mut model, seed, 24);
        // Another machine finds what this one has left.
        verify(&mut machine(&folder, export), &mut model, seed + 100, 8);
    }
    end(server);
}

#[test]
fn random_pieces_are_written_and_read_with_a_ring_for_disks() {
    verify_all("pieces-uring", EngineChoice::Auto, 0);
}

#[test]
fn random_pieces_are_written_and_read_with_threads_for_disks() {
    verify_all("pieces-threads", EngineChoice::Threads, 0);
}

#[test]
fn random_pieces_are_written_and_read_through_the_cache() {
    // Smaller than the disks together.
    verify_all("pieces-cached", EngineChoice::Auto, 16 << 20);
}

#[test]
fn random_pieces_are_written_and_read_where_the_device_is_another_shards() {
    let folder = Folder::new("pieces-spread");
    let image = |name: &str| {
        let path = folder.path(&format!("{name}.img"));
        std::fs::File::create(&path).unwrap().set_len(SIZE).unwrap();
        format!("{name}=file:path={}", path.display())
    };
    let texts = ["a", "b"].map(image);
    let server = folder.serve(&[&texts[0], &texts[1]], |options| options.spread = true);
    let tree = server.service.tree();
    let is_apart = |name| {
        let entry = tree.export(name).unwrap();
        entry.home != tree.owner(entry)
    };
    assert_ne!(is_apart("a"), is_apart("b"), "one of two is on the other shard");
    for (seed, export) in (1..).zip(["a", "b"]) {
        verify(&mut machine(&folder, export), &mut vec![0; SIZE as usize], seed, 12);
    }
    end(server);
}

#[test]
fn pieces_of_whole_blocks_take_no_buffer_and_others_one() {
    let folder = Folder::new("pieces-buffer");
    let server = folder.serve(&["a=delay:all=3s,of=mem:size=8M"], |_| {});
    let mut machine = machine(&folder, "a");
    let [queue] = machine.queues() else { panic!("one queue") };
    let pages: Pieces = (0..16).rev().map(|page| (page * 4096, 4096)).collect();
    queue.put_pieces(0, true, 0, &pages);
    queue.put_pieces(1, true, 1 << 20, &[(0, 1000), (2000, 65536 - 1000)]);
    queue.submit();
    wait_for("both are in the device, and one has a buffer", || {
        let stats = call(&server, "stats", json!({})).unwrap();
        let [row] = &clients(&server, "vhost-user")[..] else { panic!("one client") };
        stats["buffers"]["taken"] == 65536 && row["in_flight"] == 2
    });
    settle(queue, 0);
    end(server);
}

#[test]
fn pieces_that_overlap_are_written_as_the_machine_says() {
    let folder = Folder::new("pieces-overlap");
    let server = folder.serve(&["a=mem:size=8M"], |_| {});
    let mut machine = machine(&folder, "a");
    let [queue] = machine.queues() else { panic!("one queue") };
    let pieces: Pieces = vec![(0, 4096), (1024, 2048), (0, 4096), (512, 512)];
    let mut prng = Prng::new(1);
    queue.buffer(0).iter_mut().for_each(|byte| *byte = prng.next() as u8);
    let written = gather(queue.buffer(0), &pieces);
    queue.put_pieces(0, false, 0, &pieces);
    queue.submit();
    settle(queue, 0);
    // Which of two pieces of a read is seen is the machine's own affair.
    queue.put_pieces(1, true, 0, &pieces);
    queue.submit();
    settle(queue, 0);
    queue.buffer(2).fill(UNTOUCHED);
    queue.put(2, RequestOp::Read, 0, written.len() as u32, 0);
    queue.submit();
    settle(queue, 0);
    assert_eq!(queue.buffer(2)[..written.len()], written);
    end(server);
}
