//! librados and librbd: the functions that are used, loaded at the first image and never unloaded.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library as Object, RTLD_GLOBAL, RTLD_NOW};

/// A handle of one of the libraries.
pub(crate) type Ptr = *mut c_void;
/// An array of `struct iovec`.
pub(crate) type Vectors = *const libc::iovec;

/// The beginning of `rbd_image_info_t`, with more room than later versions need.
#[repr(C)]
pub(crate) struct ImageInfo {
    pub size: u64,
    pub object_size: u64,
    pub rest: [u8; 496],
}

macro_rules! functions {
    ($(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of both libraries, by their names in C.
        pub(crate) struct Library {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        /// Why a library is not there, and the remedy. A seccomp filter lets no code be mapped any more, though the file is there.
fn cannot_be_loaded(name: &str, error: &str) -> String {
    let remedy = match error.contains("failed to map segment") {
        true => {
            "a server with a sandbox loads it at its start alone: name an rbd: export there, or start it with --sandbox off"
        }
        false => "install the package librbd1 (Debian, Ubuntu) or librbd (Fedora, SUSE)",
    };
    format!("Ceph's library {name} cannot be loaded ({error}); {remedy}")
}

impl Library {
            fn new(objects: &[Object]) -> Result<Self, String> {
                Ok(Self { $($name: symbol(objects, stringify!($name))?,)* })
            }

            /// Functions that end the process when they are called, for tests that have some of their own.
            #[cfg(test)]
            pub fn absent() -> Self {
                Self {
                    $($name: {
                        unsafe extern "C" fn absent($(_: $argument),*) $(-> $result)? {
                            unreachable!("{} is called", stringify!($name))
                        }
                        absent
                    },)*
                }
            }
        }
    };
}

functions! {
    fn rados_create(*mut Ptr, *const c_char) -> c_int;
    fn rados_conf_read_file(Ptr, *const c_char) -> c_int;
    fn rados_conf_set(Ptr, *const c_char, *const c_char) -> c_int;
    fn rados_connect(Ptr) -> c_int;
    fn rados_shutdown(Ptr);
    fn rados_ioctx_create(Ptr, *const c_char, *mut Ptr) -> c_int;
    fn rados_ioctx_set_namespace(Ptr, *const c_char);
    fn rados_ioctx_destroy(Ptr);
    fn rbd_open(Ptr, *const c_char, *mut Ptr, *const c_char) -> c_int;
    fn rbd_open_read_only(Ptr, *const c_char, *mut Ptr, *const c_char) -> c_int;
    fn rbd_close(Ptr) -> c_int;
    fn rbd_stat(Ptr, *mut ImageInfo, usize) -> c_int;
    fn rbd_lock_acquire(Ptr, c_int) -> c_int;
    fn rbd_lock_get_owners(Ptr, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
    fn rbd_lock_get_owners_cleanup(*mut *mut c_char, usize);
    fn rbd_lock_break(Ptr, c_int, *const c_char) -> c_int;
    fn rbd_set_image_notification(Ptr, c_int, c_int) -> c_int;
    fn rbd_poll_io_events(Ptr, *mut Ptr, c_int) -> c_int;
    fn rbd_aio_create_completion(Ptr, Ptr, *mut Ptr) -> c_int;
    fn rbd_aio_get_arg(Ptr) -> Ptr;
    fn rbd_aio_get_return_value(Ptr) -> isize;
    fn rbd_aio_release(Ptr);
    fn rbd_aio_readv(Ptr, Vectors, c_int, u64, Ptr) -> c_int;
    fn rbd_aio_writev(Ptr, Vectors, c_int, u64, Ptr) -> c_int;
    fn rbd_aio_write_zeroes(Ptr, u64, usize, Ptr, c_int, c_int) -> c_int;
    fn rbd_aio_flush(Ptr, Ptr) -> c_int;
}

/// Finds a function in one of the objects.
fn symbol<T: Copy>(objects: &[Object], name: &str) -> Result<T, String> {
    // SAFETY: `functions` gives each name the type that the libraries' headers declare.
    let found = objects.iter().find_map(|object| unsafe { object.get::<T>(name.as_bytes()) }.ok());
    found.map(|symbol| *symbol).ok_or_else(|| {
        format!("librbd.so.1 has no function {name}: it is older than version 16 (Pacific)")
    })
}

impl Library {
    /// The functions, loaded by the first call.
    ///
    /// # Errors
    /// A sentence that names the missing library and what to install.
    pub fn get() -> Result<&'static Self, String> {
        static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
        LOADED.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, String> {
        let open = |name: &str, flags| {
            // SAFETY: initializers of these libraries expect nothing of their users.
            unsafe { Object::open(Some(name), flags) }
                .map_err(|error| cannot_be_loaded(name, &error.to_string()))
        };
        let objects =
            [open("librados.so.2", RTLD_NOW | RTLD_GLOBAL)?, open("librbd.so.1", RTLD_NOW)?];
        let library = Self::new(&objects)?;
        // Their threads outlive every image.
        objects.into_iter().for_each(std::mem::forget);
        Ok(library)
    }
}
