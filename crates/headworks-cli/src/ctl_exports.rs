//! Commands of `headworks ctl` about exports: `exports`, `add`, `remove`, `resize`, `drain`, `freeze`, `thaw`, `snapshot`, `cut`,
//! `refuse-clients`, `accept-clients`.

use clap::{Args, Subcommand};
use headworks::display_size;
use headworks_server::parse_time;
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
        /// Name the exports that are not written out after this time, and fail; at most 3600s
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_time)]
        timeout: u64,
    },
    /// Refuses new clients of exports; present ones go on
    RefuseClients(ChosenExports),
    /// Takes new clients of exports again
    AcceptClients(ChosenExports),
    /// Keeps the images of exports as they are, for a copy of one point in time
    ///
    /// What changes them waits from now on; what was accepted before is written out and flushed before the command returns. Reads
    /// go on. `thaw` ends it, else the time limit does.
    Freeze {
        /// Export names, several as of one point in time; * stands for any text and ? for one byte
        #[arg(value_name = "EXPORT", required = true)]
        exports: Vec<String>,
        /// End the freeze by itself after this time, at most 3600s
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_time)]
        timeout: u64,
        /// Run this command with /bin/sh, then thaw; exits with its exit code, or with 1 if the freeze had ended before
        #[arg(long, value_name = "COMMAND")]
        run: Option<String>,
    },
    /// Keeps what an overlay is now as a file of its own; what is written from then on goes to a new overlay on it
    Snapshot {
        /// Export name; `default` is the export without a name
        export: String,
        /// File that keeps the present state; a relative name starts in the directory of the overlay
        file: String,
    },
    /// Cuts the power of a `powercut:` disk, which ends the server as kill -9 does
    Cut {
        /// Export name; `default` is the export without a name
        export: String,
    },
    /// Ends a freeze; exits with 1 if it had ended by itself, so that what was copied is not of one point in time
    Thaw {
        /// Export names; * stands for any text and ? for one byte
        #[arg(value_name = "EXPORT", required = true)]
        exports: Vec<String>,
    },
}

/// Exports by name, or all.
#[derive(Args)]
pub struct ChosenExports {
    /// Export names; * stands for any text and ? for one byte
    #[arg(value_name = "EXPORT", required_unless_present = "all")]
    exports: Vec<String>,
    /// All exports that are served now
    #[arg(long, conflicts_with = "exports")]
    all: bool,
}

impl ChosenExports {
    fn params(&self) -> Value {
        match self.all {
            true => json!({ "exports": ["*"] }),
            false => json!({ "exports": self.exports }),
        }
    }
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
            Self::Drain { export, timeout } => {
                let mut params = json!({ "timeout": *timeout as f64 / 1e9 });
                if let Some(export) = export {
                    params["export"] = json!(export);
                }
                ("drain", params)
            }
            Self::Freeze { exports, timeout, .. } => {
                let seconds = *timeout as f64 / 1e9;
                ("freeze", json!({ "exports": exports, "timeout": seconds }))
            }
            Self::RefuseClients(chosen) => ("refuse-clients", chosen.params()),
            Self::AcceptClients(chosen) => ("accept-clients", chosen.params()),
            Self::Snapshot { export, file } => {
                ("snapshot", json!({ "export": export, "file": file }))
            }
            Self::Cut { export } => ("cut", json!({ "export": export })),
            Self::Thaw { exports } => ("thaw", json!({ "exports": exports })),
        }
    }

    /// Formats the answer as text.
    pub fn show(&self, result: &Value) -> String {
        let export = plain(&result["export"]);
        match self {
            Self::Exports => table(result) + &remarks(result),
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
                let seconds = seconds(result);
                let bytes = size(&result["bytes"]);
                format!("{bytes} written out and flushed in {seconds:.3} s\n")
            }
            Self::RefuseClients(_) => {
                let (names, clients) = (names(&result["exports"]), &result["clients"]);
                format!("{names}: no new clients; {clients} present\n")
            }
            Self::AcceptClients(_) => format!("{}: open for clients\n", names(&result["exports"])),
            Self::Snapshot { .. } => {
                let (file, seconds) = (plain(&result["file"]), seconds(result));
                format!("{export}: kept as {file}; writes waited for {seconds:.3} s\n")
            }
            Self::Cut { .. } => format!("{export}: the power is cut, the server ends\n"),
            // The output is the command's.
            Self::Freeze { run: Some(_), .. } => String::new(),
            Self::Freeze { .. } => {
                let names = names(&result["exports"]);
                let timeout = result["timeout"].as_f64().unwrap_or_default();
                let (bytes, seconds) = (size(&result["bytes"]), seconds(result));
                format!(
                    "{names}: frozen, {bytes} written out in {seconds:.3} s; thaw within {timeout} s\n"
                )
            }
            Self::Thaw { .. } => {
                let (names, seconds) = (names(&result["exports"]), seconds(result));
                format!("{names}: thawed after {seconds:.3} s\n")
            }
        }
    }
}

fn seconds(result: &Value) -> f64 {
    result["seconds"].as_f64().unwrap_or_default()
}

fn names(exports: &Value) -> String {
    list(exports).iter().map(plain).collect::<Vec<_>>().join(", ")
}

fn size(bytes: &Value) -> String {
    bytes.as_u64().map_or_else(|| "-".to_owned(), display_size)
}

/// Reasons why exports are not served, and the servers behind them, one line each.
fn remarks(exports: &Value) -> String {
    let lines = |row: &Value| {
        let name = plain(&row["name"]);
        [&row["reason"], &row["remote"]["told"]]
            .into_iter()
            .filter(|text| text.is_string())
            .map(|text| format!("{name}: {}\n", plain(text)))
            .collect::<String>()
    };
    list(exports).iter().map(lines).collect()
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
        assert_eq!(remarks(&both), "c: its image /c does not exist\n");
    }

    #[test]
    fn answers_tell_what_was_done() {
        let remove = ExportCommand::Remove { export: String::new(), force: true };
        let gone = |clients: u32, closed: bool| {
            remove.show(&json!({ "export": "a", "clients": clients, "closed": closed }))
        };
        assert_eq!(gone(0, true), "a: removed; its image is closed\n");
        assert!(gone(3, false).contains("3 clients disconnected; its image stays open"));
        let freeze = |run: Option<&str>| ExportCommand::Freeze {
            exports: vec!["a".into(), "b*".into()],
            timeout: 1_500_000_000,
            run: run.map(str::to_owned),
        };
        let asked = json!({ "exports": ["a", "b*"], "timeout": 1.5 });
        assert_eq!(freeze(None).request(), ("freeze", asked));
        let answer =
            json!({ "exports": ["a", "b1"], "bytes": 4096, "seconds": 0.02, "timeout": 1.5 });
        let told = "a, b1: frozen, 4 KiB written out in 0.020 s; thaw within 1.5 s\n";
        assert_eq!(freeze(None).show(&answer), told);
        assert_eq!(freeze(Some("true")).show(&answer), "");
        let thaw = ExportCommand::Thaw { exports: Vec::new() };
        assert_eq!(thaw.show(&answer), "a, b1: thawed after 0.020 s\n");
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
