//! Opens an image: the cluster, the pool, the image, and its exclusive lock.
//!
//! The head of an image is opened for one client: without the lock two caches would each keep an image of their own. The lock is asked for
//! and not taken: an owner that keeps it is named in the refusal, and `takeover` has the cluster shut that owner out first. A
//! snapshot cannot change, so it is opened by any number of clients, without a lock.
//!
//! The libraries wait without end for an OSD that does not answer, so a thread opens, and the caller waits for at most [`OPEN_LIMIT`]. What
//! opens later is closed again.

use std::ffi::{CString, c_int};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::mpsc;
use std::time::Duration;

use headworks_core::{ConfigError, QueueOptions, VolumeOptions};

use crate::device::RbdDevice;
use crate::image::{Handles, RbdImage, wait_for_closes};
use crate::library::{ImageInfo, Library, Ptr};
use crate::name::ImageName;

/// How long opening may take. A lock whose owner died is free after 30 s.
const OPEN_LIMIT: Duration = Duration::from_secs(60);
/// How long an image that this process closes may take, before it is opened anew.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);
/// Options of the libraries, over those of the configuration. No caches of theirs; a time-out of operations would report writes as failed
/// that are applied later.
const SETTINGS: [(&str, &str); 8] = [
    ("rbd_cache", "false"),
    ("rbd_plugins", ""),
    ("rados_osd_op_timeout", "0"),
    ("rados_mon_op_timeout", "0"),
    ("client_mount_timeout", "10"),
    ("rbd_skip_partial_discard", "false"),
    ("log_to_stderr", "false"),
    ("err_to_stderr", "false"),
];
/// librbd's RBD_LOCK_MODE_EXCLUSIVE.
const EXCLUSIVE: c_int = 0;
/// Most owners of a lock that are asked for; there is one.
const OWNERS: usize = 8;

/// How a cluster is reached, and what happens to another owner of the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdOptions {
    /// Ceph's configuration file; none for the usual places.
    pub conf: Option<PathBuf>,
    /// Name of the client, without `client.` before it.
    pub user: String,
    /// Whether another owner of the lock is shut out.
    pub takeover: bool,
}

impl Default for RbdOptions {
    fn default() -> Self {
        Self { conf: None, user: "admin".to_owned(), takeover: false }
    }
}

/// What an image is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To be served, with its lock.
    Serve,
    /// To be looked at: no lock is taken, so another client may write meanwhile.
    Inspect,
}

/// An image that is open.
pub struct OpenRbd {
    name: String,
    image: RbdImage,
    size: u64,
    object_size: u64,
    is_snapshot: bool,
    locked: bool,
}

impl OpenRbd {
    /// Opens an image, within a minute.
    ///
    /// # Errors
    /// One sentence: the library is missing, the cluster, the pool or the image is not there, or another client has the lock.
    pub fn open(
        name: &ImageName,
        options: &RbdOptions,
        access: Access,
    ) -> Result<Self, ConfigError> {
        let failed = |why: &str| ConfigError::new("image", format!("rbd {name}: {why}"));
        let library = Library::get().map_err(|why| failed(&why))?;
        wait_for_closes(CLOSE_LIMIT);
        let (answer, answered) = mpsc::sync_channel(1);
        let opening = Opening { library, name: name.clone(), options: options.clone(), access };
        let open = move || {
            // The caller may wait no more: then what was opened is dropped, which closes it.
            let _ = answer.send(opening.open());
        };
        let thread = std::thread::Builder::new().name("headworks-rbd".into()).spawn(open);
        thread.map_err(|error| failed(&format!("no thread can be started: {error}")))?;
        match answered.recv_timeout(OPEN_LIMIT) {
            Ok(opened) => opened.map_err(|why| failed(&why)),
            Err(_) => Err(failed(&format!(
                "the cluster does not answer within {} s; `ceph status` tells more",
                OPEN_LIMIT.as_secs()
            ))),
        }
    }

    /// Its size; a snapshot is read-only.
    #[must_use]
    pub fn volume_options(&self) -> VolumeOptions {
        VolumeOptions {
            size: self.size,
            read_only: self.is_snapshot,
            block_size: 1,
            ..VolumeOptions::default()
        }
    }

    /// Its queue: a completed write is on the replicas, and a flush finds a lost lock. No request is larger than an object.
    #[must_use]
    pub fn queue_options(&self) -> QueueOptions {
        let object = self.object_size.clamp(4096, 32 << 20);
        QueueOptions {
            write_cache: true,
            fua: true,
            discard: !self.is_snapshot,
            discard_granularity: 4096,
            write_zeroes: !self.is_snapshot,
            max_sectors_kb: (object / 1024) as u32,
            rotational: false,
            ..QueueOptions::default()
        }
    }

    /// The device, which closes the image when it is dropped.
    #[must_use]
    pub fn into_device(self) -> RbdDevice {
        RbdDevice::new(self.name, self.image, self.size, self.locked)
    }
}

/// What the thread that opens needs.
struct Opening {
    library: &'static Library,
    name: ImageName,
    options: RbdOptions,
    access: Access,
}

impl Opening {
    fn open(self) -> Result<OpenRbd, String> {
        let (library, name) = (self.library, &self.name);
        let (cluster, pool, image) = (null_mut(), null_mut(), null_mut());
        let mut handles = Handles { library, cluster, pool, image };
        self.connect(&mut handles)?;
        let pool = c_string(&name.pool)?;
        // SAFETY: the cluster is connected, and the strings live during the calls.
        let found = unsafe {
            (library.rados_ioctx_create)(handles.cluster, pool.as_ptr(), &raw mut handles.pool)
        };
        match -found {
            ..=0 => {}
            libc::ENOENT => return Err(format!("there is no pool `{}`", name.pool)),
            error => return Err(format!("the pool cannot be opened: {}", shown(error))),
        }
        if !name.namespace.is_empty() {
            let namespace = c_string(&name.namespace)?;
            // SAFETY: as above.
            unsafe { (library.rados_ioctx_set_namespace)(handles.pool, namespace.as_ptr()) };
        }
        let is_snapshot = name.snapshot.is_some();
        let locked = self.access == Access::Serve && !is_snapshot;
        handles.image = self.open_image(handles.pool, locked)?;
        if locked {
            self.lock(handles.image)?;
        }
        let mut info = ImageInfo { size: 0, object_size: 0, rest: [0; 496] };
        // SAFETY: the image is open; the size is that of the memory.
        let told =
            unsafe { (library.rbd_stat)(handles.image, &raw mut info, size_of::<ImageInfo>()) };
        if told < 0 {
            return Err(format!("its size cannot be read: {}", shown(-told)));
        }
        let image = RbdImage::new(handles);
        Ok(OpenRbd {
            name: format!("rbd {name}"),
            image: image.map_err(|error| format!("completions cannot be counted: {error}"))?,
            size: info.size,
            object_size: info.object_size,
            is_snapshot,
            locked,
        })
    }

    fn connect(&self, handles: &mut Handles) -> Result<(), String> {
        let (library, user) = (self.library, &self.options.user);
        let id = c_string(user)?;
        // SAFETY: a pointer for the handle, and a string that lives during the call.
        let made = unsafe { (library.rados_create)(&raw mut handles.cluster, id.as_ptr()) };
        if made < 0 {
            handles.cluster = null_mut();
            return Err(format!("no client of the cluster can be made: {}", shown(-made)));
        }
        let conf =
            self.options.conf.as_ref().map(|path| c_string(&path.to_string_lossy())).transpose()?;
        let path = conf.as_ref().map_or(std::ptr::null(), |path| path.as_ptr());
        // SAFETY: the handle was made, and the string lives during the call.
        let read = unsafe { (library.rados_conf_read_file)(handles.cluster, path) };
        if read < 0 {
            let file = self.options.conf.as_ref().map_or_else(
                || "of the usual places (/etc/ceph/ceph.conf)".to_owned(),
                |path| path.display().to_string(),
            );
            return Err(format!(
                "Ceph's configuration {file} cannot be read: {}; name it by conf=PATH",
                shown(-read)
            ));
        }
        for (key, value) in SETTINGS {
            let (key, value) = (c_string(key)?, c_string(value)?);
            // SAFETY: as above. An option that this version does not have is not set.
            unsafe { (library.rados_conf_set)(handles.cluster, key.as_ptr(), value.as_ptr()) };
        }
        // SAFETY: the handle was made.
        let connected = unsafe { (library.rados_connect)(handles.cluster) };
        match -connected {
            ..=0 => Ok(()),
            libc::ETIMEDOUT => Err(format!(
                "the monitors of the cluster do not answer client.{user} within 10 s; they may be down, or the keyring has no key of it"
            )),
            libc::EACCES | libc::EPERM | libc::EOPNOTSUPP => Err(format!(
                "the cluster refuses the user client.{user}; its key must be in the keyring that the configuration names"
            )),
            libc::ENOENT => Err(format!(
                "there is no key of client.{user} in the keyring, or no monitor in the configuration"
            )),
            error => Err(format!("the cluster cannot be reached: {}", shown(error))),
        }
    }

    fn open_image(&self, pool: Ptr, write: bool) -> Result<Ptr, String> {
        let (library, name) = (self.library, &self.name);
        let (image, snapshot) = (c_string(&name.image)?, name.snapshot.as_deref().map(c_string));
        let snapshot = snapshot.transpose()?;
        let snapshot = snapshot.as_ref().map_or(std::ptr::null(), |snapshot| snapshot.as_ptr());
        let mut opened = null_mut();
        let open = if write { library.rbd_open } else { library.rbd_open_read_only };
        // SAFETY: the pool is open, and the strings live during the call.
        let result = unsafe { open(pool, image.as_ptr(), &raw mut opened, snapshot) };
        match -result {
            ..=0 => Ok(opened),
            libc::ENOENT => Err("there is no such image".to_owned()),
            libc::EPERM | libc::EACCES => Err(format!(
                "client.{} may not open it; its capabilities must include profile rbd on the pool",
                self.options.user
            )),
            error => Err(format!("it cannot be opened: {}", shown(error))),
        }
    }

    /// Takes the exclusive lock. With a takeover its owners are shut out before: one that has died would be asked for it, for half a minute.
    fn lock(&self, image: Ptr) -> Result<(), String> {
        if self.options.takeover {
            for owner in &self.owners(image) {
                self.shut_out(image, owner)?;
            }
        }
        // SAFETY: the image is open.
        match -unsafe { (self.library.rbd_lock_acquire)(image, EXCLUSIVE) } {
            libc::EROFS if !self.options.takeover => {
                let owner = self.owners(image).join(", ");
                Err(format!(
                    "another client has its lock ({owner}); stop that client, or shut it out with takeover=on"
                ))
            }
            ..=0 => Ok(()),
            libc::EROFS => Err("another client took its lock again".to_owned()),
            libc::EINVAL => Err(format!(
                "it has no exclusive lock; enable it: rbd feature enable {} exclusive-lock",
                self.name
            )),
            libc::EPERM | libc::EACCES => Err(format!(
                "client.{} may not lock it; its capabilities must include profile rbd on monitors and pool",
                self.options.user
            )),
            error => Err(format!("its lock cannot be taken: {}", shown(error))),
        }
    }

    /// Clients that have the lock.
    fn owners(&self, image: Ptr) -> Vec<String> {
        let (mut mode, mut list, mut count) = (0, [null_mut(); OWNERS], OWNERS);
        // SAFETY: the image is open; the list has as much room. Its strings are copied and given back.
        unsafe {
            let told = (self.library.rbd_lock_get_owners)(
                image,
                &raw mut mode,
                list.as_mut_ptr(),
                &raw mut count,
            );
            if told < 0 {
                return Vec::new();
            }
            let names = list[..count.min(OWNERS)].iter();
            let names =
                names.map(|&name| std::ffi::CStr::from_ptr(name).to_string_lossy().into_owned());
            let names = names.collect();
            (self.library.rbd_lock_get_owners_cleanup)(list.as_mut_ptr(), count);
            names
        }
    }

    /// Has the cluster refuse all further operations of an owner.
    fn shut_out(&self, image: Ptr, owner: &str) -> Result<(), String> {
        let name = c_string(owner)?;
        // SAFETY: the image is open, and the string lives during the call.
        let broken = unsafe { (self.library.rbd_lock_break)(image, EXCLUSIVE, name.as_ptr()) };
        match -broken {
            ..=0 | libc::ENOENT => Ok(()),
            error => Err(format!(
                "its owner {owner} cannot be shut out: {}; client.{} needs profile rbd on the monitors",
                shown(error),
                self.options.user
            )),
        }
    }
}

fn c_string(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| format!("`{}` has a zero byte in it", text.escape_debug()))
}

fn shown(errno: c_int) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}
