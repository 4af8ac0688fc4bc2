//! The state of the scheduler bfq, as `headworks ctl get hw0/queue/iosched/state` prints it.

use headworks::house::display_size;
use headworks_control::answers::{ElevatorQueue, ElevatorState};

use crate::columns::aligned;
use crate::ctl::or_dash;
use crate::observe::micros;

const HEAD: [&str; 14] = [
    "EXPORT",
    "CONNECTION",
    "IOPRIO",
    "WEIGHT",
    "RAISED",
    "WAITING",
    "DEVICE",
    "BUDGET",
    "USED",
    "THINK",
    "SEEKY",
    "INJECT",
    "SLOTS",
    "SERVED",
];

/// Formats a state: what the elevator knows of the device, the slot, and a row for each queue.
pub fn show_state(state: &ElevatorState) -> String {
    let slot = match &state.in_service {
        None => "none".to_owned(),
        Some(slot) => {
            let waits = match slot.idle_us {
                None => String::new(),
                Some(idle) => format!(", empty, waited for at most {} more", micros(idle)),
            };
            let party = party(slot.export.as_ref(), slot.connection);
            format!("{party}, since {}, {} left{waits}", micros(slot.age_us), micros(slot.left_us))
        }
    };
    let more = (state.known as usize).saturating_sub(state.flows.len());
    let mut text = format!(
        "peak rate: {}/s, largest budget {} sectors, V {}\nin service: {slot}\nrequests: {} wait, {} in the device\nqueues: {} busy, {} of them raised, {} known\n",
        display_size(state.peak_rate),
        state.max_budget,
        state.virtual_time,
        state.waiting,
        state.in_device,
        state.busy,
        state.raised,
        state.known,
    );
    if !state.flows.is_empty() {
        text += &format!("last {:.0} s:\n", state.seconds);
        text += &table(&state.flows);
    }
    if more > 0 {
        text += &format!("and {more} more\n");
    }
    text
}

/// Names a queue: `db, connection 5`, or `db, write-out`.
fn party(export: Option<&String>, connection: Option<u32>) -> String {
    let export = or_dash(export);
    match connection {
        None => format!("{export}, write-out"),
        Some(connection) => format!("{export}, connection {connection}"),
    }
}

/// Formats queues, one row each; columns are as wide as their content.
fn table(flows: &[ElevatorQueue]) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(flows.iter().map(|flow| {
        let raise = match &*flow.raise {
            "" | "none" => "-".to_owned(),
            raise => raise.replace(' ', "-"),
        };
        [
            or_dash(flow.export.as_ref()),
            flow.connection.map_or_else(|| "-".to_owned(), |id| id.to_string()),
            flow.ioprio.clone(),
            flow.weight.to_string(),
            raise,
            flow.waiting.to_string(),
            flow.in_device.to_string(),
            flow.budget.to_string(),
            flow.service.to_string(),
            micros(flow.think_us),
            if flow.seeky { "yes" } else { "no" }.to_owned(),
            flow.inject.to_string(),
            flow.served.slots.to_string(),
            display_size(flow.served.bytes),
        ]
    }));
    aligned(&rows)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    fn show_state(state: &Value) -> String {
        super::show_state(&crate::ctl::read(state).unwrap())
    }

    #[test]
    fn state_has_slot_totals_and_one_row_for_each_queue() {
        let flow = json!({ "export": "db", "connection": 5, "ioprio": "be,4", "weight": 1200,
            "raise": "interactive", "waiting": 3, "in_device": 1, "budget": 64, "service": 8,
            "think_us": 12.5, "seeky": true, "inject": 0,
            "served": { "slots": 7, "bytes": 4096, "slot_us": 0.0, "idle_us": 0.0 } });
        let mut writeout = flow.clone();
        (writeout["connection"], writeout["raise"]) = (Value::Null, "none".into());
        let state = json!({ "peak_rate": 1_048_576, "max_budget": 64, "virtual_time": 9,
            "in_service": { "export": "db", "connection": 5, "age_us": 100.0, "left_us": 300.0, "idle_us": 20.0 },
            "waiting": 3, "in_device": 1, "busy": 1, "raised": 1, "known": 3, "seconds": 40.0,
            "flows": [flow, writeout] });
        let text = show_state(&state);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("peak rate: 1 MiB/s, largest budget 64 sectors"), "{text}");
        assert!(lines[1].starts_with("in service: db, connection 5, since 100.0us"), "{text}");
        assert!(lines[1].contains("empty, waited for at most"), "{text}");
        assert_eq!(lines[3], "queues: 1 busy, 1 of them raised, 3 known");
        assert!(lines[5].starts_with("EXPORT  CONNECTION"), "{text}");
        assert!(lines[6].contains("be,4    1200    interactive"), "{text}");
        assert!(lines[7].starts_with("db      -   "), "{text}");
        assert_eq!(lines[8], "and 1 more");
        let idle = json!({ "in_service": null, "known": 0, "flows": [] });
        assert!(show_state(&idle).contains("in service: none\n"));
    }
}
