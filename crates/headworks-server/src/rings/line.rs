//! What a device on its shard tells the thread of its front end: a channel, and a bell for a thread that waits for the front end.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use super::RingClient;
use headworks_vhost::{Answer, Disk};

/// What a device tells the thread of its front end.
#[derive(Debug)]
pub enum News {
    /// The answer to the last order.
    Answer(Answer),
    /// The disk is another one now.
    Disk(Disk),
    /// The device has left its slot, and nothing of it is in flight: it is dropped on the thread that hears this.
    Ended(#[expect(dead_code, reason = "it comes to be dropped")] Box<RingClient>),
}

/// The end of the channel that a device has.
#[derive(Clone, Debug)]
pub struct NewsSender {
    news: Sender<News>,
    bell: Arc<OwnedFd>,
}

impl NewsSender {
    /// Tells the thread something; a thread that has ended does not hear it.
    pub fn send(&self, news: News) {
        let _ = self.news.send(news);
        let one = 1_u64;
        // SAFETY: eight bytes of ours. The counter never fills: the thread reads it, and it takes 2^64 news.
        unsafe { libc::write(self.bell.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
    }
}

/// The end of the channel that the thread has.
#[derive(Debug)]
pub struct NewsReceiver {
    /// What the device has told.
    pub news: Receiver<News>,
    bell: Arc<OwnedFd>,
}

impl NewsReceiver {
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
pub fn line() -> io::Result<(NewsSender, NewsReceiver)> {
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
