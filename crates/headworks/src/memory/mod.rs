//! Where bytes lie while they are on the path.
//!
//! Every byte of data is in a [`Mapping`] made at start-up: the slots of a handle are in one, the frames of the cache in another, the memory
//! device keeps its disk in a third. A [`Span`] names a piece of one for as long as a command needs it.

mod copy;
mod huge;
mod mapping;
mod populate;
mod span;

pub use copy::{Copier, STREAM, fetch};
pub use huge::HUGE;
pub use mapping::{Mapping, PAGE, memory_file, page_size};
pub use populate::Populator;
pub use span::Span;
