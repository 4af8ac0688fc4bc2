//! What `image info` and `image check` print.

use std::path::Path;

use headworks::house::display_size;
use headworks_core::ConfigError;
use headworks_images::{OpenOverlay, OverlayLayer};
use serde_json::{Value, json};

use super::Outcome;
use crate::columns::aligned;
use crate::shown::{line, path_text};

/// The layers of an overlay from the top down.
pub(super) fn info(open: &OpenOverlay) -> Outcome {
    let layers = open.layers();
    let mut rows = vec![["LAYER", "SIZE", "ITS OWN", "ON DISK"].map(str::to_owned).to_vec()];
    rows.extend(layers.iter().map(|layer| {
        let own = layer.own_bytes.map_or("all".to_owned(), display_size);
        let disk = layer.disk_bytes.map_or("-".to_owned(), display_size);
        vec![layer.path.display().to_string(), display_size(layer.size), own, disk]
    }));
    let mut text = aligned(&rows);
    if open.is_committing() {
        text += "a commit of it has not ended; `headworks image commit` continues it\n";
    }
    Outcome::good(text, as_json(open, &layers))
}

fn as_json(open: &OpenOverlay, layers: &[OverlayLayer]) -> Value {
    let layer = |layer: &OverlayLayer| {
        json!({
            "path": path_text(&layer.path),
            "kind": layer.kind.name(),
            "size": layer.size,
            "own_bytes": layer.own_bytes,
            "disk_bytes": layer.disk_bytes,
        })
    };
    json!({
        "path": path_text(&layers[0].path),
        "size": layers[0].size,
        "uuid": open.uuid(),
        "committing": open.is_committing(),
        "layers": layers.iter().map(layer).collect::<Vec<_>>(),
    })
}

/// What is wrong with an overlay.
pub(super) fn check(file: &Path, opened: Result<OpenOverlay, ConfigError>) -> Outcome {
    let shown = file.display();
    let problem = match &opened {
        Err(error) => Some(error.message.clone()),
        Ok(open) if open.stray_bits() > 0 => Some(format!(
            "{shown}: its bitmap has {} bits behind the end of the volume, which Headworks never sets: something else wrote to the file; \
             they are ignored, flatten it and compare",
            open.stray_bits()
        )),
        Ok(_) => None,
    };
    let text = match &problem {
        Some(problem) => line(problem),
        None => line(format!("{shown}: no errors")),
    };
    let is_good = problem.is_none();
    Outcome {
        text,
        json: json!({ "path": path_text(file), "ok": is_good, "problem": problem }),
        is_good,
    }
}
