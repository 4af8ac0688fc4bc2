//! Who may use the control socket: the user that the server runs as, and root.
//!
//! The socket's file says so already (mode 600); this holds when somebody gave the file another mode, or when a service manager
//! made it. The kernel noted who connected when the client did, so what a client becomes later changes nothing.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use super::rpc::RpcFault;

/// Lets the client in, or says why not.
///
/// # Errors
/// What it is told.
pub fn check(stream: &UnixStream) -> Result<(), RpcFault> {
    // SAFETY: it cannot fail.
    let own = unsafe { libc::geteuid() };
    let peer = peer_uid(stream).map_err(|error| {
        RpcFault::refused("EPERM", format!("cannot read the credentials of the peer: {error}"))
    })?;
    judge(peer, own)
}

fn judge(peer: libc::uid_t, own: libc::uid_t) -> Result<(), RpcFault> {
    if peer == own || peer == 0 {
        return Ok(());
    }
    tracing::warn!("user {peer} was refused the control socket");
    let message = format!(
        "the control socket accepts only the server's user ({own}) and root, not user {peer}"
    );
    Err(RpcFault::refused("EPERM", message))
}

fn peer_uid(stream: &UnixStream) -> io::Result<libc::uid_t> {
    let mut peer = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the structure has the size that is said.
    let status = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut size,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(peer.uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_who_connected() {
        let (one, _other) = UnixStream::pair().unwrap();
        // SAFETY: it cannot fail.
        assert_eq!(peer_uid(&one).unwrap(), unsafe { libc::geteuid() });
        assert!(check(&one).is_ok());
    }

    #[test]
    fn the_servers_user_and_root_are_let_in_and_nobody_else() {
        assert!(judge(1000, 1000).is_ok());
        assert!(judge(0, 1000).is_ok());
        assert!(judge(1001, 1000).is_err());
        assert!(judge(1000, 0).is_err(), "a server of root's is root's alone");
        // An id that the server's user namespace has no name for.
        assert!(judge(65534, 1000).is_err());
    }
}
