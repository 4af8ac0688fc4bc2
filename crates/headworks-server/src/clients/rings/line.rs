//! What a device on its shard tells the thread of its front end: a channel, and a bell for a thread that waits for the front end.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::RingClient;
use headworks_vhost::{Answer, Disk, NoObserver, StoreObserver};

/// What a device tells the thread of its front end.
#[derive(Debug)]
pub enum News<O: StoreObserver = NoObserver> {
    /// The answer to the last order.
    Answer(Answer<O>),
    /// The disk is another one now.
    Disk(Disk),
    /// The device has left its slot, and nothing of it is in flight: it is dropped on the thread that hears this.
    Ended(#[expect(dead_code, reason = "it comes to be dropped")] Box<RingClient<O>>),
}

/// The end of the channel that a device has.
#[derive(Clone, Debug)]
pub struct NewsSender<O: StoreObserver = NoObserver> {
    news: Sender<News<O>>,
    bell: Arc<OwnedFd>,
}

impl<O: StoreObserver> NewsSender<O> {
    /// Tells the thread something; a thread that has ended does not hear it.
    pub fn send(&self, news: News<O>) {
        let _ = self.news.send(news);
        let one = 1_u64;
        // SAFETY: eight bytes of ours. The counter never fills: the thread reads it, and it takes 2^64 news.
        unsafe { libc::write(self.bell.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
    }
}

/// The end of the channel that the thread has.
#[derive(Debug)]
pub struct NewsReceiver<O: StoreObserver = NoObserver> {
    /// What the device has told.
    pub news: Receiver<News<O>>,
    bell: Arc<OwnedFd>,
}

impl<O: StoreObserver> NewsReceiver<O> {
    /// A descriptor that is ready when there is news.
    pub fn bell(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// Silences the bell; the news is taken next.
    pub fn silence(&self) {
        let mut count = 0_u64;
        // SAFETY: eight bytes of ours; the descriptor does not block.
        unsafe { libc::read(self.bell.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
    }
}

/// Both ends.
///
/// # Errors
/// No file descriptor is left.
pub fn line<O: StoreObserver>() -> io::Result<(NewsSender<O>, NewsReceiver<O>)> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and belongs to nothing else.
    let bell = Arc::new(unsafe { OwnedFd::from_raw_fd(fd) });
    let (news, heard) = channel();
    Ok((NewsSender { news, bell: Arc::clone(&bell) }, NewsReceiver { news: heard, bell }))
}
