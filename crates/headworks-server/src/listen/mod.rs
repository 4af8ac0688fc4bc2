//! Listening sockets for clients: unix and TCP; and directories, whose files FUSE serves.
//!
//! A directory accepts no client: its descriptor is ready once, when clients are accepted, and then its thread begins.
//!
//! The file of a unix socket is replaced when no server listens behind it, refused when one does, created with the
//! user's mode, and removed at the end if it is still the same file. Files of inherited sockets are left alone.
//!
//! Rule: a socket's file is never more permissive than the mode that was asked for, whatever the umask is, and never looked at through
//! a link: it is bound under a hidden name with the mode of the unbound socket (which the umask can only narrow), gets its owner and
//! mode through a descriptor of the socket's own file, and only then its name. All unix sockets of the server pass [`bind_unix`].

pub(crate) mod inherited;
pub(crate) mod listener_set;
pub(crate) mod opened_listeners;

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};

use headworks_core::ConfigError;

use crate::listen::inherited::{BoundSocket, InheritedAddress, InheritedSocket};
use crate::successor::handover::{HandedListener, ListenerRole};
use headworks_nbd::client::connect_unix;
use headworks_nbd::tls::TlsAcceptor;

/// Longest path of a unix socket: `sun_path` without its NUL.
pub const PATH_MAX: usize = 107;

/// Clients that may wait to be accepted; the kernel has a bound of its own (net.core.somaxconn).
const BACKLOG: libc::c_int = libc::c_int::MAX;

/// Attempts to connect to a possibly dead server, or to listen in its place: half a second in all.
const CONNECT_TRIES: u32 = 20;
/// Longest wait for a server that does not accept its clients.
const BACKLOG_LIMIT: std::time::Duration = std::time::Duration::from_millis(500);
const CONNECT_PAUSE: std::time::Duration = std::time::Duration::from_millis(25);

/// Address on which a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A unix socket with its file.
    Unix {
        /// Path of the socket's file.
        path: PathBuf,
        /// Mode bits of the file.
        mode: u32,
    },
    /// A TCP address and port.
    Tcp(SocketAddr),
    /// An inherited listening socket.
    InheritedSocket(InheritedSocket),
    /// A directory in which exports are files.
    Directory(PathBuf),
}

impl Address {
    /// The address as text, by which a new process finds its listener; none for an inherited socket.
    #[must_use]
    pub fn key(&self) -> Option<String> {
        match self {
            // Two paths that are not UTF-8 are not to have one text.
            Self::Unix { path, .. } | Self::Directory(path) => Some(path.to_str().map_or_else(
                || path.as_os_str().as_bytes().escape_ascii().to_string(),
                str::to_owned,
            )),
            Self::Tcp(address) => Some(address.to_string()),
            Self::InheritedSocket(_) => None,
        }
    }

    /// Whether clients connect by TCP.
    pub(crate) fn is_tcp(&self) -> bool {
        match self {
            Self::Unix { .. } | Self::Directory(_) => false,
            Self::Tcp(_) => true,
            Self::InheritedSocket(given) => {
                given.place().is_ok_and(|place| matches!(place, InheritedAddress::Tcp(_)))
            }
        }
    }

    /// Checks what can be checked without listening; a socket of a running server is not an error.
    ///
    /// # Errors
    /// The address cannot be used.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        match self {
            Self::Unix { path, .. } => check_unix("unix", path),
            Self::Directory(path) => check_directory(path),
            Self::Tcp(_) | Self::InheritedSocket(_) => Ok(()),
        }
    }
}

fn check_directory(path: &Path) -> Result<(), ConfigError> {
    let shown = path.display();
    let wrong = |what| Err(ConfigError::new("path", what));
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => wrong(format!("{shown} is not a directory")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            wrong(format!("there is no directory {shown}; make it first"))
        }
        Err(error) => wrong(format!("{shown}: {error}")),
    }
}

/// Checks the path of a unix socket; `option` names it in errors.
///
/// # Errors
/// It is too long, its directory is missing, or another kind of file is there.
pub(crate) fn check_unix(option: &'static str, path: &Path) -> Result<(), ConfigError> {
    suits_socket(path).map_err(|message| ConfigError::new(option, message))
}

fn suits_socket(path: &Path) -> Result<(), String> {
    if path.as_os_str().len() > PATH_MAX {
        return Err(format!(
            "{} is longer than the {PATH_MAX} bytes that a socket's path may have",
            path.display()
        ));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        return Err(format!("no such directory: {}", folder.display()));
    }
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            Err(format!("{} exists and is not a socket; name another path", path.display()))
        }
        _ => Ok(()),
    }
}

enum Socket {
    Unix { listener: UnixListener, file: Option<OwnFile> },
    Tcp(TcpListener),
    Directory { begins: OwnedFd, path: PathBuf },
}

/// Owner and group of a socket's file; none keeps what the process gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileOwner {
    /// User id of the owner.
    pub user: Option<u32>,
    /// Group id of the file.
    pub group: Option<u32>,
}

/// A listener of clients, and how they are served.
pub struct ClientListener {
    /// The socket that clients connect to.
    pub listener: Listener,
    /// Name of the listener in messages.
    pub name: Arc<str>,
    /// TLS configuration; none without TLS.
    pub acceptor: Option<Arc<TlsAcceptor>>,
    /// The way to the thread that serves clients of another kind; none for a listener of NBD clients.
    pub thread: Option<DoorThread>,
}

/// The thread of a listener whose clients speak no NBD. It ends when this is dropped.
pub enum DoorThread {
    /// It serves front ends of virtual machines, whose sockets it is given.
    FrontEnds(SyncSender<OwnedFd>),
    /// It serves exports as files.
    Directory(Directory),
}

/// A directory whose files are served, until this is dropped.
pub struct Directory {
    /// Serves the exports that are there now, as the listener begins to serve clients.
    pub begin: Box<dyn Fn() + Send>,
    /// What comes when the exports that were there at the beginning have been tried: why one has no file.
    pub first: Option<Receiver<Result<(), String>>>,
}

/// The file of a unix socket created here.
struct OwnFile {
    path: PathBuf,
    inode: u64,
    /// False while the file is that of a process which hands over and may go on.
    ours: Arc<AtomicBool>,
}

/// A listening socket; closing it removes its file.
pub struct Listener(Socket);

impl Listener {
    /// Listens on an address; `owner` gets the file of a unix socket.
    ///
    /// # Errors
    /// The address cannot be used.
    pub fn bind(address: &Address, owner: Option<FileOwner>) -> Result<Self, ConfigError> {
        match address {
            Address::Unix { path, mode } => {
                bind_unix(path, *mode, owner).map_err(|message| ConfigError::new("unix", message))
            }
            Address::Tcp(address) => bind_tcp(*address),
            Address::InheritedSocket(given) => Self::adopt("listen", given),
            Address::Directory(path) => bind_directory(path),
        }
    }

    /// Listens on an inherited socket; `option` names it in errors.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn adopt(option: &'static str, given: &InheritedSocket) -> Result<Self, ConfigError> {
        match given.adopt() {
            Ok(BoundSocket::Unix(listener)) => Ok(Self(Socket::Unix { listener, file: None })),
            Ok(BoundSocket::Tcp(listener)) => Ok(Self(Socket::Tcp(listener))),
            Err(error) => {
                let message = format!("cannot use the passed socket: {error}");
                Err(ConfigError::new(option, message))
            }
        }
    }

    /// Listens on a unix socket at `path`; `option` names it in errors.
    ///
    /// # Errors
    /// The path cannot be used.
    pub fn bind_unix(option: &'static str, path: &Path, mode: u32) -> Result<Self, ConfigError> {
        bind_unix(path, mode, None).map_err(|message| ConfigError::new(option, message))
    }

    /// What another process needs to listen in place of this one; `address` is the one that was asked for. None for a directory.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub(crate) fn hand_over(
        &self,
        role: ListenerRole,
        address: String,
    ) -> io::Result<Option<HandedListener>> {
        let (socket, file) = match &self.0 {
            Socket::Unix { listener, file } => {
                (OwnedFd::from(listener.try_clone()?), file.as_ref())
            }
            Socket::Tcp(listener) => (OwnedFd::from(listener.try_clone()?), None),
            Socket::Directory { .. } => return Ok(None),
        };
        let file = file.map(|file| (file.path.clone(), file.inode));
        Ok(Some(HandedListener { role, address, file, socket }))
    }

    /// Listens in place of another process. The socket's file is removed at the end if that process has `left` by then.
    ///
    /// # Errors
    /// The descriptor is no listening socket.
    pub(crate) fn take_over(
        handed: HandedListener,
        left: &Arc<AtomicBool>,
    ) -> Result<Self, ConfigError> {
        let HandedListener { file, socket, .. } = handed;
        let fail = |message| ConfigError::new("upgrade", message);
        let given = InheritedSocket::new(socket).map_err(fail)?;
        let mut listener = Self::adopt("upgrade", &given)?;
        if let Socket::Unix { file: own, .. } = &mut listener.0 {
            let ours = || Arc::clone(left);
            *own = file.map(|(path, inode)| OwnFile { path, inode, ours: ours() });
        }
        Ok(listener)
    }

    /// Gives the file of a unix socket that was taken over the mode of its address, and an owner.
    ///
    /// # Errors
    /// The process may not change the file.
    pub(crate) fn dress(
        &self,
        address: &Address,
        owner: Option<FileOwner>,
    ) -> Result<(), ConfigError> {
        let Address::Unix { mode, .. } = address else { return Ok(()) };
        let Socket::Unix { file: Some(file), .. } = &self.0 else { return Ok(()) };
        // Without its file a socket has only the clients that it has.
        if !fs::symlink_metadata(&file.path).is_ok_and(|found| found.ino() == file.inode) {
            return Ok(());
        }
        dress_file(&file.path, Some(file.inode), *mode, owner)
            .map_err(|message| ConfigError::new("unix", message))
    }

    /// The address for display; none for an inherited unix socket without a path.
    pub(crate) fn shown(&self) -> Option<String> {
        match &self.0 {
            Socket::Unix { file: Some(file), .. } => Some(file.path.to_string_lossy().into_owned()),
            Socket::Unix { listener, file: None } => {
                let address = listener.local_addr().ok()?;
                Some(address.as_pathname()?.to_string_lossy().into_owned())
            }
            Socket::Tcp(listener) => listener.local_addr().ok().map(|address| address.to_string()),
            Socket::Directory { path, .. } => Some(path.to_string_lossy().into_owned()),
        }
    }

    /// File descriptor to wait on.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        match &self.0 {
            Socket::Unix { listener, .. } => listener.as_raw_fd(),
            Socket::Tcp(listener) => listener.as_raw_fd(),
            Socket::Directory { begins, .. } => begins.as_raw_fd(),
        }
    }

    /// TCP port; none for unix sockets.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match &self.0 {
            Socket::Unix { .. } | Socket::Directory { .. } => None,
            Socket::Tcp(listener) => listener.local_addr().ok().map(|address| address.port()),
        }
    }

    /// Accepts the next client, if one waits; its socket is non-blocking.
    ///
    /// # Errors
    /// No file descriptor is left, or a similar failure.
    pub fn accept(&self) -> io::Result<Option<(OwnedFd, String)>> {
        let accepted = match &self.0 {
            Socket::Directory { .. } => return Ok(None),
            Socket::Unix { listener, .. } => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                Ok((OwnedFd::from(stream), "unix".to_owned()))
            }),
            Socket::Tcp(listener) => listener.accept().and_then(|(stream, peer)| {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                Ok((OwnedFd::from(stream), peer.to_string()))
            }),
        };
        match accepted {
            Ok(accepted) => Ok(Some(accepted)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            // The client closed before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Acquire: pairs with the store when the other process has left.
        if let Socket::Unix { file: Some(OwnFile { path, inode, ours }), .. } = &self.0
            && ours.load(Ordering::Acquire)
            && fs::symlink_metadata(path).is_ok_and(|file| file.ino() == *inode)
        {
            let _ = fs::remove_file(path);
        }
    }
}

fn bind_directory(path: &Path) -> Result<Listener, ConfigError> {
    check_directory(path)?;
    // SAFETY: no pointers.
    let fd = unsafe { libc::eventfd(1, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(ConfigError::new("listen", io::Error::last_os_error().to_string()));
    }
    // SAFETY: the descriptor is new and belongs to nothing else.
    let begins = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(Listener(Socket::Directory { begins, path: path.to_owned() }))
}

fn bind_unix(path: &Path, mode: u32, owner: Option<FileOwner>) -> Result<Listener, String> {
    let fail = |what: &str, error: io::Error| format!("{what} {}: {error}", path.display());
    suits_socket(path)?;
    remove_stale(path)?;
    let (hidden, _folder) = hidden_name(path).map_err(|error| fail("cannot listen at", error))?;
    let _ = fs::remove_file(&hidden);
    // Closed to all until it has its owner.
    let first_mode = if owner.is_some() { 0 } else { mode };
    let listener = bind_with_mode(&hidden, first_mode);
    let listener = listener.map_err(|error| fail("cannot listen at", error))?;
    let placed = dress_file(&hidden, None, mode, owner).and_then(|()| {
        listener
            .set_nonblocking(true)
            .and_then(|()| fs::hard_link(&hidden, path))
            .map_err(|error| error.to_string())
    });
    let _ = fs::remove_file(&hidden);
    placed.map_err(|error| format!("cannot create {}: {error}", path.display()))?;
    let file = fs::symlink_metadata(path).map_err(|error| fail("cannot look at", error))?;
    let ours = Arc::new(AtomicBool::new(true));
    let file = OwnFile { path: path.to_owned(), inode: file.ino(), ours };
    Ok(Listener(Socket::Unix { listener, file: Some(file) }))
}

/// Listens at a path whose file gets `mode`, less the umask, in the same step: Linux gives it the mode of the unbound socket.
fn bind_with_mode(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let done = |result: libc::c_int| match result {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: no pointers; the descriptor is owned from here on.
    let socket = unsafe { OwnedFd::from_raw_fd(done(libc::socket(libc::AF_UNIX, kind, 0))?) };
    // SAFETY: plain data, zeros of which are a valid value.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() > PATH_MAX || bytes.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (place, byte) in address.sun_path.iter_mut().zip(bytes) {
        *place = *byte as libc::c_char;
    }
    let length = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: a descriptor that is ours, and an address of this length whose path ends with a NUL.
    unsafe {
        done(libc::fchmod(socket.as_raw_fd(), mode))?;
        done(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length))?;
        done(libc::listen(socket.as_raw_fd(), BACKLOG))?;
    }
    Ok(socket.into())
}

/// Gives the file of a socket its owner and mode. Another kind of file, or another socket than `inode`, is left alone: another user
/// who may write to the folder can put it there, and this process may be root.
pub(crate) fn dress_file(
    path: &Path,
    inode: Option<u64>,
    mode: u32,
    owner: Option<FileOwner>,
) -> Result<(), String> {
    let fail = |error: io::Error| format!("cannot look at {}: {error}", path.display());
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    let file = fs::File::options().read(true).custom_flags(flags).open(path).map_err(fail)?;
    let found = file.metadata().map_err(fail)?;
    if !found.file_type().is_socket() || inode.is_some_and(|inode| inode != found.ino()) {
        return Err(format!("{} is not the server's socket any more", path.display()));
    }
    // By the open file, which cannot be exchanged.
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    let FileOwner { user, group } = owner.unwrap_or_default();
    let [user, group] =
        [user.filter(|id| *id != found.uid()), group.filter(|id| *id != found.gid())];
    if user.or(group).is_none() && found.mode() & 0o777 == mode {
        return Ok(());
    }
    if user.or(group).is_some() {
        std::os::unix::fs::chown(&own, user, group).map_err(|error| {
            let path = path.display();
            format!("cannot give {path} to its owner: {error}; start as root, or leave owner out")
        })?;
    }
    // After the owner: a change of it may clear bits.
    fs::set_permissions(&own, fs::Permissions::from_mode(mode))
        .map_err(|error| format!("cannot set the mode of {}: {error}", path.display()))
}

/// A temporary name beside `path`. If it is too long for a socket, it goes through a descriptor of its folder, which
/// must stay open.
fn hidden_name(path: &Path) -> io::Result<(PathBuf, Option<fs::File>)> {
    let name = format!(".hw{:x}", std::process::id());
    let beside = path.with_file_name(&name);
    let Some(folder) = path.parent().filter(|_| beside.as_os_str().len() > PATH_MAX) else {
        return Ok((beside, None));
    };
    let folder = fs::File::options().read(true).custom_flags(libc::O_PATH).open(folder)?;
    Ok((format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()).into(), Some(folder)))
}

/// Connects to a possibly dead server. The kernel closes the listener of a killed server some milliseconds after the
/// process is gone.
fn connect_with_retries(path: &Path) -> io::Result<UnixStream> {
    for _ in 0..CONNECT_TRIES {
        match connect_unix(path, BACKLOG_LIMIT) {
            Ok(_) => std::thread::sleep(CONNECT_PAUSE),
            refused => return refused,
        }
    }
    connect_unix(path, BACKLOG_LIMIT)
}

/// Removes the socket file of a server that died.
fn remove_stale(path: &Path) -> Result<(), String> {
    if fs::symlink_metadata(path).is_err() {
        return Ok(());
    }
    let is_late = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
    };
    match connect_with_retries(path) {
        // A server that does not accept its clients has a full backlog, and lives.
        found if found.as_ref().err().is_none_or(is_late) => Err(format!(
            "another server listens at {}; stop it or name another path",
            path.display()
        )),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|error| format!("cannot remove the stale socket {}: {error}", path.display())),
        Err(error) => Err(format!("cannot check whether {} is in use: {error}", path.display())),
    }
}

/// Listens at an address; one in use is tried again for a while, since the kernel closes the listener of a killed server
/// some milliseconds after the process is gone.
pub(crate) fn bind_with_retries(address: SocketAddr) -> io::Result<TcpListener> {
    for _ in 0..CONNECT_TRIES {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                std::thread::sleep(CONNECT_PAUSE);
            }
            result => return result,
        }
    }
    TcpListener::bind(address)
}

fn bind_tcp(address: SocketAddr) -> Result<Listener, ConfigError> {
    let listener = bind_with_retries(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|error| {
            ConfigError::new("port", format!("cannot listen at {address}: {error}"))
        })?;
    Ok(Listener(Socket::Tcp(listener)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> PathBuf {
        let directory =
            std::env::temp_dir().join(format!("headworks-listener-{}-{name}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        directory.join("socket")
    }

    fn bind(path: &Path) -> Result<Listener, ConfigError> {
        Listener::bind(&Address::Unix { path: path.to_owned(), mode: 0o600 }, None)
    }

    #[test]
    fn live_socket_with_a_full_backlog_is_kept() {
        let path = place("full");
        let (_there, mut waiting) = (UnixListener::bind(&path).unwrap(), Vec::new());
        while let Ok(client) = connect_unix(&path, std::time::Duration::from_millis(50)) {
            waiting.push(client);
        }
        let refused = bind(&path).err().unwrap();
        assert!(refused.message.contains("another server listens"), "{refused}");
        assert!(path.exists());
        drop(waiting);
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn stale_socket_is_replaced_and_live_one_kept() {
        let path = place("stale");
        drop(UnixListener::bind(&path).unwrap());
        let ours = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let refused = bind(&path).err().unwrap();
        assert!(refused.message.contains("another server listens"), "{refused}");
        assert!(UnixStream::connect(&path).is_ok());
        drop(ours);
        assert!(!path.exists(), "the socket goes with its server");
    }

    #[test]
    fn longest_socket_path_is_accepted() {
        let folder = place("long").parent().unwrap().to_owned();
        for len in [PATH_MAX, PATH_MAX + 1] {
            let name = "n".repeat(len - folder.as_os_str().len() - 3);
            let inner = folder.join(name);
            fs::create_dir_all(&inner).unwrap();
            let path = inner.join("s");
            assert_eq!(path.as_os_str().len(), len);
            match bind(&path) {
                Ok(_listener) => {
                    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
                    assert!(len == PATH_MAX && UnixStream::connect(&path).is_ok());
                    assert_eq!(fs::read_dir(&inner).unwrap().count(), 1, "nothing else is left");
                }
                Err(error) => assert!(len > PATH_MAX, "{error}"),
            }
        }
    }

    /// Between its bind and the mode that was asked for, whatever the umask is: a test's is that of its process.
    #[test]
    fn bound_socket_never_has_more_than_its_mode() {
        for mode in [0, 0o600, 0o660, 0o666] {
            let path = place("mode");
            let listener = bind_with_mode(&path, mode).unwrap();
            let found = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
            assert_eq!(found & !mode, 0, "{found:o} of {mode:o}");
            if mode & 0o200 != 0 {
                assert!(UnixStream::connect(&path).is_ok() && listener.accept().is_ok());
            }
            fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn paths_that_are_not_utf8_have_keys_of_their_own() {
        use std::os::unix::ffi::OsStringExt;
        let key = |bytes: &[u8]| {
            let path = std::ffi::OsString::from_vec(bytes.to_vec()).into();
            Address::Unix { path, mode: 0o600 }.key().unwrap()
        };
        assert_eq!(key("/run/\u{fc}".as_bytes()), "/run/\u{fc}");
        assert_ne!(key(b"/run/\xfe"), key(b"/run/\xff"));
    }

    #[test]
    fn file_that_is_not_a_socket_is_kept() {
        let path = place("file");
        fs::write(&path, "precious").unwrap();
        assert!(bind(&path).is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn owner_and_mode_are_set_and_another_file_is_left_alone() {
        let path = place("owner");
        // SAFETY: they cannot fail.
        let (user, group) = unsafe { (Some(libc::geteuid()), Some(libc::getegid())) };
        let owner = Some(FileOwner { user, group });
        let address = Address::Unix { path: path.clone(), mode: 0o640 };
        let ours = Listener::bind(&address, owner).unwrap();
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(), ours.shown()), (0o640, path.to_str().map(str::to_owned)));
        ours.dress(&Address::Unix { path: path.clone(), mode: 0o604 }, None).unwrap();
        assert_eq!(mode(), 0o604);
        let twin = path.with_file_name("twin");
        let other =
            Listener::bind(&Address::Unix { path: twin.clone(), mode: 0o600 }, None).unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        assert!(dress_file(&twin, Some(inode), 0o777, owner).unwrap_err().contains("not the"));
        drop(other);
        let secret = path.with_file_name("secret");
        fs::write(&secret, "x").unwrap();
        let before = fs::metadata(&secret).unwrap().permissions().mode();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&secret, &path).unwrap();
        assert!(dress_file(&path, None, 0o666, owner).unwrap_err().contains("not the server's"));
        ours.dress(&address, owner).unwrap();
        fs::remove_file(&path).unwrap();
        fs::hard_link(&secret, &path).unwrap();
        assert!(dress_file(&path, None, 0o666, owner).unwrap_err().contains("not the server's"));
        assert_eq!(fs::metadata(&secret).unwrap().permissions().mode(), before);
    }

    #[test]
    fn accept_returns_none_without_clients() {
        let path = place("accept");
        let listener = bind(&path).unwrap();
        assert!(listener.accept().unwrap().is_none());
        let _client = UnixStream::connect(&path).unwrap();
        assert!(listener.accept().unwrap().is_some() && listener.accept().unwrap().is_none());
    }
}
