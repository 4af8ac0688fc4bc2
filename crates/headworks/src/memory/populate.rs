//! A thread that has memory made before it is needed.
//!
//! The first touch of a huge page zeroes 2 MiB: 0.1 to 0.2 ms on a machine of its own, 1 to 8 ms in a virtual machine whose host has to find
//! the memory first. On a shard's thread all of its clients wait for that. So the cache names the frames that it will use next
//! (`Action::Prepare`), and this thread has the kernel make their pages. A kernel that cannot do that (before 5.14) refuses, and
//! the pages are made on their first touch.
//!
//! Frames whose memory must be reserved before it is used are reserved here, too, by a function of the caller; one that is refused is
//! tried again every second, and what was asked for after it waits.
//!
//! Invariants: bytes never change, since a page that is there stays as it is; the kernel is asked for a huge page at a time, because it
//! keeps the process's other page faults waiting meanwhile.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{HUGE, Span};

/// Time after which memory that was refused is asked for again.
const RETRY: Duration = Duration::from_secs(1);

/// Has a piece of memory made; false if there is none at present.
type Make = Box<dyn FnMut(Span) -> bool + Send>;

/// The thread; it ends when this is dropped, after what it was asked for.
#[derive(Debug)]
pub struct Populator {
    spans: Option<Sender<Span>>,
    thread: Option<JoinHandle<()>>,
}

impl Populator {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn start() -> io::Result<Self> {
        Self::start_with(|piece| {
            Self::make(piece);
            true
        })
    }

    /// Starts the thread, which calls `make` for each piece of at most a huge page, until it returns true.
    ///
    /// # Errors
    /// No thread can be had.
    pub fn start_with(make: impl FnMut(Span) -> bool + Send + 'static) -> io::Result<Self> {
        let (sender, spans) = channel();
        let thread = std::thread::Builder::new().name("populate".into());
        let thread = thread.spawn(move || populate(&spans, Box::new(make)))?;
        Ok(Self { spans: Some(sender), thread: Some(thread) })
    }

    /// Has the kernel make the pages of a span of mapped memory.
    pub fn make(span: Span) {
        // SAFETY: no byte of the range changes, whatever is mapped there.
        unsafe { libc::madvise(span.base().cast(), span.len(), libc::MADV_POPULATE_WRITE) };
    }

    /// Has the pages of a span made; it is mapped until the populator is dropped.
    pub fn populate(&self, span: Span) {
        if let Some(spans) = &self.spans {
            // A thread that has ended makes nothing: the pages come on their first touch.
            let _ = spans.send(span);
        }
    }
}

impl Drop for Populator {
    fn drop(&mut self) {
        self.spans = None;
        // A panic of the thread was reported by itself.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn populate(spans: &Receiver<Span>, mut make: Make) {
    let mut waiting = VecDeque::new();
    loop {
        let next = waiting.pop_front().map_or_else(|| spans.recv().ok(), Some);
        let Some(span): Option<Span> = next else { return };
        for at in (0..span.len()).step_by(HUGE) {
            let piece = span.part(at, HUGE.min(span.len() - at));
            while !make(piece) {
                match spans.recv_timeout(RETRY) {
                    Ok(later) => waiting.push_back(later),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Mapping, PAGE};

    #[test]
    fn pages_are_made_and_their_bytes_kept() {
        let (mapping, _) = Mapping::huge(4 * HUGE).unwrap();
        let written = mapping.at(HUGE + 5, 1);
        // SAFETY: a byte of a mapping that only this test knows, which outlives the span.
        let span = unsafe {
            written.write(7);
            mapping.span().part(HUGE, 2 * HUGE)
        };
        let populator = Populator::start().unwrap();
        populator.populate(span);
        drop(populator);
        let mut pages = vec![0u8; mapping.len() / PAGE];
        // SAFETY: one byte for each page of the mapping.
        let failed =
            unsafe { libc::mincore(mapping.base().cast(), mapping.len(), pages.as_mut_ptr()) };
        assert_eq!(failed, 0);
        let there = |pages: &[u8]| pages.iter().filter(|page| **page & 1 != 0).count();
        let each = HUGE / PAGE;
        assert_eq!(there(&pages[..each]), 0, "nothing else is made");
        // SAFETY: as above.
        assert_eq!(unsafe { written.read() }, 7);
        // A kernel that cannot make them leaves the one page that was touched.
        let made = there(&pages[each..3 * each]);
        assert!(made == 2 * each || (1..=each).contains(&made), "{made} pages");
    }

    #[test]
    fn refused_memory_is_asked_for_again_and_the_thread_ends_meanwhile() {
        let (mapping, _) = Mapping::huge(4 * HUGE).unwrap();
        // SAFETY: the mapping outlives the span.
        let span = unsafe { mapping.span() };
        let (sender, seen) = channel();
        let populator = Populator::start_with(move |piece| {
            sender.send((piece.base() as usize, piece.len())).unwrap();
            false
        });
        let populator = populator.unwrap();
        populator.populate(span);
        let first = seen.recv().unwrap();
        assert_eq!(first, (mapping.base() as usize, HUGE));
        assert_eq!(seen.recv().unwrap(), first, "again");
        drop(populator);
    }
}
