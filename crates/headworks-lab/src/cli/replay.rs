//! `headworks-lab replay`: a server's record, and what its scheduler did with the slots of its clients.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use headworks_core::elevator::{SlotEvent, SlotTrace};
use headworks_core::{ConfigError, DeviceId};
use headworks_server::{
    RecordedRequests, Replayed, recorded_requests, replay_recording, replay_slots,
};
use serde_json::{Value, json};

use crate::cli::complain;

/// Options of `headworks-lab replay`.
#[derive(Args)]
pub struct ReplayArgs {
    /// The record
    file: PathBuf,
    /// Print each slot of the scheduler bfq: its start, its requests, why it ended, and the raising of weights
    #[arg(long)]
    slots: bool,
    /// Print the requests, bytes, errors and times of each export and operation, as the server's counters have them
    #[arg(long, conflicts_with = "slots")]
    requests: bool,
    /// Print one JSON object; with --slots one for each event before it
    #[arg(long)]
    json: bool,
}

/// Replays a record, and prints its slots if they are wanted.
fn run(options: &ReplayArgs) -> Result<Replayed, ConfigError> {
    if options.requests {
        print_requests(options)?;
    }
    if !options.slots {
        return replay_recording(&options.file);
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let (mut failed, mut all_dropped) = (None, 0);
    let replayed = replay_slots(&options.file, |device, events, dropped| {
        all_dropped += dropped;
        for event in events {
            let line =
                if options.json { as_json(device, event).to_string() } else { line(device, event) };
            // A reader that has closed its end, such as `head`, wants no more.
            if failed.is_none() {
                failed = writeln!(out, "{line}").err();
            }
        }
    });
    let failed = failed.or_else(|| out.flush().err());
    if let Some(error) = failed.filter(|error| error.kind() != io::ErrorKind::BrokenPipe) {
        complain(format!("cannot print: {error}"));
    }
    if all_dropped > 0 {
        complain(format!("{all_dropped} events of large batches are left out"));
    }
    replayed
}

/// Prints what the server's counters must have of each export and operation.
fn print_requests(options: &ReplayArgs) -> Result<(), ConfigError> {
    let counted = recorded_requests(&options.file)?;
    let lines = counted.iter().map(|((export, op), row)| {
        let RecordedRequests { requests, bytes, errors, ns } = row;
        let export = export.0;
        match options.json {
            true => json!({ "export": export, "op": op, "requests": requests, "bytes": bytes, "errors": errors, "ns": ns }).to_string(),
            false => format!("export {export} {op}: {requests} requests of {bytes} bytes, {errors} failed, {:.6} s", *ns as f64 / 1e9),
        }
    });
    let mut out = BufWriter::new(io::stdout().lock());
    // A reader that has closed its end wants no more.
    let _ = lines.map(|line| writeln!(out, "{line}")).find(Result::is_err);
    Ok(())
}

/// Describes an event in one line; times are seconds of the server.
fn line(device: DeviceId, trace: &SlotTrace) -> String {
    let at = trace.at.0 as f64 / 1e9;
    let queue = match trace.connection {
        Some(connection) => format!("export {} connection {connection}", trace.export.0),
        None => format!("export {} write-out", trace.export.0),
    };
    let what = match trace.event {
        SlotEvent::Begin { budget, weight } => {
            format!("slot begins, budget {budget}, weight {weight}")
        }
        SlotEvent::Dispatch { volume, op, offset, len, charge, injected } => {
            let injected = if injected { ", injected" } else { "" };
            format!(
                "{} {len} at {offset} of volume {}, charge {charge}{injected}",
                op.name(),
                volume.0
            )
        }
        SlotEvent::End { reason, service, charged, budget, ns } => {
            let ms = ns as f64 / 1e6;
            format!(
                "slot ends, {reason}: {service} of {budget} sectors in {ms:.3} ms, charged {charged}"
            )
        }
        SlotEvent::Raise { reason: "none", weight } => format!("raised no more, weight {weight}"),
        SlotEvent::Raise { reason, weight } => format!("raised, {reason}, weight {weight}"),
    };
    format!("{at:.9} hw{} {queue}: {what}", device.0)
}

fn as_json(device: DeviceId, trace: &SlotTrace) -> Value {
    let mut value = match trace.event {
        SlotEvent::Begin { budget, weight } => {
            json!({ "event": "begin", "budget": budget, "weight": weight })
        }
        SlotEvent::Dispatch { volume, op, offset, len, charge, injected } => json!({
            "event": "dispatch", "volume": volume.0, "op": op.name(), "offset": offset, "len": len,
            "charge": charge, "injected": injected,
        }),
        SlotEvent::End { reason, service, charged, budget, ns } => json!({
            "event": "end", "reason": reason, "service": service, "charged": charged,
            "budget": budget, "slot_ns": ns,
        }),
        SlotEvent::Raise { reason, weight } => {
            json!({ "event": "raise", "reason": reason, "weight": weight })
        }
    };
    value["at_ns"] = trace.at.0.into();
    value["device"] = format!("hw{}", device.0).into();
    value["export"] = trace.export.0.into();
    value["connection"] = trace.connection.into();
    value
}

/// Replays a record and compares the hash of its actions.
pub fn replay(options: &ReplayArgs) -> ExitCode {
    let json = options.json;
    let replayed = match run(options) {
        Ok(replayed) => replayed,
        Err(error) => {
            complain(error);
            return ExitCode::FAILURE;
        }
    };
    let same = replayed.recorded.is_none_or(|recorded| recorded == replayed.hash);
    let recorded = replayed.recorded.map(|hash| format!("{hash:016x}"));
    let hash = format!("{:016x}", replayed.hash);
    if json {
        let (batches, inputs) = (replayed.batches, replayed.inputs);
        println!(
            "{}",
            json!({"batches": batches, "inputs": inputs, "hash": hash, "recorded": recorded, "same": same})
        );
    } else {
        println!("{} inputs in {} batches; action hash {hash}", replayed.inputs, replayed.batches);
        match (&recorded, same) {
            (None, _) => println!("no hash to compare: the server did not end cleanly"),
            (Some(_), true) => println!("the hash matches the record"),
            (Some(recorded), false) => println!("MISMATCH: the record has hash {recorded}"),
        }
    }
    if same { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::{ExportId, Instant, Op, VolumeId};

    #[test]
    fn events_are_lines_and_objects() {
        let (at, export) = (Instant(1_500_000_000), ExportId(2));
        let trace = |connection, event| SlotTrace { at, export, connection, event };
        let volume = VolumeId(1);
        let dispatch = SlotEvent::Dispatch {
            volume,
            op: Op::Read,
            offset: 8192,
            len: 4096,
            charge: 8,
            injected: true,
        };
        assert_eq!(
            line(DeviceId(0), &trace(Some(5), dispatch)),
            "1.500000000 hw0 export 2 connection 5: read 4096 at 8192 of volume 1, charge 8, injected"
        );
        let end =
            SlotEvent::End { reason: "used up", service: 60, charged: 60, budget: 64, ns: 125_000 };
        assert_eq!(
            line(DeviceId(0), &trace(None, end)),
            "1.500000000 hw0 export 2 write-out: slot ends, used up: 60 of 64 sectors in 0.125 ms, charged 60"
        );
        let value = as_json(DeviceId(3), &trace(None, end));
        assert_eq!(
            (&value["event"], &value["device"], &value["connection"]),
            (&json!("end"), &json!("hw3"), &Value::Null)
        );
        let none = SlotEvent::Raise { reason: "none", weight: 40 };
        assert!(line(DeviceId(0), &trace(Some(5), none)).ends_with("raised no more, weight 40"));
    }
}
