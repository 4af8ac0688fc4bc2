//! Writes small qcow2 images for tests, with a model of what is in them.

use std::path::Path;

/// Clusters of 4 KiB.
pub const CLUSTER: usize = 4096;
const BITS: u32 = 12;
const ENTRIES: usize = CLUSTER / 8;

/// A cluster of a disk; bytes come from a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cluster {
    Absent,
    Zeros,
    Data(u8),
    Compressed(u8),
}

/// An image that is to be written.
#[derive(Clone, Debug)]
pub struct Image {
    pub version: u32,
    pub features: u64,
    pub encryption: u32,
    pub clusters: Vec<Cluster>,
    /// Name and format of the backing file.
    pub backing: Option<(String, Option<String>)>,
    pub data_file: Option<String>,
}

/// Bytes of a cluster of this seed: different ones.
pub fn bytes_of(seed: u8) -> Vec<u8> {
    (0..CLUSTER).map(|at| seed ^ (at / 512) as u8 ^ (at % 7) as u8).collect()
}

impl Image {
    pub fn new(clusters: &[Cluster]) -> Self {
        let clusters = clusters.to_vec();
        let (backing, data_file) = Default::default();
        Self { version: 3, features: 0, encryption: 0, clusters, backing, data_file }
    }

    pub fn over(clusters: &[Cluster], name: &str, format: Option<&str>) -> Self {
        let backing = Some((name.to_owned(), format.map(str::to_owned)));
        Self { backing, ..Self::new(clusters) }
    }

    /// What a reader sees, over a backing disk of these bytes.
    pub fn contents(&self, below: &[u8]) -> Vec<u8> {
        let mut all = Vec::new();
        for cluster in &self.clusters {
            let part = all.len()..all.len() + CLUSTER;
            all.extend(match *cluster {
                Cluster::Zeros => vec![0; CLUSTER],
                Cluster::Data(seed) | Cluster::Compressed(seed) => bytes_of(seed),
                Cluster::Absent => {
                    let mut bytes: Vec<u8> =
                        below.iter().skip(part.start).take(CLUSTER).copied().collect();
                    bytes.resize(CLUSTER, 0);
                    bytes
                }
            });
        }
        all
    }

    /// The image: header, L1 table, L2 tables, clusters in reverse order.
    pub fn bytes(&self) -> Vec<u8> {
        let tables = self.clusters.len().div_ceil(ENTRIES).max(1);
        let mut file = vec![0; CLUSTER * (2 + tables)];
        self.put_header(&mut file, tables as u32);
        for table in 0..tables {
            put(&mut file, CLUSTER + 8 * table, ((2 + table) * CLUSTER) as u64 | 1 << 63);
        }
        for (index, cluster) in self.clusters.iter().enumerate().rev() {
            let entry = match *cluster {
                Cluster::Absent => 0,
                Cluster::Zeros => 1,
                Cluster::Data(seed) => {
                    let at = file.len().next_multiple_of(CLUSTER);
                    file.resize(at, 0);
                    file.extend(bytes_of(seed));
                    at as u64 | 1 << 63
                }
                Cluster::Compressed(seed) => {
                    let (at, packed) = (file.len() + 5, stored(&bytes_of(seed)));
                    file.resize(at, 0xaa);
                    file.extend(&packed);
                    let sectors = ((at + packed.len() - 1) / 512 - at / 512) as u64;
                    1 << 62 | sectors << (62 - (BITS - 8)) | at as u64
                }
            };
            put(&mut file, 2 * CLUSTER + 8 * index, entry);
        }
        let end = file.len().next_multiple_of(512);
        file.resize(end, 0);
        file
    }

    fn put_header(&self, file: &mut [u8], l1_entries: u32) {
        file[..4].copy_from_slice(b"QFI\xfb");
        put32(file, 4, self.version);
        put32(file, 20, BITS);
        put(file, 24, (self.clusters.len() * CLUSTER) as u64);
        put32(file, 32, self.encryption);
        put32(file, 36, l1_entries);
        put(file, 40, CLUSTER as u64);
        let mut at = 72;
        if self.version == 3 {
            put(file, 72, self.features | if self.data_file.is_some() { 4 } else { 0 });
            put32(file, 96, 4);
            put32(file, 100, 104);
            at = 104;
        }
        let format = self.backing.as_ref().and_then(|(_, format)| format.as_deref());
        for (kind, text) in [(0xe279_2aca, format), (0x4441_5441, self.data_file.as_deref())] {
            let Some(text) = text else { continue };
            put32(file, at, kind);
            put32(file, at + 4, text.len() as u32);
            file[at + 8..at + 8 + text.len()].copy_from_slice(text.as_bytes());
            at += 8 + text.len().next_multiple_of(8);
        }
        at += 8;
        if let Some((name, _)) = &self.backing {
            put(file, 8, at as u64);
            put32(file, 16, name.len() as u32);
            file[at..at + name.len()].copy_from_slice(name.as_bytes());
        }
    }

    pub fn write(&self, path: &Path) {
        std::fs::write(path, self.bytes()).unwrap();
    }
}

/// A deflate stream of one block that is stored as it is.
fn stored(bytes: &[u8]) -> Vec<u8> {
    let len = bytes.len() as u16;
    let mut packed = vec![1];
    packed.extend(len.to_le_bytes());
    packed.extend((!len).to_le_bytes());
    packed.extend(bytes);
    packed
}

pub fn put(file: &mut [u8], at: usize, value: u64) {
    file[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

pub fn put32(file: &mut [u8], at: usize, value: u32) {
    file[at..at + 4].copy_from_slice(&value.to_be_bytes());
}
