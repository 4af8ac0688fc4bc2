//! Opens images that may wait for a network side by side, beside those of local files.
//!
//! ```text
//!   start --> a thread for each, at most 64 --image, or an error--> the builder takes them in the order of the exports
//!                                                                     `-- not there in time: late, see [`LateImage`]
//! ```
//!
//! A remote that does not answer ends its attempt by itself; so a start with any number of them takes as long as one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use headworks_core::ConfigError;
use headworks_house::Identity;

use super::export_spec::ExportSpec;
use super::image::{OpenedImage, Opening};
use crate::spec::{BaseDevice, Spec};
use crate::successor::leftovers::Leftovers;

/// Most threads that open images.
const THREADS_MAX: usize = 64;

/// An attempt to open an image.
pub(crate) type OpenedOrNot = Result<OpenedImage, ConfigError>;

/// An export whose image was not open in time; others are served meanwhile.
pub(crate) struct LateImage {
    /// Specification of the export.
    pub spec: ExportSpec,
    /// Identity of the image.
    pub identity: Option<Identity>,
    /// The image, when it is open; none if another late export of the same image has it.
    pub image: Option<Receiver<OpenedOrNot>>,
}

impl BaseDevice {
    /// Whether opening it may wait for a network: a remote, or an overlay that may be on one.
    pub(crate) fn may_wait(&self) -> bool {
        match self {
            Self::Nbd(_) | Self::Rbd(_) => true,
            Self::Overlay { options, .. } => options.base_anywhere,
            Self::File { .. } | Self::Image { .. } | Self::Null { .. } | Self::Mem { .. } => false,
        }
    }
}

/// An image to open, and where it is expected.
struct Job {
    spec: Spec,
    write: bool,
    image: Sender<OpenedOrNot>,
}

/// Images that are being opened, by the index of their export.
pub(super) struct OpeningImages {
    images: BTreeMap<usize, Receiver<OpenedOrNot>>,
    since: Instant,
}

impl OpeningImages {
    /// Begins to open those of these exports that may wait; `wants_write` says how each is opened.
    pub fn start(
        exports: &[ExportSpec],
        leftovers: &Leftovers,
        wants_write: impl Fn(&ExportSpec) -> bool,
    ) -> Self {
        let (mut jobs, mut images, mut known) = (VecDeque::new(), BTreeMap::new(), Vec::new());
        for (index, export) in exports.iter().enumerate() {
            let identity = export.identity();
            if !export.spec.base.may_wait() || identity.is_some() && known.contains(&identity) {
                continue;
            }
            known.push(identity);
            let (image, expected) = channel();
            let (spec, write) = (export.spec.clone(), wants_write(export));
            jobs.push_back(Job { spec, write, image });
            images.insert(index, expected);
        }
        let threads = jobs.len().min(THREADS_MAX);
        let jobs = Arc::new(Mutex::new(jobs));
        for _ in 0..threads {
            let (jobs, leftovers) = (Arc::clone(&jobs), leftovers.clone());
            // Without a thread the builder opens the image.
            let _ = std::thread::Builder::new()
                .name("headworks-open".into())
                .spawn(move || open_all(&jobs, &leftovers));
        }
        Self { images, since: Instant::now() }
    }

    /// The image of an export, or the receiver of one that is not open `within` this time since the start; none if it is not opened here.
    pub fn take(
        &mut self,
        index: usize,
        within: Option<Duration>,
    ) -> Option<Result<OpenedOrNot, Receiver<OpenedOrNot>>> {
        let image = self.images.remove(&index)?;
        let opened = match within {
            Some(limit) => image.recv_timeout(limit.saturating_sub(self.since.elapsed())),
            None => image.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match opened {
            Ok(opened) => Some(Ok(opened)),
            Err(RecvTimeoutError::Timeout) => Some(Err(image)),
            Err(RecvTimeoutError::Disconnected) => None,
        }
    }
}

fn open_all(jobs: &Mutex<VecDeque<Job>>, leftovers: &Leftovers) {
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    while let Some(Job { spec, write, image }) = next() {
        // A start that has failed expects none.
        let _ = image.send(OpenedImage::by(Opening::Serve, &spec, write, leftovers));
    }
}

/// Does all jobs on as many threads as they need, at most 64; returns the results in order.
pub(crate) fn side_by_side<T: Send, R: Send>(jobs: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let count = jobs.len();
    let jobs = Mutex::new(jobs.into_iter().enumerate().collect::<VecDeque<_>>());
    let done = Mutex::new(BTreeMap::new());
    let lock_done = || done.lock().unwrap_or_else(PoisonError::into_inner);
    let run = || {
        let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        while let Some((index, job)) = next() {
            let result = work(job);
            lock_done().insert(index, result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..count.min(THREADS_MAX) {
            // Without a thread the others do more.
            let _ = std::thread::Builder::new().spawn_scoped(scope, run);
        }
        run();
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner).into_values().collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn jobs_are_done_at_once_and_their_results_are_in_order() {
        let meeting = Barrier::new(8);
        let done = side_by_side((0..8).collect(), |number| {
            meeting.wait();
            number * 2
        });
        assert_eq!(done, [0, 2, 4, 6, 8, 10, 12, 14]);
        assert!(side_by_side(Vec::new(), |number: u8| number).is_empty());
    }
}
