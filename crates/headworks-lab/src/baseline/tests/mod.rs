//! The old tag policies by themselves, behind a queue, in whole worlds, and without allocation.

mod no_alloc;
mod queue;
mod tags;
mod worlds;
