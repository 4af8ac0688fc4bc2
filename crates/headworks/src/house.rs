//! What the other crates of this project share with the library, and no other program should: it changes with them, without a word.

#[cfg(loom)]
pub use crate::combining::{Driving, DrivingRight, Leave, Take};
pub use crate::device::{Loss, folder_of, share_lock, size_of_file, sync_directory};
pub use crate::engine::execute;
#[cfg(loom)]
pub use crate::engine::waker::WakeFlag;
pub use crate::executor::{ChangeLog, fetch_ahead};
pub use crate::memory::{HUGE, Mapping, PAGE, Populator, memory_file, page_size};
#[cfg(loom)]
pub use crate::owner_call::OwnerCall;
pub use crate::ring::{Consumer, Producer, Sleeper, ring};
pub use crate::runtime::{Polling, pin_thread};
pub use crate::size::display_size;
#[cfg(loom)]
pub use crate::sync::Arc;

pub mod safe_open {
    //! Opens files in directories that others may write.
    pub use crate::safe_open::*;
}
