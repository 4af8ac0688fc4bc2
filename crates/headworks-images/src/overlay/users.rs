//! Which overlays lie on a file, as far as its directory tells.
//!
//! A commit changes a base, and overlays on it are worth nothing then. Those that are served hold a lock on it; the heads of the others say
//! which base they have. They are looked for in the directory of the base and in that of the overlay at hand, and nowhere else.

use std::fs::File;
use std::path::{Path, PathBuf};

use headworks_core::ConfigError;

use super::OpenOverlay;
use super::head::{BaseKind, Head};
use super::new::refuse;
use super::open::read_head;
use headworks::house::folder_of;
use headworks::house::safe_open::open_named;
use headworks_house::Identity;

/// Most files of a directory that are looked at.
const FILES_MAX: usize = 10_000;
/// Most overlays that a refusal names.
const NAMED_MAX: usize = 5;

impl OpenOverlay {
    /// The overlays that lie on `base`, in its directory and in that of `beside`; `beside` itself is left out.
    #[must_use]
    pub fn overlays_on(base: &Path, beside: &Path) -> Vec<PathBuf> {
        let Ok(wanted) = Identity::of(base) else { return Vec::new() };
        let own = Identity::of(beside).ok();
        let folders = [folder_of(beside), folder_of(base)].map(Path::canonicalize);
        let mut folders: Vec<PathBuf> = folders.into_iter().flatten().collect();
        folders.dedup();
        let files = folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok());
        let files = files.flat_map(|files| files.flatten().take(FILES_MAX));
        let lies_on_it = |path: &PathBuf| {
            base_of(path).is_some_and(|base| base == wanted) && Identity::of(path).ok() != own
        };
        let mut found: Vec<PathBuf> =
            files.map(|file| file.path()).filter(|path| lies_on_it(path)).collect();
        found.sort();
        found
    }

    /// Refuses a change of the base that other overlays lie on.
    pub(super) fn check_others(&self) -> Result<(), ConfigError> {
        let others = Self::overlays_on(self.base_path(), &self.path);
        if others.is_empty() {
            return Ok(());
        }
        let names: Vec<String> =
            others.iter().take(NAMED_MAX).map(|path| path.display().to_string()).collect();
        let more = others.len().saturating_sub(NAMED_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let message = format!(
            "cannot be committed: other overlays lie on its base and would be lost ({}{more}); flatten them first, or go on with --others-are-lost",
            names.join(", ")
        );
        refuse(&self.path, &message)
    }
}

/// The base that the head of a file names; none of what is no overlay.
fn base_of(path: &Path) -> Option<Identity> {
    let file = open_named(path, File::options().read(true)).ok()?;
    let (Head { base, .. }, _) = read_head(path, &file).ok()?;
    let folder = folder_of(path).canonicalize().ok()?;
    (base.kind != BaseKind::Remote).then(|| Identity::of(&folder.join(base.path)).ok()).flatten()
}
