//! The state of the scheduler bfq, as `headworks ctl get hw0/queue/iosched/state` prints it.

use headworks::display_size;
use serde_json::Value;

use crate::columns::aligned;
use crate::ctl::{list, plain};
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

fn word(value: &Value) -> String {
    if value.is_null() { "-".to_owned() } else { plain(value) }
}

fn time(value: &Value) -> String {
    value.as_f64().map_or_else(|| "-".to_owned(), micros)
}

fn bytes(value: &Value) -> String {
    display_size(value.as_u64().unwrap_or(0))
}

/// Formats a state: what the elevator knows of the device, the slot, and a row for each queue.
pub fn show_state(state: &Value) -> String {
    let slot = match &state["in_service"] {
        Value::Null => "none".to_owned(),
        slot => {
            let waits = match &slot["idle_us"] {
                Value::Null => String::new(),
                idle => format!(", empty, waited for at most {} more", time(idle)),
            };
            let (age, left) = (time(&slot["age_us"]), time(&slot["left_us"]));
            format!("{}, since {age}, {left} left{waits}", party(slot))
        }
    };
    let number = |name: &str| plain(&state[name]);
    let flows = list(&state["flows"]);
    let more = state["known"].as_u64().unwrap_or(0).saturating_sub(flows.len() as u64);
    let mut text = format!(
        "peak rate: {}/s, largest budget {} sectors, V {}\nin service: {slot}\nrequests: {} wait, {} in the device\nqueues: {} busy, {} of them raised, {} known\n",
        bytes(&state["peak_rate"]),
        number("max_budget"),
        number("virtual_time"),
        number("waiting"),
        number("in_device"),
        number("busy"),
        number("raised"),
        number("known"),
    );
    if !flows.is_empty() {
        text += &format!("last {:.0} s:\n", state["seconds"].as_f64().unwrap_or(0.0));
        text += &table(flows);
    }
    if more > 0 {
        text += &format!("and {more} more\n");
    }
    text
}

/// Names a queue: `db, connection 5`, or `db, write-out`.
fn party(flow: &Value) -> String {
    let export = word(&flow["export"]);
    match &flow["connection"] {
        Value::Null => format!("{export}, write-out"),
        connection => format!("{export}, connection {connection}"),
    }
}

/// Formats queues, one row each; columns are as wide as their content.
fn table(flows: &[Value]) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(flows.iter().map(|flow| {
        let raise = match flow["raise"].as_str() {
            None | Some("none") => "-".to_owned(),
            Some(raise) => raise.replace(' ', "-"),
        };
        let seeky = if flow["seeky"] == true { "yes" } else { "no" };
        [
            word(&flow["export"]),
            word(&flow["connection"]),
            word(&flow["ioprio"]),
            word(&flow["weight"]),
            raise,
            word(&flow["waiting"]),
            word(&flow["in_device"]),
            word(&flow["budget"]),
            word(&flow["service"]),
            time(&flow["think_us"]),
            seeky.to_owned(),
            word(&flow["inject"]),
            word(&flow["served"]["slots"]),
            bytes(&flow["served"]["bytes"]),
        ]
    }));
    aligned(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
