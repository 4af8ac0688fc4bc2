//! The state of an elevator that serves in slots, as `get` shows it and `why` tells of it.

use headworks_control::answers;
use headworks_core::ExportId;
use headworks_core::elevator::{ElevatorState, FlowState, Served, SlotState};

use super::latency::micros;
use super::why::size;

/// Bytes of a sector.
const SECTOR: u64 = 512;
/// Exports that `why` names.
const NAMED: usize = 3;

/// What others were served in the last minute, by the names of their exports.
#[derive(Clone, Debug, Default)]
pub struct ServedMeanwhile {
    /// Seconds that the services cover.
    seconds: f64,
    /// Exports with their tenants, largest service first; the asking one among them.
    exports: Vec<(String, Served)>,
    /// The connection of another queue that is in service or was served most, with its export.
    most: Option<(String, Option<u32>)>,
    /// The queue in service is empty and keeps the device: its export and connection.
    waited_for: Option<(String, Option<u32>)>,
    /// Raised queues that are busy: export, connection, reason.
    raised: Vec<(String, Option<u32>, &'static str)>,
    /// Nanoseconds for which the device was kept for empty queues.
    idle_ns: u64,
}

/// `export logs of tenant acme`, as `name` says it, or `connection 5 of` that.
fn party(export: &str, connection: Option<u32>) -> String {
    match connection {
        Some(connection) => format!("connection {connection} of {export}"),
        None => format!("write-out of {export}"),
    }
}

impl ServedMeanwhile {
    /// What `state` tells a client of `export`; `name` gives the words for an export.
    pub fn of(state: &ElevatorState, export: ExportId, name: impl Fn(ExportId) -> String) -> Self {
        let others = |flow: &&FlowState| flow.export != export;
        let by_service = |flow: &&FlowState| (flow.served.slot_ns, flow.served.sectors);
        let most = state.flows.iter().filter(others).max_by_key(by_service);
        let waits = |slot: &SlotState| slot.idle_ns.map(|_| (name(slot.export), slot.connection));
        let raised = state.flows.iter().filter(|flow| flow.busy && flow.raise != "none");
        Self {
            seconds: state.span_ns as f64 / 1e9,
            exports: state.exports.iter().map(|(id, served)| (name(*id), *served)).collect(),
            most: most.map(|flow| (name(flow.export), flow.connection)),
            waited_for: state.slot.as_ref().and_then(waits),
            raised: raised
                .take(NAMED)
                .map(|flow| (name(flow.export), flow.connection, flow.raise))
                .collect(),
            idle_ns: state.served.idle_ns,
        }
    }

    /// What was served meanwhile, in words; none if nothing was.
    pub fn reason(&self) -> Option<String> {
        let one = |(name, served): &(String, Served)| {
            let bytes = size(served.sectors * SECTOR);
            match served.slot_ns / 1_000_000 {
                0 => format!("{name} {bytes}"),
                ms => format!("{name} {bytes} in {:.1} s", ms as f64 / 1e3),
            }
        };
        if self.exports.is_empty() {
            return None;
        }
        let named: Vec<String> = self.exports.iter().take(NAMED).map(one).collect();
        let mut text = format!("in the last {:.0} s it served {}", self.seconds, named.join(", "));
        if let Some((export, connection)) = &self.most {
            text += &format!("; of others {} most", party(export, *connection));
        }
        if self.idle_ns >= 1_000_000 {
            let seconds = self.idle_ns as f64 / 1e9;
            text += &format!("; it kept the device {seconds:.2} s for clients that it waited for");
        }
        if let Some((export, connection)) = &self.waited_for {
            text += &format!(", now for {}", party(export, *connection));
        }
        for (export, connection, reason) in &self.raised {
            text += &format!("; raised: {}, {reason}", party(export, *connection));
        }
        Some(text)
    }

    /// The same for programs.
    pub fn answer(&self) -> answers::ServedMeanwhile {
        let place = |(export, connection): &(String, Option<u32>)| answers::QueueName {
            export: export.clone(),
            connection: *connection,
        };
        let export = |(name, served): &(String, Served)| of_export(Some(name.clone()), served);
        let raised = |(export, connection, reason): &(String, Option<u32>, &str)| {
            let (export, reason) = (export.clone(), (*reason).to_owned());
            answers::RaisedQueue { export, connection: *connection, reason }
        };
        answers::ServedMeanwhile {
            seconds: self.seconds,
            exports: self.exports.iter().map(export).collect(),
            most: self.most.as_ref().map(place),
            waited_for: self.waited_for.as_ref().map(place),
            raised: self.raised.iter().map(raised).collect(),
            idle_us: micros(self.idle_ns),
        }
    }
}

fn of_all(served: &Served) -> answers::Served {
    // No `..`: every counter must be listed.
    let Served { slots, sectors, slot_ns, idle_ns } = *served;
    let (slot_us, idle_us) = (micros(slot_ns), micros(idle_ns));
    answers::Served { slots, bytes: sectors * SECTOR, slot_us, idle_us }
}

fn of_export(export: Option<String>, served: &Served) -> answers::ServedExport {
    let answers::Served { slots, bytes, slot_us, idle_us } = of_all(served);
    answers::ServedExport { export, slots, bytes, slot_us, idle_us }
}

/// The whole state; `name` gives the name of an export, if it still is there.
pub fn state_of(
    state: &ElevatorState,
    name: impl Fn(ExportId) -> Option<String>,
) -> answers::ElevatorState {
    let slot = |slot: &SlotState| answers::ElevatorSlot {
        export: name(slot.export),
        connection: slot.connection,
        age_us: micros(slot.age_ns),
        left_us: micros(slot.left_ns),
        idle_us: slot.idle_ns.map(micros),
    };
    let flow = |flow: &FlowState| answers::ElevatorQueue {
        export: name(flow.export),
        connection: flow.connection,
        ioprio: flow.ioprio.to_string(),
        busy: flow.busy,
        weight: flow.weight,
        raise: flow.raise.to_owned(),
        waiting: flow.waiting,
        in_device: flow.in_device,
        budget: flow.budget,
        service: flow.service,
        think_us: micros(flow.think_ns),
        seeky: flow.seeky,
        inject: flow.inject,
        served: of_all(&flow.served),
    };
    let export = |(id, served): &(ExportId, Served)| of_export(name(*id), served);
    answers::ElevatorState {
        peak_rate: state.peak_rate * SECTOR,
        max_budget: state.max_budget,
        virtual_time: state.virtual_time,
        in_service: state.slot.as_ref().map(slot),
        waiting: state.waiting,
        in_device: state.in_device,
        busy: state.busy,
        raised: state.raised,
        known: state.known,
        seconds: state.span_ns as f64 / 1e9,
        served: of_all(&state.served),
        exports: state.exports.iter().map(export).collect(),
        flows: state.flows.iter().map(flow).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> ElevatorState {
        let served = |mib: u64, seconds: u64| Served {
            slots: 1,
            sectors: mib * 2048,
            slot_ns: seconds * 1_000_000_000,
            idle_ns: 0,
        };
        let flow = |export, connection, served, raise| FlowState {
            export: ExportId(export),
            connection,
            ioprio: Default::default(),
            busy: true,
            weight: 40,
            raise,
            waiting: 1,
            in_device: 0,
            budget: 64,
            service: 8,
            think_ns: 0,
            seeky: false,
            inject: 0,
            served,
        };
        ElevatorState {
            slot: Some(SlotState {
                export: ExportId(1),
                connection: Some(12),
                age_ns: 0,
                left_ns: 0,
                idle_ns: Some(1),
            }),
            flows: vec![
                flow(0, Some(4), served(1, 1), "soft real time"),
                flow(1, Some(12), served(41, 9), "none"),
                flow(1, None, served(2, 2), "none"),
            ],
            exports: vec![(ExportId(1), served(43, 11)), (ExportId(0), served(1, 1))],
            served: Served { idle_ns: 250_000_000, ..served(44, 12) },
            span_ns: 40_000_000_000,
            ..ElevatorState::default()
        }
    }

    #[test]
    fn services_of_others_are_told_in_one_sentence() {
        let name = |id: ExportId| format!("export e{}", id.0);
        let meanwhile = ServedMeanwhile::of(&state(), ExportId(0), name);
        assert_eq!(
            meanwhile.reason().unwrap(),
            "in the last 40 s it served export e1 43.0 MiB in 11.0 s, export e0 1.0 MiB in 1.0 s; of others connection 12 of export e1 most; it kept the device 0.25 s for clients that it waited for, now for connection 12 of export e1; raised: connection 4 of export e0, soft real time"
        );
        let told = meanwhile.answer();
        let most = answers::QueueName { export: "export e1".into(), connection: Some(12) };
        assert_eq!(told.most, Some(most));
        assert_eq!((told.exports[0].bytes, told.idle_us), (43 << 20, 250_000.0));
        let nothing = ServedMeanwhile::of(&ElevatorState::default(), ExportId(0), name);
        assert_eq!(nothing.reason(), None);
    }

    #[test]
    fn state_lists_slot_and_flows() {
        let told = state_of(&state(), |id| (id.0 == 1).then(|| "logs".to_owned()));
        let slot = told.in_service.unwrap();
        assert_eq!((slot.export.as_deref(), slot.connection), (Some("logs"), Some(12)));
        assert_eq!((slot.idle_us, told.flows.len()), (Some(0.001), 3));
        assert_eq!((&told.flows[0].export, &*told.flows[0].raise), (&None, "soft real time"));
        assert_eq!(told.flows[2].connection, None);
    }
}
