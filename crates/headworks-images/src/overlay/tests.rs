//! The device against a byte model, and against kills and power cuts, on a file with a volatile cache and on real ones.

mod cuts;
mod here;
mod model;
mod tools;
