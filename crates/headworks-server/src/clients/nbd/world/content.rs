//! What an image of the world may contain: a stamp for each sector, and every version that it ever had.
//!
//! The bytes of a sector are its stamp 64 times: the number of the write, and the sector's own number. So a payload byte at another place, of
//! another write, or of a header shows wherever it goes.

use headworks_core::Instant;

/// Bytes of a sector.
pub const SECTOR: usize = 512;
/// Bits of a stamp for the sector's number.
const PLACE_BITS: u32 = 24;

/// Number of a write; 0 is what reads as zeros.
pub type WriteId = u64;

/// The bytes of a range as a write has them.
#[must_use]
pub fn payload(id: WriteId, offset: u64, len: u32) -> Vec<u8> {
    let first = offset / SECTOR as u64;
    let sectors = u64::from(len) / SECTOR as u64;
    (first..first + sectors).flat_map(|sector| stamped(id, sector)).collect()
}

fn stamped(id: WriteId, sector: u64) -> [u8; SECTOR] {
    let stamp = if id == 0 { 0 } else { id << PLACE_BITS | sector };
    let mut bytes = [0; SECTOR];
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
    bytes
}

/// The write that a sector's bytes are of; none if they are of no write at this place.
#[must_use]
pub fn write_of(bytes: &[u8], sector: u64) -> Option<WriteId> {
    let stamp = u64::from_le_bytes(*bytes.first_chunk()?);
    let id = stamp >> PLACE_BITS;
    (bytes == stamped(id, sector)).then_some(id)
}

/// An image and its history.
#[derive(Debug)]
pub struct Content {
    bytes: Vec<u8>,
    /// By sector: since when it has had which write.
    versions: Vec<Vec<(Instant, WriteId)>>,
}

impl Content {
    /// An image of zeros.
    #[must_use]
    pub fn new(size: u64) -> Self {
        let sectors = size as usize / SECTOR;
        Self { bytes: vec![0; size as usize], versions: vec![vec![(Instant(0), 0)]; sectors] }
    }

    /// Bytes of the image.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The bytes of a range.
    #[must_use]
    pub fn bytes(&self, offset: u64, len: usize) -> &[u8] {
        &self.bytes[offset as usize..][..len]
    }

    /// Takes the bytes of a write; returns its number.
    ///
    /// # Errors
    /// They are not those of one write at this place.
    pub fn write(&mut self, now: Instant, offset: u64, bytes: &[u8]) -> Result<WriteId, String> {
        let first = offset / SECTOR as u64;
        let mut of = None;
        for (sector, data) in (first..).zip(bytes.chunks(SECTOR)) {
            let id = write_of(data, sector).filter(|&id| id > 0 && of.is_none_or(|of| of == id));
            of = id;
            let Some(id) = id else {
                let begins = &data[..data.len().min(16)];
                return Err(format!("sector {sector} of a write got other bytes: {begins:02x?}"));
            };
            self.versions[sector as usize].push((now, id));
        }
        self.bytes[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        of.ok_or_else(|| "a write without bytes".to_owned())
    }

    /// Makes a range zeros.
    pub fn zero(&mut self, now: Instant, offset: u64, len: u32) {
        self.bytes[offset as usize..][..len as usize].fill(0);
        let (first, sectors) = (offset as usize / SECTOR, len as usize / SECTOR);
        self.versions[first..first + sectors].iter_mut().for_each(|all| all.push((now, 0)));
    }

    /// Whether each sector of a read's data is a version that it had between two instants.
    ///
    /// # Errors
    /// One is not.
    pub fn check(
        &self,
        offset: u64,
        bytes: &[u8],
        between: (Instant, Instant),
    ) -> Result<(), String> {
        let first = offset / SECTOR as u64;
        for (sector, data) in (first..).zip(bytes.chunks(SECTOR)) {
            let Some(id) = write_of(data, sector) else {
                let begins = &data[..data.len().min(16)];
                return Err(format!(
                    "sector {sector} was read with bytes of no write: {begins:02x?}"
                ));
            };
            let all = &self.versions[sector as usize];
            let next = |index: usize| all.get(index + 1).map_or(Instant(u64::MAX), |next| next.0);
            let fits = |(index, version): (usize, &(Instant, WriteId))| {
                version.1 == id && version.0 <= between.1 && next(index) >= between.0
            };
            if !all.iter().enumerate().any(fits) {
                return Err(format!(
                    "sector {sector} was read as write {id} had it, which it was not then"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_knows_its_versions_and_misplaced_bytes() {
        let mut content = Content::new(1 << 20);
        let data = payload(7, 4096, 4096);
        assert_eq!(content.write(Instant(5), 4096, &data), Ok(7));
        assert!(content.write(Instant(6), 8192, &data).is_err(), "another place");
        assert!(content.check(4096, &data, (Instant(5), Instant(9))).is_ok());
        assert!(
            content.check(4096, &data, (Instant(1), Instant(4))).is_err(),
            "before it was written"
        );
        assert!(content.check(4096, &[0; 512], (Instant(1), Instant(6))).is_ok());
        assert!(content.check(4096, &[0; 512], (Instant(6), Instant(6))).is_err());
        content.zero(Instant(10), 4096, 512);
        assert!(content.check(4096, &[0; 512], (Instant(11), Instant(12))).is_ok());
        assert!(content.check(4096, &data[..512], (Instant(11), Instant(12))).is_err());
    }
}
