//! The start after an upgrade: values are compared with a configuration that does not say them.

use super::LiveChanges;
use crate::change::configured::LoadedConfiguration;
use crate::config::ConfigFile;
use crate::control::exports::Export;
use crate::control::tree::lock;
use crate::exports::assemble::ExportSpec;
use crate::spec::ExportOption;
use crate::spec::option_table::OptionTable;

impl LiveChanges {
    /// Compares with `loaded` instead of what the server has started with.
    pub fn with_loaded(self, loaded: LoadedConfiguration) -> Self {
        let LoadedConfiguration { exports, tenants, tunables } = loaded;
        for served in lock(&self.inventory).exports.lock().values_mut() {
            let same = exports.iter().find(|export| export.name == served.spec.name);
            if let Some(configured) = same {
                compare_with(served, configured);
            }
        }
        self.settings.compare_tenants_with(&tenants);
        *lock(&self.tunables) = tunables;
        *lock(&self.configured) = exports;
        *lock(&self.configured_tenants) = tenants;
        // Every change is a difference from `loaded` and is found as one.
        Self { inherited: ConfigFile::default(), ..self }
    }
}

/// Lets the values of an export be compared with those that are configured; an export that `ctl` has added with another image under
/// the same name stays what it is.
fn compare_with(served: &mut Export, configured: &ExportSpec) {
    let spec = &mut served.spec;
    if !spec.spec.is_same_device(&configured.spec) {
        return;
    }
    spec.source = configured.source;
    spec.certificates = configured.certificates.clone();
    for option in ExportOption::ALL.iter().filter(|option| option.is_live()) {
        option.copy(&mut spec.share, &configured.share);
    }
}
