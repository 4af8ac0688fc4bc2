//! The device against a byte model, and against power cuts on a file with a volatile cache.

mod cuts;
mod model;
mod tools;
