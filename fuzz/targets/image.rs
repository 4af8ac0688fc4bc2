//! What may stand in a qcow2 image or a VMDK descriptor: it is refused with one line, or it opens, and bytes read in pieces are
//! those read at once.
#![cfg_attr(fuzzing, no_main)]

use std::path::PathBuf;
use std::sync::LazyLock;

use headworks::{Device, Direct};
use headworks_core::{BioFlags, Op};
use headworks_images::formats::{FormatDevice, ImageFormat, ImageOptions, OpenImage};
use headworks_testing::Bench;

/// Bytes of a disk that are read.
const READ: u64 = 64 << 10;

/// A file in memory, one for each process, beside a raw file that an image may name.
static IMAGE: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = PathBuf::from(format!("/dev/shm/headworks-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("there is memory");
    std::fs::write(folder.join("base"), [5; 5000]).expect("there is memory");
    folder.join("image")
});

/// The bytes of a range, or none after an error.
fn read(bench: &mut Bench<FormatDevice>, offset: u64, len: u64) -> Option<Vec<u8>> {
    let (mut all, mut at) = (Vec::new(), offset);
    while at < offset + len {
        bench.submit(Op::Read, BioFlags::NONE, at, (offset + len - at) as u32);
        while bench.completions.is_empty() {
            if !bench.step_now() {
                let place = bench.disk.ready(10_000).expect("a thread answers");
                let now = bench.now;
                bench.call(|device, io| device.on_ready(now, place, io));
            }
        }
        let done = bench.completions.pop()?;
        done.status.ok()?;
        let moved = done.transferred as usize;
        assert!(moved > 0 || len == 0, "an answer without error moves bytes");
        all.extend_from_slice(&bench.buffer()[..moved]);
        at += moved as u64;
    }
    Some(all)
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    std::fs::write(&*IMAGE, bytes).expect("there is memory");
    let format = if bytes.starts_with(b"#") { ImageFormat::Vmdk } else { ImageFormat::Qcow2 };
    let options = ImageOptions { format, outside: false, direct: Direct::Off };
    let image = match OpenImage::open(&IMAGE, &options) {
        Err(error) => {
            assert!(!error.to_string().contains('\n'), "{error}");
            return;
        }
        Ok(image) => image,
    };
    // Each run has an entry of 8 bytes in the file or a boundary in the one below.
    assert!(image.memory() <= 64 * (bytes.len() + 4096), "the map follows from the file");
    let size = image.volume_options().size.min(READ);
    let mut bench = Bench::new(image.into_device().expect("there are threads"));
    let whole = read(&mut bench, 0, size);
    let half = size / 2 / 512 * 512;
    let parts = (read(&mut bench, 0, half), read(&mut bench, half, size - half));
    if let (Some(whole), (Some(first), Some(second))) = (whole, parts) {
        assert!(whole == [first, second].concat(), "pieces equal the whole");
    }
});
