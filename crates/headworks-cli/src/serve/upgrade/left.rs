//! What a stop has left with the service manager, as this start finds it: records and descriptors by their names.
//!
//! Names: `headworks-restart-standing` and `-live` the records, `headworks-restart-N` the descriptors in their order. Listening
//! sockets, locks and files are those of the new process; sockets of the manager and the cache's memory it has anyway.
//! Invariant: a takeover is made of all of it or of nothing, and the manager forgets it either way.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::OwnedFd;

use headworks_core::ConfigError;
use headworks_server::{Handover, Takeover, TakeoverSteps, UnmatchedClients};

use crate::serve::cache_file;

/// Names of what is left start with this.
pub(in crate::serve) const NAME: &str = "headworks-restart";
pub(super) const STANDING: &str = "headworks-restart-standing";
pub(super) const LIVE: &str = "headworks-restart-live";
/// The largest record that is read.
const RECORD_MAX: u64 = 1 << 30;

/// What an earlier process has left, as the service manager passed it.
#[derive(Debug, Default)]
pub(in crate::serve) struct Left(Vec<(OwnedFd, String)>);

impl Left {
    /// Adds a passed descriptor.
    pub fn push(&mut self, descriptor: OwnedFd, name: String) {
        self.0.push((descriptor, name));
    }

    /// Makes a takeover of it; none if it is not complete. The manager forgets all of it in any case.
    ///
    /// # Errors
    /// It is of another version.
    pub fn into_takeover(self) -> Result<Option<Takeover>, ConfigError> {
        let (mut records, mut descriptors) = ([None, None], Vec::new());
        for (descriptor, name) in self.0 {
            cache_file::forget_descriptor(&name);
            match name.as_str() {
                STANDING => records[0] = Some(File::from(descriptor)),
                LIVE => records[1] = Some(File::from(descriptor)),
                other => {
                    let number = other.rsplit('-').next().and_then(|word| word.parse().ok());
                    descriptors.extend(number.map(|number: usize| (number, descriptor)));
                }
            }
        }
        let [Some(standing), Some(live)] = records else { return Ok(None) };
        descriptors.sort_by_key(|(number, _)| *number);
        let is_whole = descriptors.iter().enumerate().all(|(at, (number, _))| at == *number);
        let read = |file| {
            read(file).map_err(|error| {
                ConfigError::new("upgrade", format!("cannot read what a stop has left: {error}"))
            })
        };
        let standing = Handover { record: read(standing)?, descriptors: Vec::new() };
        let descriptors = descriptors.into_iter().map(|(_, descriptor)| descriptor).collect();
        let live = Handover { record: read(live)?, descriptors };
        if !is_whole {
            return Ok(None);
        }
        Takeover::new(TakeoverSteps {
            unmatched: UnmatchedClients::Close,
            standing,
            live: Box::new(|| Ok(live)),
            adopted: Box::new(|| Ok(())),
        })
        .map(Some)
    }
}

fn read(mut file: File) -> io::Result<Vec<u8>> {
    let mut record = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    io::Read::read_to_end(&mut io::Read::take(file, RECORD_MAX), &mut record)?;
    Ok(record)
}
