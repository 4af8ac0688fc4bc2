//! Listening sockets inherited from a service manager (socket activation).
//!
//! Only a listening stream socket is accepted. Its file belongs to the service manager: its mode is not changed and it
//! is not removed, so that clients can connect while no server runs.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;

/// An inherited listening socket.
#[derive(Clone, Debug)]
pub struct InheritedSocket(Arc<OwnedFd>);

/// Address of an inherited socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InheritedAddress {
    /// A unix socket with its path; none for an unnamed or abstract socket.
    Unix(Option<PathBuf>),
    /// A TCP address and port.
    Tcp(SocketAddr),
}

/// The listener of an inherited socket.
pub(crate) enum BoundSocket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl PartialEq for InheritedSocket {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for InheritedSocket {}

impl InheritedSocket {
    /// Takes over the socket.
    ///
    /// # Errors
    /// The descriptor is not a listening stream socket of unix or TCP.
    pub fn new(fd: OwnedFd) -> Result<Self, String> {
        let number = fd.as_raw_fd();
        let ask =
            |what| option(&fd, what).map_err(|error| format!("file descriptor {number}: {error}"));
        if ask(libc::SO_TYPE)? != libc::SOCK_STREAM || ask(libc::SO_ACCEPTCONN)? != 1 {
            return Err(format!("file descriptor {number} is not a listening stream socket"));
        }
        match ask(libc::SO_DOMAIN)? {
            libc::AF_UNIX | libc::AF_INET | libc::AF_INET6 => Ok(Self(Arc::new(fd))),
            other => Err(format!("file descriptor {number} is of family {other}, not unix or TCP")),
        }
    }

    /// Address on which clients connect.
    ///
    /// # Errors
    /// The kernel does not tell the address.
    pub fn place(&self) -> io::Result<InheritedAddress> {
        Ok(match self.adopt()? {
            BoundSocket::Unix(listener) => {
                InheritedAddress::Unix(listener.local_addr()?.as_pathname().map(PathBuf::from))
            }
            BoundSocket::Tcp(listener) => InheritedAddress::Tcp(listener.local_addr()?),
        })
    }

    /// Duplicates the descriptor, for another process.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.0.try_clone()
    }

    /// Duplicates the descriptor, non-blocking.
    pub(crate) fn adopt(&self) -> io::Result<BoundSocket> {
        let fd = self.0.try_clone()?;
        if option(&fd, libc::SO_DOMAIN)? == libc::AF_UNIX {
            let listener = UnixListener::from(fd);
            listener.set_nonblocking(true)?;
            return Ok(BoundSocket::Unix(listener));
        }
        let listener = TcpListener::from(fd);
        listener.set_nonblocking(true)?;
        Ok(BoundSocket::Tcp(listener))
    }
}

fn option(fd: &OwnedFd, what: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value has the size that is said.
    let status = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            what,
            (&raw mut value).cast(),
            &raw mut size,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Address;
    use crate::listen::Listener;
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    #[test]
    fn listening_descriptor_is_accepted_with_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let given = InheritedSocket::new(listener.into()).unwrap();
        assert_eq!(given.place().unwrap(), InheritedAddress::Tcp(address));
        let ours = Listener::bind(&Address::InheritedSocket(given), None).unwrap();
        assert_eq!(ours.port(), Some(address.port()));
        assert!(ours.accept().unwrap().is_none(), "it does not block");
        let _client = TcpStream::connect(address).unwrap();
        assert!(ours.accept().unwrap().is_some());
    }

    #[test]
    fn inherited_socket_file_is_not_removed() {
        let path = std::env::temp_dir().join(format!("headworks-given-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let given = InheritedSocket::new(UnixListener::bind(&path).unwrap().into()).unwrap();
        assert_eq!(given.place().unwrap(), InheritedAddress::Unix(Some(path.clone())));
        drop(Listener::bind(&Address::InheritedSocket(given.clone()), None).unwrap());
        let again = Listener::bind(&Address::InheritedSocket(given), None).unwrap();
        let _client = UnixStream::connect(&path).expect("the maker's file, and it still listens");
        assert!(again.accept().unwrap().is_some());
        drop(again);
        assert!(path.exists());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn non_listening_descriptor_is_refused() {
        let (one, _other) = UnixStream::pair().unwrap();
        let number = one.as_raw_fd();
        let refused = InheritedSocket::new(one.into()).unwrap_err();
        assert_eq!(refused, format!("file descriptor {number} is not a listening stream socket"));
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(InheritedSocket::new(file.into()).unwrap_err().contains("non-socket"));
    }
}
