//! The exports of a server as its start message has them.

use headworks_core::{ErrorPolicy, Ioprio, WriteMode};
use headworks_server::{Assembly, ExportOptions};

use crate::durability::ExportDurability;

/// An export in the start message.
pub(super) struct AnnouncedExport {
    pub name: String,
    pub description: String,
    pub size: u64,
    pub uri: String,
    pub weight: u16,
    pub ioprio: Ioprio,
    pub read_only: bool,
    pub mode: WriteMode,
    pub on_error: ErrorPolicy,
    /// The data outlives the process.
    pub lasting: bool,
}

pub(super) fn announced(assembly: &Assembly, cache: bool) -> Vec<AnnouncedExport> {
    let exports = assembly.exports.iter().map(|export| {
        let (_, volume) = &assembly.volumes[usize::from(export.volume.0)];
        AnnouncedExport {
            name: export.spec.name.clone(),
            description: export.description.clone(),
            size: volume.size,
            uri: String::new(),
            weight: export.spec.share.weight,
            ioprio: export.spec.share.ioprio,
            read_only: !export.spec.writes() || volume.read_only,
            mode: if cache { volume.mode } else { WriteMode::None },
            on_error: volume.on_error,
            lasting: export.spec.spec.base.is_lasting(),
        }
    });
    exports.collect()
}

/// Name of an export as messages and tables have it.
pub(super) fn shown_export(name: &str) -> &str {
    if name.is_empty() { "default" } else { name }
}

impl AnnouncedExport {
    pub fn shown_name(&self) -> &str {
        shown_export(&self.name)
    }

    pub fn durability(&self) -> ExportDurability<'_> {
        let Self { lasting, read_only, mode, .. } = *self;
        ExportDurability { name: self.shown_name(), lasting, read_only, mode }
    }

    /// Weight and class, if they differ from the default.
    pub fn share(&self) -> String {
        let ordinary = ExportOptions::default();
        let mut text = String::new();
        if self.weight != ordinary.weight {
            text += &format!(", weight {}", self.weight);
        }
        if self.ioprio != ordinary.ioprio {
            text += &format!(", class {}", self.ioprio);
        }
        text
    }
}
