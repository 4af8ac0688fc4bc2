//! Which requests continue the one before them: a small table of where each connection's last request ended.
//!
//! Two connections that share a slot of the table forget each other's place: then a sequential request counts as random, which
//! is corrected by what is learned of random ones.

use crate::bio::VolumeId;

/// Slots of the table.
const STREAMS: usize = 256;

/// The end of a connection's last request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stream {
    connection: u32,
    volume: u16,
    end: u64,
}

/// Where the last request of each connection ended.
#[derive(Debug)]
pub(crate) struct Streams(Box<[Stream; STREAMS]>);

impl Streams {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self(Box::new([Stream::default(); STREAMS]))
    }

    /// Notes a request; returns true if it begins where the connection's last one on the volume ended.
    pub fn note(&mut self, connection: u32, volume: VolumeId, offset: u64, len: u32) -> bool {
        let volume = volume.0;
        let slot =
            connection.wrapping_mul(0x9e37_79b9) ^ u32::from(volume).wrapping_mul(0x85eb_ca6b);
        let stream = &mut self.0[(slot >> 24) as usize];
        let next = Stream { connection, volume, end: offset };
        let continues = *stream == next && offset > 0;
        stream.end = offset + u64::from(len);
        (stream.connection, stream.volume) = (connection, volume);
        continues
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_that_begins_at_end_of_last_one_is_sequential() {
        let mut streams = Streams::new();
        let (a, b) = (VolumeId(0), VolumeId(1));
        assert!(!streams.note(1, a, 0, 4096), "the first has none before it");
        assert!(streams.note(1, a, 4096, 4096));
        assert!(!streams.note(1, b, 8192, 4096), "another volume");
        assert!(!streams.note(1, a, 16_384, 4096));
        assert!(streams.note(1, a, 20_480, 4096));
    }
}
