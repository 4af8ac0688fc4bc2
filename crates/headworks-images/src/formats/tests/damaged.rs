//! Images that are refused, and random damage: an error or some bytes, never a panic, and no memory or time that follows from a
//! number in the image alone.

use super::*;

fn refusal(folder: &Folder, change: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut bytes = Image::new(&[Cluster::Data(1), Cluster::Compressed(2)]).bytes();
    change(&mut bytes);
    std::fs::write(folder.at("a.qcow2"), bytes).unwrap();
    open(&folder.at("a.qcow2")).err().expect("the image is refused")
}

#[test]
fn each_unread_feature_and_each_bad_number_has_a_sentence() {
    use image::{put, put32};
    let folder = Folder::new("refused");
    type Change = fn(&mut Vec<u8>);
    let cases: [(Change, &str); 19] = [
        (|b| b[0] = 0, "is no qcow2 image"),
        (|b| put32(b, 4, 1), "of version 1, and versions 2 and 3 are read"),
        (|b| put32(b, 20, 8), "clusters would have 2^8 bytes"),
        (|b| put32(b, 20, 77), "clusters would have 2^77 bytes"),
        (|b| put32(b, 32, 1), "is an encrypted qcow2 image"),
        (|b| put(b, 72, 1), "is marked as dirty"),
        (|b| put(b, 72, 2), "is marked as corrupt"),
        (|b| put(b, 72, 8), "is compressed by an unknown method"),
        (|b| put(b, 72, 16), "has extended L2 entries"),
        (|b| put(b, 72, 1 << 40), "needs unknown features (0x10000000000)"),
        (|b| put(b, 72, 4), "has its data in another file and does not name it"),
        (|b| put(b, 24, 0), "has a disk of 0 bytes"),
        (|b| put(b, 24, u64::MAX), "its disk would have"),
        (|b| put(b, 24, 1 << 40), "its L1 table has 1 entries, and its disk needs 524288"),
        (|b| put32(b, 36, u32::MAX), "its L1 table has 4294967295 entries"),
        (|b| put(b, 40, 1 << 50), "is truncated: the L1 table lies beyond its end"),
        (|b| put(b, 40, 512), "its L1 table begins inside a cluster"),
        (|b| put(b, CLUSTER, 1 << 40), "is truncated: the L2 table at 1099511627776"),
        (|b| put(b, 2 * CLUSTER, 1 << 40), "is truncated: byte 0 of its disk is at 1099511627776"),
    ];
    for (change, words) in cases {
        let said = refusal(&folder, change);
        assert!(said.contains(words) && !said.contains('\n'), "{said}");
    }
    assert!(refusal(&folder, |bytes| bytes.truncate(60)).contains("is truncated"));
    assert!(refusal(&folder, Vec::clear).contains("is empty"));
    assert!(open(&folder.at("nothing")).err().unwrap().contains("No such file"));
    assert!(open(&folder.at("below")).err().unwrap().contains("neither a regular file"));
}

#[test]
fn files_are_opened_only_beside_the_image() {
    let folder = Folder::new("beside");
    let secret = folder.at("secret");
    std::fs::write(&secret, [7; CLUSTER]).unwrap();
    let top = folder.at("below/top.qcow2");
    let said = |name: &str| {
        Image::over(&[Cluster::Absent], name, Some("raw")).write(&top);
        open(&top).err()
    };
    std::os::unix::fs::symlink(&secret, folder.at("below/link")).unwrap();
    std::fs::hard_link(&secret, folder.at("below/inside")).unwrap();
    for name in ["../secret", "link", secret.to_str().unwrap(), "x/../../secret", "file:../secret"]
    {
        std::fs::create_dir_all(folder.at("below/x")).unwrap();
        let said = said(name).expect(name);
        assert!(said.contains("which is not beside it; backing=allow"), "{name}: {said}");
        let allowed = OpenImage::open(&top, &ImageOptions { outside: true, ..QCOW2 });
        assert!(allowed.is_ok(), "{name}");
    }
    for name in ["nbd://host/x", "json:{}", "nbd:host:10809"] {
        assert!(said(name).expect(name).contains("that is no path"), "{name}");
    }
    assert!(said("nowhere").unwrap().contains("needs its backing file"));
    // Names with control characters must not forge lines of a log, or write to a terminal.
    for name in ["no\nwhere", "no\u{1b}[2Jwhere", "json:\n"] {
        let said = said(name).expect(name);
        assert!(!said.contains(char::is_control), "{said:?}");
    }
    assert_eq!(said("inside"), None);
    // A link to an image leads to its neighbours, too.
    Image::over(&[Cluster::Absent], "inside", Some("raw")).write(&top);
    std::os::unix::fs::symlink(folder.at("below"), folder.at("alias")).unwrap();
    assert!(open(&folder.at("alias/top.qcow2")).is_ok());
}

#[test]
fn loops_long_chains_and_unsaid_formats_are_refused() {
    let folder = Folder::new("loop");
    let over = |name: &str, below: &str, format: Option<&str>| {
        Image::over(&[Cluster::Absent], below, format).write(&folder.at(name));
    };
    over("a", "b", Some("qcow2"));
    over("b", "a", Some("qcow2"));
    over("self", "self", Some("qcow2"));
    for name in ["a", "self"] {
        assert!(open(&folder.at(name)).err().unwrap().contains("is its own backing file"));
    }
    Image::new(&[Cluster::Data(5)]).write(&folder.at("0"));
    for depth in 1..9 {
        over(&depth.to_string(), &(depth - 1).to_string(), Some("qcow2"));
    }
    assert!(open(&folder.at("7")).is_ok());
    assert!(open(&folder.at("8")).err().unwrap().contains("is image 9 of a chain"));
    over("unsaid", "0", None);
    let said = open(&folder.at("unsaid")).err().unwrap();
    assert!(said.contains("does not say the format of its backing file"), "{said}");
    over("other", "0", Some("qed"));
    assert!(open(&folder.at("other")).err().unwrap().contains("of the format `qed`"));
    std::fs::write(folder.at("plain"), [1; 512]).unwrap();
    over("guess", "plain", None);
    assert!(open(&folder.at("guess")).is_ok());
}

#[test]
fn damaged_images_never_panic() {
    let folder = Folder::new("damaged");
    let path = folder.at("a.qcow2");
    std::fs::write(folder.at("base"), [3; 5000]).unwrap();
    let mut prng = Prng::new(3);
    let (mut refused, mut opened) = (0, 0);
    for round in 0..1500 {
        let mut image = Image::over(&random_clusters(&mut prng, 20), "base", Some("raw"));
        image.version = if round % 8 == 0 { 2 } else { 3 };
        let mut bytes = image.bytes();
        for _ in 0..1 + prng.below(4) {
            // Mostly header and tables, where numbers are.
            let place = match prng.below(3) {
                0 => prng.below(160) as usize,
                1 => (1 + prng.below(2) as usize) * CLUSTER + prng.below(160) as usize,
                _ => prng.below(bytes.len() as u64) as usize,
            };
            match prng.below(3) {
                0 => bytes[place] = prng.next() as u8,
                1 => bytes[place] ^= 1 << prng.below(8),
                _ => image::put(&mut bytes, place / 8 * 8, prng.next() >> prng.below(64)),
            }
        }
        if prng.below(10) == 0 {
            bytes.truncate(prng.below(bytes.len() as u64) as usize);
        }
        std::fs::write(&path, &bytes).unwrap();
        match open(&path) {
            Err(said) => {
                refused += 1;
                assert!(!said.contains('\n') && said.contains("a.qcow2"), "{said}");
            }
            Ok(image) => {
                opened += 1;
                assert!(image.memory() <= 1 << 20, "a small image has a small map");
                let size = image.volume_options().size.min(1 << 20) as usize / 4096 * 4096;
                let mut bench = Bench::new(image.into_device().unwrap());
                let mut at = 0;
                // Any bytes and any error, but an answer.
                while at < size {
                    let done = run(&mut bench, Op::Read, BioFlags::NONE, at, size - at);
                    at += if done.status.is_ok() { done.transferred as usize } else { 4096 };
                }
            }
        }
    }
    assert!(refused > 200 && opened > 200, "{refused} refused, {opened} opened");
}
