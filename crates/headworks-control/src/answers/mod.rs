//! The objects of answers. The documentation of a field has its meaning, unit and range, and is what the manual page says.
//!
//! Times and counters begin with the start of the server, unless a field says otherwise. A field that is null has a value that does not
//! exist now.

mod changes;
mod elevator;
mod in_flight;
mod latency;
mod lists;
mod stats;
mod why;

pub use changes::*;
pub use elevator::*;
pub use in_flight::*;
pub use latency::*;
pub use lists::*;
pub use stats::*;
pub use why::*;
