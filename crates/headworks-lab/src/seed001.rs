//! batch dispatch
use headworks_core::ConfigError;

use crate::experiment::Filter;
use crate::report::Report;

/// Runs it.
///
/// # Errors
/// Options that cannot be.
pub fn run(_filter: &Filter) -> Result<Report, ConfigError> {
    Ok(Report::default())
}
