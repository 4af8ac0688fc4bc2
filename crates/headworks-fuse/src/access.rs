//! Which way leads to a mount. Three are tried, in this order:
//!
//! | way | needs | what others see |
//! |---|---|---|
//! | `Root` | CAP_SYS_ADMIN and /dev/fuse | nothing: the mounts are in a mount namespace of the process and its children, and end with them |
//! | `Fusermount` | the set-user-id program `fusermount3` | the mount; after a kill -9 it stays until `remove_stale` |
//! | `UserNamespace` | /dev/fuse open to everyone, and user namespaces | nothing, as for `Root` |
//!
//! Ubuntu restricts user namespaces, so `fusermount3` is tried first there and everywhere. Namespaces belong to threads: `find` is called
//! before the process starts others, and what it starts later, threads and programs, is inside.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::path::Path;

use crate::channel::Channel;
use crate::mount::{self, Mount, Way};

/// The right to mount, found once for the process.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    way: Way,
}

/// No way leads to a mount, and why.
#[derive(Debug)]
pub struct NoAccess {
    root: io::Error,
    fusermount: io::Error,
    namespace: io::Error,
}

impl fmt::Display for NoAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { root, fusermount, namespace } = self;
        write!(
            f,
            "no directory can be mounted: as root: {root}; by fusermount3: {fusermount}; in a user namespace: {namespace}; install the \
             package fuse3, or give the container --device /dev/fuse --cap-add SYS_ADMIN"
        )
    }
}

impl std::error::Error for NoAccess {}

impl Access {
    /// Finds the first way that works, by a mount on `trial`, an empty directory. Called before the process starts threads.
    pub fn find(trial: &Path) -> Result<Self, NoAccess> {
        let works = |way: Way| Self { way }.mount(trial, "headworks-trial").map(|_| Self { way });
        let private = private_namespace(false);
        let may_mount = private.is_ok();
        let root = match private.and_then(|()| works(Way::Root)) {
            Ok(access) => return Ok(access),
            Err(error) => error,
        };
        let fusermount = match works(Way::Fusermount) {
            Ok(access) => return Ok(access),
            Err(error) => error,
        };
        // A user that may mount lacks FUSE, not a right, and would lose rights to devices inside a user namespace.
        let namespace = match may_mount {
            true => Err(io::Error::other("it would not help root")),
            false => private_namespace(true).and_then(|()| works(Way::UserNamespace)),
        };
        namespace.map_err(|namespace| NoAccess { root, fusermount, namespace })
    }

    /// The way that was found.
    #[must_use]
    pub fn way(&self) -> Way {
        self.way
    }

    /// Mounts on an empty directory; `name` is the source that `mount` and /proc/self/mountinfo show.
    pub fn mount(&self, directory: &Path, name: &str) -> io::Result<(Mount, Channel)> {
        mount::mount(self.way, directory, name)
    }

    /// Mounts a tmpfs of at most `bytes`, where the process has a mount namespace of its own; none where it has not.
    pub fn mount_memory(&self, directory: &Path, bytes: u64) -> io::Result<Option<Mount>> {
        if self.way == Way::Fusermount {
            return Ok(None);
        }
        let options = format!("size={bytes},mode=0755");
        mount::mount_kernel(directory, "headworks", "tmpfs", 0, &options)?;
        Ok(Some(Mount::of_kernel(directory)))
    }
}

/// Gives the calling thread a mount namespace of its own, with a user namespace around it in which it may mount.
pub(crate) fn private_namespace(user: bool) -> io::Result<()> {
    // SAFETY: these calls have no preconditions.
    let (uid, gid) = unsafe { (libc::getuid(), libc::getgid()) };
    let flags = libc::CLONE_NEWNS | if user { libc::CLONE_NEWUSER } else { 0 };
    // SAFETY: the call has no preconditions; it changes what the thread and its children see.
    if unsafe { libc::unshare(flags) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if user {
        // The same numbers inside as outside: files keep their owners, and programs lose the right to mount when they start.
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    let (none, root) = (CString::default(), CString::from(c"/"));
    // SAFETY: the texts live during the call; a change of propagation reads neither type nor data.
    let made = unsafe {
        libc::mount(
            none.as_ptr(),
            root.as_ptr(),
            none.as_ptr(),
            libc::MS_REC | libc::MS_PRIVATE,
            std::ptr::null(),
        )
    };
    if made == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
