//! libblkio's driver (the crate `virtio-driver`), which knows nothing of Headworks, at the devices of a running server.
//!
//! It is a front end of another make: regions are added one at a time from files that are not sealed, each message asks for an acknowledgement, and
//! its descriptors are in blocking mode.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Instant;

use headworks_core::prng::Prng;
use headworks_nbd::client::{Client, ClientOptions};
use virtio_driver::{
    VhostUser, VirtioBlkFeatureFlags, VirtioBlkQueue, VirtioBlkTransport, VirtioFeatureFlags, iovec,
};

use super::change_tests::end;
use super::rings_tests::{Folder, LIMIT};

const SIZE: u64 = 4 << 20;
const QUEUES: usize = 2;
/// Requests of a queue at once.
const SLOTS: usize = 8;
const SLOT_BYTES: usize = 128 << 10;

/// Memory that is shared with the device.
struct Memory {
    file: OwnedFd,
    base: *mut u8,
    len: usize,
}

impl Memory {
    fn new(len: usize) -> Self {
        // SAFETY: the name is a C string; a new mapping replaces nothing; the descriptor is new and belongs to nothing else.
        let (file, base) = unsafe {
            let file =
                OwnedFd::from_raw_fd(libc::memfd_create(c"data".as_ptr(), libc::MFD_CLOEXEC));
            assert_eq!(libc::ftruncate(file.as_raw_fd(), len as i64), 0);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let null = std::ptr::null_mut();
            let base = libc::mmap(null, len, access, libc::MAP_SHARED, file.as_raw_fd(), 0);
            assert_ne!(base, libc::MAP_FAILED);
            (file, base)
        };
        Self { file, base: base.cast(), len }
    }

    /// Memory of a slot while no request uses it.
    fn slot(&mut self, slot: usize) -> &mut [u8] {
        assert!((slot + 1) * SLOT_BYTES <= self.len);
        // SAFETY: a part of the mapping, which nothing else uses meanwhile.
        unsafe {
            std::slice::from_raw_parts_mut(self.base.wrapping_add(slot * SLOT_BYTES), SLOT_BYTES)
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

fn connect(folder: &Folder, export: &str) -> Box<VirtioBlkTransport> {
    let virtio = VirtioFeatureFlags::VERSION_1 | VirtioFeatureFlags::RING_EVENT_IDX;
    let block = VirtioBlkFeatureFlags::all() - VirtioBlkFeatureFlags::CONFIG_WCE;
    let path = folder.path(export).display().to_string();
    Box::new(VhostUser::new(&path, virtio.bits() | block.bits()).unwrap())
}

/// Notifies the device of what was queued, and waits until `count` requests are answered.
fn settle(
    transport: &VirtioBlkTransport,
    index: usize,
    queue: &mut VirtioBlkQueue<'_, usize>,
    count: usize,
) {
    transport.get_submission_notifier(index).notify().unwrap();
    let (mut left, deadline) = (count, Instant::now() + LIMIT);
    let call = transport.get_completion_fd(index);
    while left > 0 {
        assert!(Instant::now() < deadline, "queue {index}: {left} of {count} are not answered");
        let mut poll = libc::pollfd { fd: call.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // The driver does not look again after it has asked for a notification: this does.
        // SAFETY: one entry, which lives until the call has returned.
        if unsafe { libc::poll(&raw mut poll, 1, 20) } > 0 {
            call.read().unwrap();
        }
        for done in queue.completions() {
            assert_eq!(done.ret, 0, "request of slot {}", done.context);
            left -= 1;
        }
    }
}

/// Pieces of whole sectors in a slot, apart from each other, and their bytes together.
fn draw(prng: &mut Prng, slot: &mut [u8]) -> (Vec<iovec>, usize) {
    let (mut pieces, mut at, mut total) = (Vec::new(), 0, 0);
    for _ in 0..prng.between(1, 30) {
        let len = 512 * prng.between(1, 8) as usize;
        pieces.push(iovec { iov_base: slot[at..at + len].as_mut_ptr().cast(), iov_len: len });
        (at, total) = (at + len + 512 * prng.below(2) as usize, total + len);
    }
    if prng.below(2) == 0 {
        pieces.reverse();
    }
    (pieces, total)
}

fn gather(pieces: &[iovec]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        // SAFETY: a part of a slot, which no request uses.
        let part =
            unsafe { std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len) };
        bytes.extend_from_slice(part);
    }
    bytes
}

/// Writes, reads, zeroes and discards by all queues against a model of the disk.
fn exercise(transport: &mut VirtioBlkTransport, model: &mut [u8], seed: u64) {
    let mut memory = Memory::new(SLOTS * SLOT_BYTES);
    let (base, fd) = (memory.base as usize, memory.file.as_raw_fd());
    let mut queues = VirtioBlkQueue::<usize>::setup_queues(transport, QUEUES, 256).unwrap();
    transport.map_mem_region(base, memory.len, fd, 0).unwrap();
    queues.iter_mut().for_each(|queue| queue.set_used_notif_enabled(true));
    let mut prng = Prng::new(seed);
    for round in 0..24 {
        let index = round % QUEUES;
        let queue = &mut queues[index];
        let mut reads = Vec::new();
        for slot in 0..SLOTS {
            let bytes = memory.slot(slot);
            for word in bytes.chunks_exact_mut(8) {
                word.copy_from_slice(&prng.next().to_le_bytes());
            }
            let (pieces, len) = draw(&mut prng, bytes);
            let zone = SIZE as usize / SLOTS;
            let at = slot * zone + 512 * prng.below(((zone - len) / 512) as u64) as usize;
            let part = &mut model[at..at + len];
            let (iov, count) = (pieces.as_ptr(), pieces.len());
            match prng.below(6) {
                0 => {
                    queue.write_zeroes(at as u64, len as u64, slot % 2 == 0, slot).unwrap();
                    part.fill(0);
                }
                1 | 2 => {
                    part.copy_from_slice(&gather(&pieces));
                    // SAFETY: the pieces are mapped memory, which nothing uses until the request is answered.
                    unsafe { queue.writev(at as u64, iov, count, slot) }.unwrap();
                }
                _ => {
                    // SAFETY: as above.
                    unsafe { queue.readv(at as u64, iov, count, slot) }.unwrap();
                    reads.push((at, pieces));
                }
            }
        }
        settle(transport, index, queue, SLOTS);
        for (at, pieces) in reads {
            let bytes = gather(&pieces);
            assert!(bytes == model[at..at + bytes.len()], "seed {seed} round {round}: {at}");
        }
        queue.flush(0).unwrap();
        settle(transport, index, queue, 1);
    }
    // What a discard leaves is not said; these devices leave zeros.
    queues[0].discard(1 << 20, 64 << 10, 0).unwrap();
    settle(transport, 0, &mut queues[0], 1);
    model[1 << 20..][..64 << 10].fill(0);
    // A region goes while the rings run, and comes again.
    transport.unmap_mem_region(base, memory.len).unwrap();
    transport.map_mem_region(base, memory.len, fd, 0).unwrap();
    queues[1].read(0, &mut memory.slot(0)[..4096], 0).unwrap();
    settle(transport, 1, &mut queues[1], 1);
    assert_eq!(memory.slot(0)[..4096], model[..4096]);
}

#[test]
fn driver_of_libblkio_writes_and_reads_what_others_read() {
    let folder = Folder::new("foreign");
    let image = folder.path("file.img");
    std::fs::File::create(&image).unwrap().set_len(SIZE).unwrap();
    let file = format!("file=file:path={}", image.display());
    for cache in [0, 16 << 20] {
        let server = folder.serve(&[&file, "memory=mem:size=4M"], |options| options.cache = cache);
        for (seed, export) in (1..).zip(["file", "memory"]) {
            let mut client =
                Client::connect(&folder.uri(export), ClientOptions::default()).unwrap();
            let mut model = vec![0; SIZE as usize];
            client.read(0, &mut model).unwrap();
            let mut transport = connect(&folder, export);
            let config = transport.get_config().unwrap();
            assert_eq!(u64::from(config.capacity) * 512, SIZE);
            assert_eq!((u16::from(config.num_queues), u32::from(config.seg_max)), (64, 126));
            exercise(&mut *transport, &mut model, seed);
            let mut bytes = vec![0; SIZE as usize];
            client.read(0, &mut bytes).unwrap();
            assert!(bytes == model, "{export} as an NBD client reads it");
        }
        end(server);
    }
}
