//! Dropping privileges (`--user`): images, sockets and rings are opened as the starting user, clients are served as an
//! unprivileged one.
//!
//! ```text
//!   root --look up the user--> open images, sockets, rings --> drop --> serve
//!                                                                 `-- verified: irreversible, no thread keeps a capability
//! ```
//!
//! The C library changes all threads of the process or none. What is opened later, by `ctl add` or a reload, is opened
//! as the user.

use std::ffi::{CStr, CString};
use std::fs::Metadata;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use headworks_core::ConfigError;
use headworks_server::FileOwner;

/// Initial buffer for an entry of the user database; groups with many members need more, up to a limit.
const ENTRY: usize = 16 << 10;
const ENTRY_MAX: usize = 1 << 20;

/// A user to change to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    uid: libc::uid_t,
    gid: libc::gid_t,
    /// Name in the user database; without one there are no supplementary groups.
    name: Option<CString>,
}

fn error(message: impl Into<String>) -> ConfigError {
    ConfigError::new("user", message.into())
}

/// Looks up `USER[:GROUP]`, each a name or a number.
pub(super) fn look_up(text: &str) -> Result<User, ConfigError> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let entry = passwd(user)?;
    let uid = match &entry {
        Some(entry) => entry.uid,
        None => user.parse().map_err(|_| error(format!("there is no user `{user}`")))?,
    };
    let gid = match (group, &entry) {
        (Some(group), _) => group_id(group)?,
        (None, Some(entry)) => entry.gid,
        (None, None) => {
            let message =
                format!("user {uid} is not in the user database and has no group; use {uid}:GROUP");
            return Err(error(message));
        }
    };
    // The kernel takes this value as "unchanged".
    if uid == libc::uid_t::MAX || gid == libc::gid_t::MAX {
        return Err(error(format!("`{text}` is no valid user id")));
    }
    if uid == 0 {
        return Err(error("root drops no privileges; name another user or leave --user out"));
    }
    Ok(User { uid, gid, name: entry.map(|entry| entry.name) })
}

/// Looks up `USER`, `USER:GROUP` or `:GROUP` of a file, each a name or a number.
pub(super) fn look_up_owner(text: &str) -> Result<FileOwner, ConfigError> {
    let (user, group) =
        text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let known = |id: libc::uid_t| match id {
        // The kernel takes this value as "unchanged".
        libc::uid_t::MAX => Err(error(format!("`{text}` is no valid user id"))),
        id => Ok(Some(id)),
    };
    let user = match (user, group) {
        ("", Some(_)) => None,
        (user, _) => match passwd(user)? {
            Some(entry) => known(entry.uid)?,
            None => {
                let id = user.parse().map_err(|_| error(format!("there is no user `{user}`")))?;
                known(id)?
            }
        },
    };
    let group = group.map(group_id).transpose()?.map(known).transpose()?.flatten();
    Ok(FileOwner { user, group })
}

/// The owner of a socket's file by numbers: `1000`, `1000:1000` or `:1000`.
pub fn owner_by_numbers(text: &str) -> Result<String, String> {
    let owner = look_up_owner(text).map_err(|error| error.message)?;
    let word = |id: Option<libc::uid_t>| id.map_or_else(String::new, |id| id.to_string());
    let group = owner.group.map_or_else(String::new, |group| format!(":{group}"));
    Ok(word(owner.user) + &group)
}

impl User {
    /// The user's id.
    pub(super) fn uid(&self) -> libc::uid_t {
        self.uid
    }

    /// The numbers of the user and of the group.
    pub(super) fn ids(&self) -> (libc::uid_t, libc::gid_t) {
        (self.uid, self.gid)
    }

    /// Checks and prepares the change before anything is opened and any thread started.
    pub(super) fn prepare(&self) -> Result<(), ConfigError> {
        // SAFETY: it cannot fail.
        if unsafe { libc::geteuid() } != 0 && !self.is_current() {
            let message = "only root can change to another user; start as root or leave --user out";
            return Err(error(message));
        }
        no_new_privileges()
    }

    /// Makes the user the owner of a file, so that it can be reached and removed.
    pub(super) fn set_owner(&self, path: &Path) -> Result<(), ConfigError> {
        std::os::unix::fs::lchown(path, Some(self.uid), Some(self.gid)).map_err(|reason| {
            error(format!(
                "cannot make user {} the owner of {}: {reason}",
                self.uid,
                path.display()
            ))
        })
    }

    /// Warnings about `files` and the pid file that the user cannot remove; called as the user.
    pub(super) fn removal_warnings(
        &self,
        files: &[PathBuf],
        pid_file: Option<&Path>,
    ) -> Vec<String> {
        let is_kept = |path: &&Path| !may_remove(path);
        let kept = files.iter().map(PathBuf::as_path).filter(is_kept);
        let kept: Vec<String> = kept.map(|path| path.display().to_string()).collect();
        let kept = (!kept.is_empty()).then(|| {
            let names = kept.join(", ");
            format!(
                "user {} cannot remove {names} at shutdown; the next start removes it",
                self.uid
            )
        });
        let emptied = pid_file.filter(is_kept).map(|path| {
            let path = path.display();
            format!(
                "user {} cannot remove the pid file {path} at shutdown; it is emptied instead",
                self.uid
            )
        });
        kept.into_iter().chain(emptied).collect()
    }

    /// Changes all threads to the user, irreversibly.
    pub(super) fn apply(&self) -> Result<(), ConfigError> {
        if self.is_current() {
            // A service manager has changed it already.
            return self.verify();
        }
        self.change().map_err(|(what, reason)| {
            error(format!("cannot change to user {} ({what}): {reason}", self.uid))
        })?;
        self.verify()
    }

    fn is_current(&self) -> bool {
        // SAFETY: they cannot fail.
        unsafe { libc::geteuid() == self.uid && libc::getegid() == self.gid }
    }

    fn change(&self) -> Result<(), (&'static str, io::Error)> {
        let checked = |what, status| match status {
            0 => Ok(()),
            _ => Err((what, io::Error::last_os_error())),
        };
        let Self { uid, gid, .. } = *self;
        // SAFETY: the only pointers are a terminated name and a group id; the C library changes all threads.
        unsafe {
            match &self.name {
                Some(name) => checked("initgroups", libc::initgroups(name.as_ptr(), gid))?,
                None => checked("setgroups", libc::setgroups(1, &raw const gid))?,
            }
            checked("setresgid", libc::setresgid(gid, gid, gid))?;
            checked("setresuid", libc::setresuid(uid, uid, uid))
        }
    }

    /// Verifies the ids of all threads, and that the change is irreversible.
    fn verify(&self) -> Result<(), ConfigError> {
        // SAFETY: only numbers are passed.
        let is_back = unsafe {
            libc::setresuid(0, 0, 0) == 0
                || libc::setuid(0) == 0
                || libc::setresgid(0, 0, 0) == 0 && self.gid != 0
        };
        if is_back {
            return Err(error(
                "the change to the user could be reversed; the server does not start",
            ));
        }
        let broken = |reason: io::Error| error(format!("cannot read /proc/self/task: {reason}"));
        for task in std::fs::read_dir("/proc/self/task").map_err(broken)? {
            let path = task.map_err(broken)?.path().join("status");
            let Ok(status) = std::fs::read_to_string(path) else {
                // A kernel worker thread that has just ended.
                continue;
            };
            check_thread(&status, self).map_err(error)?;
        }
        Ok(())
    }
}

fn may_remove(path: &Path) -> bool {
    let Some(directory) = path.parent().filter(|directory| may_change(directory)) else {
        return false;
    };
    // SAFETY: it cannot fail.
    let uid = unsafe { libc::geteuid() };
    // In a sticky directory such as /tmp only owners remove files.
    let sticky =
        |directory: &Metadata| directory.mode() & libc::S_ISVTX != 0 && directory.uid() != uid;
    !directory.metadata().is_ok_and(|directory| sticky(&directory))
        || path.symlink_metadata().is_ok_and(|file| file.uid() == uid)
}

fn may_change(directory: &Path) -> bool {
    CString::new(directory.as_os_str().as_bytes()).is_ok_and(|name| {
        // SAFETY: the name is terminated.
        unsafe { libc::access(name.as_ptr(), libc::W_OK | libc::X_OK) == 0 }
    })
}

/// Checks a thread's status file: its ids are the user's, and it has no capabilities.
fn check_thread(status: &str, user: &User) -> Result<(), String> {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_default().split_whitespace()
    };
    let name = field("Name:").next().unwrap_or("?");
    let is_all = |name: &str, wanted: u32| {
        let mut fields = field(name).peekable();
        fields.peek().is_some() && fields.all(|one| one == wanted.to_string())
    };
    if !is_all("Uid:", user.uid) || !is_all("Gid:", user.gid) {
        return Err(format!("thread {name} still has another user or group"));
    }
    for set in ["CapPrm:", "CapEff:", "CapAmb:"] {
        let left = field(set).next().and_then(|set| u64::from_str_radix(set, 16).ok());
        if left != Some(0) {
            let set = set.trim_end_matches(':');
            return Err(format!(
                "thread {name} keeps capabilities ({set}); start as root, or without capabilities"
            ));
        }
    }
    Ok(())
}

/// Sets no_new_privs: set-user-id bits and file capabilities have no effect in this process and its children.
fn no_new_privileges() -> Result<(), ConfigError> {
    // SAFETY: only numbers are passed.
    match unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => {
            let reason = io::Error::last_os_error();
            Err(error(format!("cannot set no_new_privs: {reason}")))
        }
    }
}

struct Entry {
    uid: libc::uid_t,
    gid: libc::gid_t,
    name: CString,
}

/// Looks up a user by name, or by number if no user has that name.
fn passwd(user: &str) -> Result<Option<Entry>, ConfigError> {
    let name = CString::new(user).map_err(|_| error("a user name cannot contain NUL"))?;
    let by_name = query(|entry: *mut libc::passwd, buffer, len, found| {
        // SAFETY: as `query` promises; the name is terminated.
        unsafe { libc::getpwnam_r(name.as_ptr(), entry, buffer, len, found) }
    });
    // Names take precedence over numbers, as in chown(1).
    let found = match (by_name?, user.parse::<libc::uid_t>()) {
        (Some(found), _) => Some(found),
        (None, Ok(uid)) => query(|entry: *mut libc::passwd, buffer, len, found| {
            // SAFETY: as `query` promises.
            unsafe { libc::getpwuid_r(uid, entry, buffer, len, found) }
        })?,
        (None, Err(_)) => None,
    };
    Ok(found.map(|(entry, _buffer)| Entry {
        uid: entry.pw_uid,
        gid: entry.pw_gid,
        // SAFETY: the entry's strings lie in the buffer, which lives until the end of this function.
        name: unsafe { CStr::from_ptr(entry.pw_name) }.to_owned(),
    }))
}

fn group_id(group: &str) -> Result<libc::gid_t, ConfigError> {
    let name = CString::new(group).map_err(|_| error("a group name cannot contain NUL"))?;
    let found = query(|entry: *mut libc::group, buffer, len, found| {
        // SAFETY: as `query` promises; the name is terminated.
        unsafe { libc::getgrnam_r(name.as_ptr(), entry, buffer, len, found) }
    })?;
    match found {
        Some((entry, _buffer)) => Ok(entry.gr_gid),
        None => group.parse().map_err(|_| error(format!("there is no group `{group}`"))),
    }
}

/// Queries the user database with a growing buffer: `call` gets the entry to fill, the buffer with its length, and the
/// result pointer. Strings of the entry lie in the returned buffer.
fn query<T>(
    call: impl Fn(*mut T, *mut libc::c_char, usize, *mut *mut T) -> libc::c_int,
) -> Result<Option<(T, Vec<libc::c_char>)>, ConfigError> {
    let mut size = ENTRY;
    loop {
        let mut buffer: Vec<libc::c_char> = vec![0; size];
        let mut entry = MaybeUninit::<T>::uninit();
        let mut found = std::ptr::null_mut();
        match call(entry.as_mut_ptr(), buffer.as_mut_ptr(), size, &raw mut found) {
            0 if found.is_null() => return Ok(None),
            // SAFETY: the call filled what it reports as found.
            0 => return Ok(Some((unsafe { entry.assume_init() }, buffer))),
            libc::ERANGE if size < ENTRY_MAX => size *= 2,
            // Error numbers for an unknown name, see getpwnam(3).
            libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM => return Ok(None),
            number => {
                let reason = io::Error::from_raw_os_error(number);
                return Err(error(format!("cannot read the user database: {reason}")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_resolve_by_name_and_number() {
        // Every Unix has these.
        let daemon = look_up("daemon").unwrap();
        assert_eq!((daemon.uid, daemon.gid), (1, 1));
        assert_eq!(look_up("1").unwrap(), daemon, "a number with an entry has its group and name");
        let other = look_up("daemon:sys").unwrap();
        assert_eq!(other.uid, 1);
        assert_ne!(other.gid, 1);
        let nameless = look_up("4000000001:4000000002").unwrap();
        assert_eq!(nameless, User { uid: 4_000_000_001, gid: 4_000_000_002, name: None });
    }

    #[test]
    fn invalid_users_name_the_error() {
        for (text, expected) in [
            ("no-such-user", "there is no user `no-such-user`"),
            ("", "there is no user ``"),
            ("-1", "there is no user `-1`"),
            ("daemon:no-such-group", "there is no group `no-such-group`"),
            (
                "4000000001",
                "user 4000000001 is not in the user database and has no group; use 4000000001:GROUP",
            ),
            ("4294967295:1", "`4294967295:1` is no valid user id"),
            ("root", "root drops no privileges; name another user or leave --user out"),
            ("0:daemon", "root drops no privileges; name another user or leave --user out"),
        ] {
            assert_eq!(look_up(text).unwrap_err().message, expected, "{text}");
        }
    }

    #[test]
    fn owner_of_a_file_is_user_group_or_both() {
        let owner = |user, group| FileOwner { user, group };
        assert_eq!(look_up_owner("daemon").unwrap(), owner(Some(1), None));
        assert_eq!(look_up_owner("daemon:daemon").unwrap(), owner(Some(1), Some(1)));
        assert_eq!(look_up_owner(":daemon").unwrap(), owner(None, Some(1)));
        assert_eq!(look_up_owner("0:4000000002").unwrap(), owner(Some(0), Some(4_000_000_002)));
        for (text, said) in [
            ("", "there is no user ``"),
            ("no-such-user", "there is no user"),
            ("daemon:", "there is no group ``"),
            (":no-such-group", "there is no group"),
            ("4294967295", "no valid user id"),
        ] {
            let error = look_up_owner(text).unwrap_err();
            assert!(error.message.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn thread_with_other_id_or_capability_is_rejected() {
        let user = User { uid: 7, gid: 8, name: None };
        let status = |uid: &str, gid: &str, cap: &str| {
            format!(
                "Name:\tshard-0\nUid:\t{uid}\nGid:\t{gid}\nCapPrm:\t{cap}\nCapEff:\t0000000000000000\nCapAmb:\t0\n"
            )
        };
        let none = "0000000000000000";
        assert_eq!(check_thread(&status("7\t7\t7\t7", "8\t8\t8\t8", none), &user), Ok(()));
        assert!(
            check_thread(&status("7\t7\t0\t7", "8\t8\t8\t8", none), &user).is_err(),
            "saved id"
        );
        assert!(
            check_thread(&status("7\t7\t7\t7", "0\t8\t8\t8", none), &user).is_err(),
            "real group"
        );
        let kept = check_thread(&status("7\t7\t7\t7", "8\t8\t8\t8", "0000000000000080"), &user);
        assert!(kept.unwrap_err().contains("CapPrm"));
        assert!(check_thread("", &user).is_err(), "what is not said is not believed");
    }
}
