//! Images against models: reads, block status, what is refused, and damaged images.

mod base;
mod damaged;
mod image;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use headworks::Direct;
use headworks::driver::Span;
use headworks_core::extent::extents;
use headworks_core::prng::Prng;
use headworks_core::{BioFlags, Completion, ExtentState, IoError, Op};
use headworks_testing::Bench;

use self::image::{CLUSTER, Cluster, Image};
use crate::formats::{FormatDevice, ImageFormat, ImageOptions, OpenImage};

/// A folder of its own for a test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("headworks-format-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(path.join("below")).unwrap();
        Self(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const QCOW2: ImageOptions =
    ImageOptions { format: ImageFormat::Qcow2, outside: false, direct: Direct::Auto };

fn open(path: &Path) -> Result<OpenImage, String> {
    OpenImage::open(path, &QCOW2).map_err(|error| error.to_string())
}

fn bench(path: &Path) -> Bench<FormatDevice> {
    Bench::new(open(path).unwrap().into_device().unwrap())
}

/// Steps until the command is answered, also by threads.
fn answer(bench: &mut Bench<FormatDevice>) -> Completion {
    loop {
        while bench.step_now() {}
        if let Some(done) = bench.completions.pop() {
            assert!(bench.completions.is_empty(), "each command has one answer");
            return done;
        }
        let place = bench.disk.ready(10_000).expect("a thread answers within ten seconds");
        let now = bench.now;
        bench.call(|device, io| headworks::Device::on_ready(device, now, place, io));
    }
}

fn run(
    bench: &mut Bench<FormatDevice>,
    op: Op,
    flags: BioFlags,
    at: usize,
    len: usize,
) -> Completion {
    bench.submit(op, flags, at as u64, len as u32);
    answer(bench)
}

/// Reads into the buffer as the queue does, command by command.
fn read(bench: &mut Bench<FormatDevice>, offset: usize, len: usize) {
    bench.buffer()[..len].fill(0xee);
    let base = bench.buffer().as_mut_ptr();
    let mut at = 0;
    while at < len {
        // SAFETY: within the bench's buffer, which outlives the command.
        let spans: Vec<Span> = [at..at + (len - at) / 2, at + (len - at) / 2..len]
            .map(|part| unsafe { Span::new(base.add(part.start), part.len()) })
            .into();
        bench.submit_spans(
            Op::Read,
            BioFlags::NONE,
            (offset + at) as u64,
            (len - at) as u32,
            &spans,
        );
        let done = answer(bench);
        assert_eq!(done.status, Ok(()));
        assert!(done.transferred > 0 && done.transferred as usize <= len - at);
        at += done.transferred as usize;
    }
}

fn random_clusters(prng: &mut Prng, count: usize) -> Vec<Cluster> {
    let mut clusters = Vec::new();
    while clusters.len() < count {
        let (kind, run) = (prng.below(4), 1 + prng.below(4));
        for _ in 0..run {
            clusters.push(match kind {
                0 => Cluster::Absent,
                1 => Cluster::Zeros,
                2 => Cluster::Data(prng.below(255) as u8),
                _ => Cluster::Compressed(prng.below(255) as u8),
            });
        }
    }
    clusters.truncate(count);
    clusters
}

/// Reads random ranges and asks for their states.
fn against(bench: &mut Bench<FormatDevice>, contents: &[u8], prng: &mut Prng, block: usize) {
    let blocks = (contents.len() / block) as u64;
    for _ in 0..60 {
        let offset = prng.below(blocks) as usize * block;
        let most = (contents.len() - offset) / block;
        let len = (1 + prng.below(most as u64) as usize).min((2 << 20) / block) * block;
        read(bench, offset, len);
        assert!(bench.buffer()[..len] == contents[offset..offset + len], "{offset} + {len}");
        assert_eq!(run(bench, Op::BlockStatus, BioFlags::NONE, offset, len).status, Ok(()));
        let mut at = offset;
        for extent in extents(bench.buffer(), len as u32).collect::<Vec<_>>() {
            let bytes = &contents[at..at + extent.len as usize];
            let zeros = bytes.iter().all(|&byte| byte == 0);
            assert!(zeros || extent.state == ExtentState::DATA, "{at}: {extent:?}");
            at += extent.len as usize;
        }
        assert!(at > offset);
    }
}

#[test]
fn chain_of_random_images_equals_its_model() {
    let mut prng = Prng::new(11);
    for round in 0..6 {
        let folder = Folder::new("chain");
        let raw: Vec<u8> = (0..(7 + round) * 512).map(|at: usize| (at / 100) as u8).collect();
        std::fs::write(folder.at("base.raw"), &raw).unwrap();
        let middle = Image::over(&random_clusters(&mut prng, 30), "../base.raw", Some("raw"));
        middle.write(&folder.at("below/middle.qcow2"));
        let mut top =
            Image::over(&random_clusters(&mut prng, 40), "below/middle.qcow2", Some("qcow2"));
        top.version = if round % 2 == 0 { 3 } else { 2 };
        if top.version == 2 {
            top.clusters
                .iter_mut()
                .filter(|one| **one == Cluster::Zeros)
                .for_each(|one| *one = Cluster::Absent);
        }
        top.write(&folder.at("top.qcow2"));
        let contents = top.contents(&middle.contents(&raw));
        let mut bench = bench(&folder.at("top.qcow2"));
        let block = if round < 3 { 4096 } else { 512 };
        against(&mut bench, &contents, &mut prng, block);
    }
}

#[test]
fn several_runs_are_read_at_once_and_answered_once() {
    let folder = Folder::new("runs");
    let clusters: Vec<Cluster> = (0..8).map(Cluster::Data).collect();
    let image = Image::new(&clusters);
    image.write(&folder.at("a.qcow2"));
    let mut bench = bench(&folder.at("a.qcow2"));
    // Clusters lie in reverse order: each is a run.
    let id = bench.submit(Op::Read, BioFlags::NONE, 0, 8 * CLUSTER as u32);
    assert_eq!(bench.disk.log.len(), 8);
    for _ in 0..7 {
        assert!(bench.step_now() && bench.completions.is_empty());
    }
    let done = answer(&mut bench);
    assert_eq!((done.id, done.transferred as usize, done.status), (id, 8 * CLUSTER, Ok(())));
    assert!(bench.buffer()[..8 * CLUSTER] == image.contents(&[]));
    // One that fails fails the command, after all have ended.
    bench.disk.script = [None, Some(-5), None].into();
    let failed = run(&mut bench, Op::Read, BioFlags::NONE, 0, 4 * CLUSTER);
    assert_eq!((failed.status, failed.transferred), (Err(IoError::Medium), 0));
    // A short one: which one it was is not known, so from now on runs are read one by one.
    bench.disk.script = [None, Some(512), None].into();
    let busy = run(&mut bench, Op::Read, BioFlags::NONE, 0, 4 * CLUSTER);
    assert_eq!(busy.status, Err(IoError::Busy));
    let single = run(&mut bench, Op::Read, BioFlags::NONE, 0, 4 * CLUSTER);
    assert_eq!((single.transferred as usize, single.status), (CLUSTER, Ok(())));
    read(&mut bench, 0, 8 * CLUSTER);
    assert!(bench.buffer()[..8 * CLUSTER] == image.contents(&[]));
}

#[test]
fn full_engine_answers_what_was_started_or_busy() {
    let folder = Folder::new("full");
    Image::new(&[Cluster::Zeros, Cluster::Data(3)]).write(&folder.at("a.qcow2"));
    let mut bench = bench(&folder.at("a.qcow2"));
    bench.disk.full = true;
    let zeros = run(&mut bench, Op::Read, BioFlags::NONE, 0, 2 * CLUSTER);
    assert_eq!((zeros.transferred as usize, zeros.status), (CLUSTER, Ok(())));
    let busy = run(&mut bench, Op::Read, BioFlags::NONE, CLUSTER, CLUSTER);
    assert_eq!(busy.status, Err(IoError::Busy));
}

#[test]
fn image_is_read_only_and_bounded() {
    let folder = Folder::new("bounds");
    Image::new(&[Cluster::Absent, Cluster::Data(3)]).write(&folder.at("a.qcow2"));
    let mut bench = bench(&folder.at("a.qcow2"));
    for op in [Op::Write, Op::Discard, Op::WriteZeroes] {
        assert_eq!(run(&mut bench, op, BioFlags::NONE, 0, CLUSTER).status, Err(IoError::ReadOnly));
    }
    assert_eq!(run(&mut bench, Op::Flush, BioFlags::NONE, 0, 0).status, Ok(()));
    let beyond = run(&mut bench, Op::Read, BioFlags::NONE, CLUSTER, 2 * CLUSTER);
    assert_eq!(beyond.status, Err(IoError::Invalid));
    let hole = run(&mut bench, Op::Read, BioFlags::HOLE_OK, 0, CLUSTER);
    assert!(hole.hole && hole.transferred as usize == CLUSTER);
    let partly = run(&mut bench, Op::Read, BioFlags::HOLE_OK, 0, 2 * CLUSTER);
    assert!(!partly.hole);
}

#[test]
fn many_reads_of_compressed_clusters_are_all_answered() {
    let folder = Folder::new("zip");
    let clusters: Vec<Cluster> = (0..64).map(Cluster::Compressed).collect();
    let image = Image::new(&clusters);
    image.write(&folder.at("a.qcow2"));
    let contents = image.contents(&[]);
    let mut bench = bench(&folder.at("a.qcow2"));
    // Pieces of clusters, more of them than jobs: those are refused as busy.
    let base = bench.buffer().as_mut_ptr();
    let mut left = 0;
    for at in (0..128).map(|index| index * 512) {
        // SAFETY: within the bench's buffer, each part for one command.
        let span = unsafe { Span::new(base.add(at), 512) };
        bench.submit_spans(Op::Read, BioFlags::NONE, at as u64, 512, &[span]);
        left += 1;
    }
    let mut busy = 0;
    while left > 0 {
        while bench.completions.is_empty() {
            let place = bench.disk.ready(10_000).expect("a thread answers within ten seconds");
            let now = bench.now;
            bench.call(|device, io| headworks::Device::on_ready(device, now, place, io));
        }
        for done in std::mem::take(&mut bench.completions) {
            left -= 1;
            busy += usize::from(done.status == Err(IoError::Busy));
        }
    }
    assert_eq!(busy, 128 - crate::formats::decode::JOBS_MAX);
    let read = (128 - busy) * 512;
    assert!(bench.buffer()[..read] == contents[..read]);
    // A device that goes while jobs run waits for them.
    bench.submit(Op::Read, BioFlags::NONE, 0, 64 * CLUSTER as u32);
}

#[test]
fn external_data_file_and_flat_vmdk_are_read() {
    let folder = Folder::new("extern");
    let data: Vec<u8> = (0..4 * CLUSTER).map(|at| (at / 300) as u8).collect();
    std::fs::write(folder.at("data"), &data).unwrap();
    let mut image = Image::new(&[Cluster::Absent; 4]);
    image.data_file = Some("data".to_owned());
    let mut bytes = image.bytes();
    for index in [0, 1, 3] {
        image::put(&mut bytes, 2 * CLUSTER + 8 * index, (index * CLUSTER) as u64 | 1 << 63);
    }
    std::fs::write(folder.at("a.qcow2"), &bytes).unwrap();
    let mut expected = data.clone();
    expected[2 * CLUSTER..3 * CLUSTER].fill(0);
    let mut one = bench(&folder.at("a.qcow2"));
    read(&mut one, 0, 4 * CLUSTER);
    assert!(one.buffer()[..4 * CLUSTER] == expected);

    let text = "# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\ncreateType=\"x\"\n\
                RW 8 FLAT \"data\" 8\nRW 8 ZERO\nRW 16 FLAT \"data\" 0\n";
    std::fs::write(folder.at("a.vmdk"), text).unwrap();
    let options = ImageOptions { format: ImageFormat::Vmdk, ..QCOW2 };
    let image = OpenImage::open(&folder.at("a.vmdk"), &options).unwrap();
    let mut two = Bench::new(image.into_device().unwrap());
    read(&mut two, 0, 4 * CLUSTER);
    let expected = [&data[CLUSTER..2 * CLUSTER], &[0; CLUSTER], &data[..2 * CLUSTER]].concat();
    assert!(two.buffer()[..4 * CLUSTER] == expected);
    // As VMware writes it.
    let theirs =
        text.replace("version=1\n", "version=1\nencoding=\"UTF-8\"\nisNativeSnapshot=\"no\"\n");
    let theirs = theirs.replace("FLAT \"data\" 0", "VMFS \"data\"").replace('\n', "\r\n");
    std::fs::write(folder.at("v.vmdk"), theirs).unwrap();
    let image = OpenImage::open(&folder.at("v.vmdk"), &options).unwrap();
    let mut two = Bench::new(image.into_device().unwrap());
    read(&mut two, 0, 4 * CLUSTER);
    assert!(two.buffer()[..4 * CLUSTER] == expected);
    let outside = text.replace("\"data\" 8", "\"/etc/passwd\" 0");
    std::fs::write(folder.at("b.vmdk"), outside).unwrap();
    let said = OpenImage::open(&folder.at("b.vmdk"), &options).err().unwrap().to_string();
    assert!(said.contains("names the extent /etc/passwd, which is not beside it"), "{said}");
}

#[test]
fn cluster_that_the_end_of_the_file_cuts_ends_in_zeros() {
    let folder = Folder::new("cut");
    let image = Image::new(&[Cluster::Data(9), Cluster::Data(8)]);
    let mut bytes = image.bytes();
    let mut contents = image.contents(&[]);
    bytes.truncate(bytes.len() - 1000);
    contents[CLUSTER - 1000..CLUSTER].fill(0);
    std::fs::write(folder.at("a.qcow2"), &bytes).unwrap();
    let mut bench = bench(&folder.at("a.qcow2"));
    read(&mut bench, 0, 2 * CLUSTER);
    assert!(bench.buffer()[..2 * CLUSTER] == contents);
    bytes.truncate(bytes.len() - CLUSTER);
    std::fs::write(folder.at("a.qcow2"), &bytes).unwrap();
    let said = open(&folder.at("a.qcow2")).err().unwrap();
    assert!(said.contains("is truncated: byte 0 of its disk is at"), "{said}");
}

#[test]
fn image_that_is_written_is_refused_and_readers_share() {
    let folder = Folder::new("lock");
    let path = folder.at("a.qcow2");
    Image::new(&[Cluster::Data(9)]).write(&path);
    let (one, two) = (open(&path).unwrap(), open(&path).unwrap());
    let write = headworks::OpenFile::open(&path, &headworks::FileOptions::default());
    assert!(write.unwrap_err().to_string().contains("in use"));
    drop((one, two));
    let writer = headworks::OpenFile::open(&path, &headworks::FileOptions::default()).unwrap();
    assert!(open(&path).err().unwrap().contains("in use by another process that writes it"));
    assert!(OpenImage::inspect(&path, &QCOW2).is_ok());
    drop(writer);
}
