//! The command line described for people and shells: manual pages, completions, and a check of the guides against it.

pub(crate) mod completions;
#[cfg(test)]
mod guide_tests;
pub(crate) mod man;
pub(crate) mod man_control;
