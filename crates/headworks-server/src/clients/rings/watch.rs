//! The kicks of a device: one descriptor that is ready when the machine has kicked any of its rings.
//!
//! An epoll instance has the event descriptors of all rings, each with an edge: a kick is an edge, and nothing is ever read of them. So a
//! front end that reads or fills them itself, or gives a pipe, cannot make the shard wait; and the shard watches one descriptor a device,
//! whatever its queues. The open files are the front end's, too: their flags are never changed.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// Edges that are taken at once; more are taken by the next look.
const EDGES: usize = 64;

/// The kicks of a device.
#[derive(Debug)]
pub(super) struct Kicks {
    epoll: OwnedFd,
    /// The descriptors by ring.
    rings: Vec<Option<OwnedFd>>,
}

impl Kicks {
    /// No ring is watched.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and belongs to nothing else.
        let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { epoll, rings: Vec::new() })
    }

    /// The descriptor to wait on.
    pub fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Watches these rings' kicks from now on, and no others.
    ///
    /// # Errors
    /// A descriptor cannot be watched.
    pub fn set_all<'a>(
        &mut self,
        all: impl Iterator<Item = (u16, BorrowedFd<'a>)>,
    ) -> io::Result<()> {
        for ring in 0..self.rings.len() as u16 {
            self.set(ring, None)?;
        }
        for (ring, kick) in all {
            self.set(ring, Some(kick))?;
        }
        Ok(())
    }

    /// Watches a ring's kicks from now on, or no more.
    fn set(&mut self, ring: u16, kick: Option<BorrowedFd<'_>>) -> io::Result<()> {
        let place = usize::from(ring);
        if self.rings.len() <= place {
            self.rings.resize_with(place + 1, || None);
        }
        if let Some(old) = self.rings[place].take() {
            // The front end has the same open file, so closing ours ends nothing.
            self.control(libc::EPOLL_CTL_DEL, old.as_raw_fd(), ring)?;
        }
        if let Some(kick) = kick {
            // Ours alone: a number that the front end gives twice is two.
            let own = kick.try_clone_to_owned()?;
            self.control(libc::EPOLL_CTL_ADD, own.as_raw_fd(), ring)?;
            self.rings[place] = Some(own);
        }
        Ok(())
    }

    fn control(&self, what: libc::c_int, fd: RawFd, ring: u16) -> io::Result<()> {
        let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
        let mut event = libc::epoll_event { events, u64: u64::from(ring) };
        // SAFETY: the event lives until the call has returned.
        match unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), what, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Takes the edges, so that the descriptor is ready again only after another kick.
    pub fn take(&self) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EDGES];
        // SAFETY: room for as many events as it says; it does not wait.
        unsafe {
            libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), EDGES as libc::c_int, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn event() -> OwnedFd {
        // SAFETY: no pointers; the descriptor is new.
        unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) }
    }

    fn kick(fd: &OwnedFd) {
        let one = 1_u64;
        // SAFETY: eight bytes of ours.
        let written = unsafe { libc::write(fd.as_raw_fd(), (&raw const one).cast(), 8) };
        assert_eq!(written, 8);
    }

    fn is_ready(kicks: &Kicks) -> bool {
        let mut poll = libc::pollfd { fd: kicks.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry; it does not wait.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    #[test]
    fn each_kick_is_an_edge_though_nothing_is_read() {
        let (mut kicks, one, two) = (Kicks::new().unwrap(), event(), event());
        kicks.set(0, Some(one.as_fd())).unwrap();
        kicks.set(3, Some(two.as_fd())).unwrap();
        assert!(!is_ready(&kicks));
        for fd in [&one, &two, &one] {
            kick(fd);
            assert!(is_ready(&kicks));
            kicks.take();
            assert!(!is_ready(&kicks), "until the next kick");
        }
    }

    #[test]
    fn kick_before_the_watch_counts_and_none_after_its_end() {
        let (mut kicks, one) = (Kicks::new().unwrap(), event());
        kick(&one);
        kicks.set(1, Some(one.as_fd())).unwrap();
        assert!(is_ready(&kicks), "it was kicked before");
        kicks.take();
        kicks.set(1, None).unwrap();
        kick(&one);
        assert!(!is_ready(&kicks));
    }

    #[test]
    fn file_that_cannot_be_watched_is_refused() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(Kicks::new().unwrap().set(0, Some(file.as_fd())).is_err());
    }
}
