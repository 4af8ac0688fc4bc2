//! Images as bases of overlays.

use std::path::Path;

use crate::{BaseFormats, FilesystemDevice, NewBase, NewOverlay, OpenOverlay, OverlayOptions};
use headworks::Device;
use headworks_core::{BioFlags, Op, VolumeId};
use headworks_testing::Bench;

use super::Folder;
use super::image::{CLUSTER, Cluster, Image};
use crate::formats::BASE_FORMATS;

const OPTIONS: OverlayOptions = OverlayOptions {
    read_only: false,
    direct: headworks::Direct::Auto,
    base_anywhere: false,
    formats: BASE_FORMATS,
};

fn on_qcow2(path: &Path) -> NewBase<'_> {
    NewBase { path, format: Some("qcow2"), formats: BASE_FORMATS }
}

fn open(path: &Path) -> Result<OpenOverlay, String> {
    OpenOverlay::open(path, &OPTIONS, None).map_err(|error| error.to_string())
}

/// Runs a command to its end; returns the bytes that it moved.
fn run(bench: &mut Bench<impl Device>, op: Op, at: usize, len: usize) -> usize {
    bench.submit(op, BioFlags::NONE, at as u64, len as u32);
    loop {
        while bench.step_now() {}
        if let Some(done) = bench.completions.pop() {
            assert_eq!(done.status, Ok(()));
            return done.transferred as usize;
        }
        let place = bench.disk.ready(10_000).expect("a thread answers within ten seconds");
        let now = bench.now;
        bench.call(|device, io| Device::on_ready(device, now, place, io));
    }
}

fn contents(bench: &mut Bench<impl Device>, len: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < len {
        let most = (len - bytes.len()).min(CLUSTER);
        let moved = run(bench, Op::Read, bytes.len(), most);
        bytes.extend_from_slice(&bench.buffer()[..moved]);
    }
    bytes
}

#[test]
fn overlay_reads_what_is_in_the_image_and_keeps_what_is_written() {
    let folder = Folder::new("base");
    let (below, above) = (folder.at("below.qcow2"), folder.at("above.qcow2"));
    let lower = Image::new(&[Cluster::Data(1), Cluster::Compressed(2), Cluster::Absent]);
    lower.write(&below);
    let clusters = [Cluster::Absent, Cluster::Absent, Cluster::Data(3)];
    let upper = Image::over(&clusters, "below.qcow2", Some("qcow2"));
    upper.write(&above);
    let mut expected = upper.contents(&lower.contents(&[]));
    let (one, two) = (folder.at("one.hwo"), folder.at("two.hwo"));
    NewOverlay::on(&on_qcow2(&above), None).unwrap().create(&one).unwrap();
    let mut bench = Bench::new(open(&one).unwrap().into_device());
    assert!(contents(&mut bench, expected.len()) == expected);
    bench.buffer()[..4096].fill(9);
    run(&mut bench, Op::Write, CLUSTER + 4096, 4096);
    run(&mut bench, Op::Flush, 0, 0);
    expected[CLUSTER + 4096..CLUSTER + 8192].fill(9);
    assert!(contents(&mut bench, expected.len()) == expected);
    drop(bench);
    // A chain: an overlay on an overlay on two images.
    NewOverlay::on(&NewBase { format: None, ..on_qcow2(&one) }, None)
        .unwrap()
        .create(&two)
        .unwrap();
    let mut bench = Bench::new(open(&two).unwrap().into_device());
    assert!(contents(&mut bench, expected.len()) == expected);
    drop(bench);
    // The image below waits for descriptors, so the overlay shares no device.
    let shared = open(&two).unwrap();
    assert!(!shared.can_share_device());
    assert!(FilesystemDevice::new().attach(VolumeId(0), Box::new(shared)).is_err());
    let buffered = OverlayOptions { direct: headworks::Direct::Off, read_only: true, ..OPTIONS };
    let whole = OpenOverlay::open(&two, &buffered, None).unwrap();
    assert_eq!(whole.layers().len(), 3);
    whole.flatten(&folder.at("flat"), &mut |_, _| true).unwrap();
    assert!(std::fs::read(folder.at("flat")).unwrap() == expected);
}

#[test]
fn image_as_a_base_is_refused_when_it_changes_is_to_be_written_or_is_not_read() {
    let folder = Folder::new("base-refused");
    let (below, above) = (folder.at("below.qcow2"), folder.at("above.qcow2"));
    Image::new(&[Cluster::Data(1)]).write(&below);
    Image::over(&[Cluster::Absent], "below.qcow2", Some("qcow2")).write(&above);
    let overlay = folder.at("a.hwo");
    NewOverlay::on(&on_qcow2(&above), None).unwrap().create(&overlay).unwrap();
    let without = OverlayOptions { formats: BaseFormats::default(), ..OPTIONS };
    let said = OpenOverlay::open(&overlay, &without, None).unwrap_err().to_string();
    assert!(said.contains("is a qcow2 image, which this program does not read"), "{said}");
    let said = OpenOverlay::commit(&overlay, &Default::default(), &mut |_, _| true)
        .unwrap_err()
        .to_string();
    assert!(said.contains("which is not written"), "{said}");
    let said = NewOverlay::on(&NewBase { format: Some("vhdx"), ..on_qcow2(&above) }, None);
    assert!(said.unwrap_err().to_string().contains("of the format vhdx"));
    let said = NewOverlay::on(&on_qcow2(&overlay), None).unwrap_err().to_string();
    assert!(said.contains("a.hwo"), "{said}");
    open(&overlay).unwrap();
    // Of the file at the end of the chain the overlay's head says nothing but that it changes.
    Image::new(&[Cluster::Data(2)]).write(&below);
    let said = open(&overlay).unwrap_err();
    assert!(said.contains("was modified since the overlay was made"), "{said}");
    OpenOverlay::rebase(&overlay, &on_qcow2(&above)).unwrap();
    open(&overlay).unwrap();
}
