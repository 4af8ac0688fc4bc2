//! Commands of `headworks ctl` about exports: `exports`, `add`, `remove`, `resize`, `drain`.

use clap::Subcommand;
use headworks::display_size;
use serde_json::{Value, json};

use crate::columns::aligned;
use crate::ctl::{list, plain};
use crate::ctl_tenants::{limited, target};

#[derive(Subcommand)]
pub enum ExportCommand {
    /// Lists the exports, one row each
    Exports,
    /// Adds an export; clients can open it when the command returns
    Add {
        /// SPEC or NAME=SPEC, as for `headworks serve`; an image that is already served is shared
        #[arg(value_name = "[NAME=]SPEC")]
        spec: String,
        /// Make the export read-only
        #[arg(long)]
        read_only: bool,
    },
    /// Removes an export: writes it out, flushes, closes and unlocks its image
    Remove {
        /// Export name; `default` is the export without a name
        export: String,
        /// Disconnect its clients after their requests in flight are answered
        #[arg(long)]
        force: bool,
    },
    /// Grows an export and its image; clients see the new size when they reconnect
    Resize {
        /// Export name; `default` is the export without a name
        export: String,
        /// New size, such as 20G, or +5G more than now; without it: the present size of the file or disk
        #[arg(allow_hyphen_values = true)]
        size: Option<String>,
    },
    /// Writes all dirty data and flushes the devices; returns when done
    Drain {
        /// Export name; without it all exports
        export: Option<String>,
    },
}

impl ExportCommand {
    /// Returns the JSON-RPC method and its parameters.
    pub fn request(&self) -> (&'static str, Value) {
        match self {
            Self::Exports => ("exports", json!({})),
            Self::Add { spec, read_only } => {
                // A relative path is relative to this process, not the server.
                let cwd = std::env::current_dir().unwrap_or_default();
                let cwd = cwd.to_string_lossy();
                ("add", json!({ "spec": spec, "read_only": read_only, "cwd": cwd }))
            }
            Self::Remove { export, force } => {
                ("remove", json!({ "export": export, "force": force }))
            }
            Self::Resize { export, size: None } => ("resize", json!({ "export": export })),
            Self::Resize { export, size } => ("resize", json!({ "export": export, "size": size })),
            Self::Drain { export: None } => ("drain", json!({})),
            Self::Drain { export } => ("drain", json!({ "export": export })),
        }
    }

    /// Formats the answer as text.
    pub fn show(&self, result: &Value) -> String {
        let export = plain(&result["export"]);
        match self {
            Self::Exports => table(result) + &absences(result),
            Self::Add { .. } => {
                let notes = list(&result["notes"]).iter();
                let notes: String = notes.map(|note| format!("note: {}\n", plain(note))).collect();
                format!("{notes}{export}: added\n")
            }
            Self::Remove { .. } => {
                let clients = match result["clients"].as_u64() {
                    Some(0) | None => String::new(),
                    Some(1) => ", 1 client disconnected".to_owned(),
                    Some(clients) => format!(", {clients} clients disconnected"),
                };
                let rest = match result["closed"] == true {
                    true => "its image is closed",
                    false => "its image stays open for another export",
                };
                format!("{export}: removed{clients}; {rest}\n")
            }
            Self::Resize { .. } => match result["before"] == result["size"] {
                true => format!("{export}: {} as before\n", size(&result["size"])),
                false => {
                    let (before, now) = (size(&result["before"]), size(&result["size"]));
                    format!("{export}: {before} before, {now} now\n")
                }
            },
            Self::Drain { .. } => {
                let seconds = result["seconds"].as_f64().unwrap_or_default();
                let bytes = size(&result["bytes"]);
                format!("{bytes} written out and flushed in {seconds:.3} s\n")
            }
        }
    }
}

fn size(bytes: &Value) -> String {
    bytes.as_u64().map_or_else(|| "-".to_owned(), display_size)
}

/// Reasons why exports are not served, one line each.
fn absences(exports: &Value) -> String {
    let rows = list(exports).iter().filter(|row| row["reason"].is_string());
    rows.map(|row| format!("{}: {}\n", plain(&row["name"]), plain(&row["reason"]))).collect()
}

/// Formats the list of exports; columns are as wide as their content.
fn table(exports: &Value) -> String {
    let head = [
        "NAME", "SIZE", "DEVICE", "CACHE", "ACCESS", "TENANT", "WEIGHT", "IOPRIO", "CLIENTS",
        "DIRTY", "LIMITED", "TARGET", "STATE",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(list(exports).iter().map(|row| {
        let access = if row["read_only"] == true { "ro" } else { "rw" };
        let word = |name: &str| match &row[name] {
            Value::Null => "-".to_owned(),
            value => plain(value),
        };
        [
            word("name"),
            size(&row["size"]),
            word("device"),
            word("cache"),
            access.to_owned(),
            word("tenant"),
            word("weight"),
            word("ioprio"),
            word("clients"),
            size(&row["dirty"]),
            limited(row),
            target(row),
            match (word("state"), row["device_state"] == "stuck") {
                (state, true) => format!("{state}, device stuck"),
                (state, false) => state,
            },
        ]
    }));
    aligned(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_table_has_one_row_per_export() {
        let row = |name: &str, clients: u32| {
            json!({ "name": name, "size": 1 << 30, "device": "hw0", "cache": "writeback",
                "read_only": clients == 0, "tenant": "acme", "weight": 100, "ioprio": "be,4", "clients": clients,
                "dirty": 4096, "failed": 0, "state": "serving", "limited_seconds": 0.0, "latency_target_us": 5000 })
        };
        let text = table(&json!([row("db", 12), row("a-long-name", 0)]));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "NAME         SIZE   DEVICE  CACHE      ACCESS  TENANT  WEIGHT  IOPRIO  CLIENTS  DIRTY  LIMITED  TARGET  STATE"
        );
        assert_eq!(
            lines[1],
            "db           1 GiB  hw0     writeback  rw      acme    100     be,4    12       4 KiB  -        5ms     serving"
        );
        assert!(lines[2].starts_with("a-long-name  1 GiB") && lines[2].contains(" ro "));
        assert_eq!(table(&json!([])).lines().count(), 1);
        let mut absent = row("c", 0);
        for name in ["size", "device", "cache"] {
            absent[name] = Value::Null;
        }
        absent["state"] = json!("absent");
        absent["reason"] = json!("its image /c does not exist");
        let both = json!([row("db", 0), absent]);
        assert!(table(&both).lines().nth(2).unwrap().starts_with("c     -      -       -  "));
        assert_eq!(absences(&both), "c: its image /c does not exist\n");
    }

    #[test]
    fn answers_tell_what_was_done() {
        let remove = ExportCommand::Remove { export: String::new(), force: true };
        let gone = |clients: u32, closed: bool| {
            remove.show(&json!({ "export": "a", "clients": clients, "closed": closed }))
        };
        assert_eq!(gone(0, true), "a: removed; its image is closed\n");
        assert!(gone(3, false).contains("3 clients disconnected; its image stays open"));
        let resize = ExportCommand::Resize { export: String::new(), size: None };
        let resized = |before: u64, size: u64| {
            resize.show(&json!({ "export": "a", "before": before, "size": size }))
        };
        assert_eq!(resized(1024, 2048), "a: 1 KiB before, 2 KiB now\n");
        assert_eq!(resized(2048, 2048), "a: 2 KiB as before\n");
        assert_eq!(resize.request(), ("resize", json!({ "export": "" })));
        let more = ExportCommand::Resize { export: "a".into(), size: Some("+5G".into()) };
        assert_eq!(more.request(), ("resize", json!({ "export": "a", "size": "+5G" })));
    }
}
