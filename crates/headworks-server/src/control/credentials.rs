//! Access check of the control socket: only the server's user and root.
//!
//! The socket's file has mode 600 already; this check holds when its mode was changed or a service manager created it.
//! The kernel records the peer's user at the connect.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use headworks_control::RpcFault;

/// Checks the user of a new client.
///
/// # Errors
/// The error that the client is sent.
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
    fn peer_user_comes_from_kernel() {
        let (one, _other) = UnixStream::pair().unwrap();
        // SAFETY: it cannot fail.
        assert_eq!(peer_uid(&one).unwrap(), unsafe { libc::geteuid() });
        assert!(check(&one).is_ok());
    }

    #[test]
    fn only_server_user_and_root_are_admitted() {
        assert!(judge(1000, 1000).is_ok());
        assert!(judge(0, 1000).is_ok());
        assert!(judge(1001, 1000).is_err());
        assert!(judge(1000, 0).is_err(), "a server of root's is root's alone");
        // An id that the server's user namespace has no name for.
        assert!(judge(65534, 1000).is_err());
    }
}
