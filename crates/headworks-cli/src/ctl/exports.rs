//! Commands of `headworks ctl` about exports: `exports`, `add`, `remove`, `resize`, `drain`, `freeze`, `thaw`, `snapshot`, `cut`,
//! `refuse-clients`, `accept-clients`.

use clap::{Args, Subcommand};
use headworks::house::display_size;
use headworks_control::answers::{
    Added, ClientsChange, Drained, Export, Frozen, PowerCut, Removed, Resized, Snapshotted, Thawed,
};
use headworks_control::param::{Names, Size, TimeLimit};
use headworks_control::{Method, Params, methods};
use headworks_server::parse_time;
use serde_json::Value;

use crate::columns::{aligned, seconds};
use crate::ctl::tenants::{limited, target};
use crate::ctl::{here, or_dash, read, sent};

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
        /// As --force, and give it up if its device does not answer within 5 s: its clients and its name go at once, its memory when the device
        /// answers; what only the cache has goes to a recovery file
        #[arg(long)]
        abandon: bool,
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
    fn names(&self) -> Names {
        match self.all {
            true => Names(vec!["*".to_owned()]),
            false => Names(self.exports.clone()),
        }
    }
}

impl ExportCommand {
    /// Returns the method and its parameters.
    pub fn request(&self) -> (Method, Params) {
        let limit = |timeout: &u64| TimeLimit(Some(*timeout as f64 / 1e9));
        match self {
            Self::Exports => sent(&methods::Exports {}),
            Self::Add { spec, read_only } => {
                sent(&methods::Add { spec: spec.clone(), read_only: *read_only, cwd: here() })
            }
            Self::Remove { export, force, abandon } => {
                let (force, abandon) = (*force, *abandon);
                sent(&methods::Remove { export: export.clone(), force, abandon })
            }
            Self::Resize { export, size } => {
                let size = size.clone().map_or(Size::Missing, Size::Word);
                sent(&methods::Resize { export: export.clone(), size })
            }
            Self::Drain { export, timeout } => {
                sent(&methods::Drain { export: export.clone(), timeout: limit(timeout) })
            }
            Self::Freeze { exports, timeout, .. } => {
                sent(&methods::Freeze { exports: Names(exports.clone()), timeout: limit(timeout) })
            }
            Self::RefuseClients(chosen) => {
                sent(&methods::RefuseClients { exports: chosen.names() })
            }
            Self::AcceptClients(chosen) => {
                sent(&methods::AcceptClients { exports: chosen.names() })
            }
            Self::Snapshot { export, file } => {
                sent(&methods::Snapshot { export: export.clone(), file: file.clone() })
            }
            Self::Cut { export } => sent(&methods::Cut { export: export.clone() }),
            Self::Thaw { exports } => sent(&methods::Thaw { exports: Names(exports.clone()) }),
        }
    }

    /// Formats the answer as text.
    pub fn show(&self, answer: &Value) -> Result<String, String> {
        Ok(match self {
            Self::Exports => {
                let exports: Vec<Export> = read(answer)?;
                table(&exports) + &remarks(&exports)
            }
            Self::Add { .. } => {
                let Added { export, notes } = read(answer)?;
                let notes: String = notes.iter().map(|note| format!("note: {note}\n")).collect();
                format!("{notes}{export}: added\n")
            }
            Self::Remove { .. } => show_removed(&read(answer)?),
            Self::Resize { .. } => {
                let Resized { export, before, size } = read(answer)?;
                let (was, now) = (display_size(before), display_size(size));
                match before == size {
                    true => format!("{export}: {now} as before\n"),
                    false => format!("{export}: {was} before, {now} now\n"),
                }
            }
            Self::Drain { .. } => {
                let Drained { bytes, seconds, .. } = read(answer)?;
                format!("{} written out and flushed in {seconds:.3} s\n", display_size(bytes))
            }
            Self::RefuseClients(_) => {
                let ClientsChange { exports, clients } = read(answer)?;
                format!("{}: no new clients; {clients} present\n", exports.join(", "))
            }
            Self::AcceptClients(_) => {
                let ClientsChange { exports, .. } = read(answer)?;
                format!("{}: open for clients\n", exports.join(", "))
            }
            Self::Snapshot { .. } => {
                let Snapshotted { export, file, seconds, .. } = read(answer)?;
                format!("{export}: kept as {file}; writes waited for {seconds:.3} s\n")
            }
            Self::Cut { .. } => {
                format!("{}: the power is cut, the server ends\n", read::<PowerCut>(answer)?.export)
            }
            // The output is the command's.
            Self::Freeze { run: Some(_), .. } => String::new(),
            Self::Freeze { .. } => {
                let Frozen { exports, bytes, seconds, timeout } = read(answer)?;
                let (names, bytes) = (exports.join(", "), display_size(bytes));
                format!(
                    "{names}: frozen, {bytes} written out in {seconds:.3} s; thaw within {timeout} s\n"
                )
            }
            Self::Thaw { .. } => {
                let Thawed { exports, seconds } = read(answer)?;
                format!("{}: thawed after {seconds:.3} s\n", exports.join(", "))
            }
        })
    }
}

fn show_removed(removed: &Removed) -> String {
    let clients = match removed.clients {
        0 => String::new(),
        1 => ", 1 client disconnected".to_owned(),
        clients => format!(", {clients} clients disconnected"),
    };
    if let Some(left) = &removed.abandoned {
        let notes = left.notes.iter().map(|note| format!("  {note}\n"));
        return format!("{}: given up{clients}; {}\n", removed.export, left.waits_for)
            + "  its image stays open, and its memory in use, until its device answers or the server ends\n"
            + &notes.collect::<String>();
    }
    let rest = match removed.closed {
        true => "its image is closed",
        false => "its image stays open for another export",
    };
    format!("{}: removed{clients}; {rest}\n", removed.export)
}

/// Reasons why exports are not served, and the servers behind them, one line each.
fn remarks(exports: &[Export]) -> String {
    let lines = |row: &Export| {
        let told = row.remote.as_ref().map(|remote| &remote.told);
        let waits = row.in_flight.oldest.as_ref().filter(|one| one.age_s >= 1.0);
        let late = row.model.as_ref().and_then(|model| model.told.as_ref());
        let texts = row.reason.iter().chain(told).chain(late).chain(waits.map(|one| &one.told));
        texts.map(|text| format!("{}: {text}\n", row.name)).collect::<String>()
    };
    exports.iter().map(lines).collect()
}

/// The dirty bytes of an export's image, in its first row alone: others name it, so that a sum counts them once.
fn dirty(row: &Export, exports: &[Export]) -> String {
    let has_it = |one: &&Export| one.name == row.name || row.dirty_shared_with.contains(&one.name);
    let is_shared = !row.dirty_shared_with.is_empty();
    match exports.iter().find(|one| is_shared && has_it(one)) {
        Some(first) if first.name != row.name => format!("as {}", first.name),
        _ => display_size(row.dirty),
    }
}

/// Formats the list of exports; columns are as wide as their content.
fn table(exports: &[Export]) -> String {
    let head = [
        "NAME", "SIZE", "DEVICE", "CACHE", "ACCESS", "TENANT", "WEIGHT", "IOPRIO", "CLIENTS",
        "DIRTY", "LIMITED", "TARGET", "OLDEST", "STATE",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(exports.iter().map(|row| {
        let is_stuck = row.device_state.as_deref() == Some("stuck");
        [
            row.name.clone(),
            row.size.map_or_else(|| "-".to_owned(), display_size),
            or_dash(row.device.as_ref()),
            or_dash(row.cache.as_ref()),
            if row.read_only { "ro" } else { "rw" }.to_owned(),
            or_dash(row.tenant.as_ref()),
            row.weight.to_string(),
            row.ioprio.clone(),
            row.clients.to_string(),
            dirty(row, exports),
            limited(row.limited_seconds),
            target(row.latency_target_us),
            row.in_flight.oldest.as_ref().map_or_else(|| "-".to_owned(), |one| seconds(one.age_s)),
            if is_stuck { format!("{}, device stuck", row.state) } else { row.state.clone() },
        ]
    }));
    aligned(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn exports_table_has_one_row_per_export() {
        let row = |name: &str, clients: u32| {
            json!({ "name": name, "size": 1 << 30, "device": "hw0", "cache": "writeback",
                "read_only": clients == 0, "tenant": "acme", "weight": 100, "ioprio": "be,4", "clients": clients,
                "dirty": 4096, "failed": 0, "state": "serving", "limited_seconds": 0.0, "latency_target_us": 5000,
                "in_flight": { "oldest": { "age_s": 17.02, "told": "it waits" } } })
        };
        let table = |rows: &Value| table(&read::<Vec<Export>>(rows).unwrap());
        let text = table(&json!([row("db", 12), row("a-long-name", 0)]));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "NAME         SIZE   DEVICE  CACHE      ACCESS  TENANT  WEIGHT  IOPRIO  CLIENTS  DIRTY  LIMITED  TARGET  OLDEST  STATE"
        );
        assert_eq!(
            lines[1],
            "db           1 GiB  hw0     writeback  rw      acme    100     be,4    12       4 KiB  -        5ms     17.0s   serving"
        );
        assert!(lines[2].starts_with("a-long-name  1 GiB") && lines[2].contains(" ro "));
        assert_eq!(table(&json!([])).lines().count(), 1);
        // The dirty bytes of an image stand once, whatever exports it has.
        let mut parts = json!([row("whole", 1), row("part", 1), row("other", 1)]);
        parts[0]["dirty_shared_with"] = json!(["part"]);
        parts[1]["dirty_shared_with"] = json!(["whole"]);
        let text = table(&parts);
        assert_eq!(text.matches(" 4 KiB ").count(), 2, "{text}");
        assert!(text.lines().nth(2).unwrap().contains(" as whole "), "{text}");
        let mut absent = row("c", 0);
        for name in ["size", "device", "cache"] {
            absent[name] = Value::Null;
        }
        absent["state"] = json!("absent");
        absent["in_flight"] = json!({ "oldest": null });
        absent["reason"] = json!("its image /c does not exist");
        let both = json!([row("db", 0), absent]);
        assert!(table(&both).lines().nth(2).unwrap().starts_with("c     -      -       -  "));
        assert_eq!(
            remarks(&read::<Vec<Export>>(&both).unwrap()),
            "db: it waits\nc: its image /c does not exist\n"
        );
    }

    #[test]
    fn answers_tell_what_was_done() {
        let remove = ExportCommand::Remove { export: String::new(), force: true, abandon: false };
        let gone = |clients: u32, closed: bool| {
            let answer = json!({ "export": "a", "clients": clients, "closed": closed });
            remove.show(&answer).unwrap()
        };
        assert_eq!(gone(0, true), "a: removed; its image is closed\n");
        assert!(gone(3, false).contains("3 clients disconnected; its image stays open"));
        let freeze = |run: Option<&str>| ExportCommand::Freeze {
            exports: vec!["a".into(), "b*".into()],
            timeout: 1_500_000_000,
            run: run.map(str::to_owned),
        };
        let asked = json!({ "exports": ["a", "b*"], "timeout": 1.5 });
        let request = |command: &ExportCommand| {
            let (method, params) = command.request();
            (method.name(), Value::Object(params))
        };
        assert_eq!(request(&freeze(None)), ("freeze", asked));
        let answer =
            json!({ "exports": ["a", "b1"], "bytes": 4096, "seconds": 0.02, "timeout": 1.5 });
        let told = "a, b1: frozen, 4 KiB written out in 0.020 s; thaw within 1.5 s\n";
        assert_eq!(freeze(None).show(&answer).unwrap(), told);
        assert_eq!(freeze(Some("true")).show(&answer).unwrap(), "");
        let thaw = ExportCommand::Thaw { exports: Vec::new() };
        assert_eq!(thaw.show(&answer).unwrap(), "a, b1: thawed after 0.020 s\n");
        let resize = ExportCommand::Resize { export: String::new(), size: None };
        let resized = |before: u64, size: u64| {
            resize.show(&json!({ "export": "a", "before": before, "size": size })).unwrap()
        };
        assert_eq!(resized(1024, 2048), "a: 1 KiB before, 2 KiB now\n");
        assert_eq!(resized(2048, 2048), "a: 2 KiB as before\n");
        assert_eq!(request(&resize), ("resize", json!({ "export": "" })));
        let more = ExportCommand::Resize { export: "a".into(), size: Some("+5G".into()) };
        assert_eq!(request(&more), ("resize", json!({ "export": "a", "size": "+5G" })));
    }
}
