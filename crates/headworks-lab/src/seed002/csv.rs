//! Trace events of the throttle as lines of text, with the fields of Linux's trace events
//! `writeback:balance_dirty_pages` and `writeback:bdi_dirty_ratelimit`: times in ms, rates in
//! KiB/s, positions in blocks of 4 KiB.
//!
//! Both events share one table, so that any tool can read it; fields that an event lacks are empty.

use headworks_core::writeback::TraceEvent;

/// The header line with the column names.
pub const HEADER: &str = "run,event,at_ns,bdi,connection,limit,setpoint,dirty,bdi_setpoint,bdi_dirty,dirty_ratelimit,\
                          task_ratelimit,dirtied,dirtied_pause,paused,pause,period,think,write_bw,awrite_bw,dirty_rate,\
                          balanced_dirty_ratelimit";

/// The line of an event, without its end; `run` names the run.
#[must_use]
pub fn line(run: &str, event: &TraceEvent) -> String {
    match event {
        TraceEvent::BalanceDirtyPages(e) => format!(
            "{run},balance_dirty_pages,{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},,,,",
            e.at.0,
            e.bdi,
            e.connection,
            e.limit,
            e.setpoint,
            e.dirty,
            e.bdi_setpoint,
            e.bdi_dirty,
            e.dirty_ratelimit,
            e.task_ratelimit,
            e.dirtied,
            e.dirtied_pause,
            e.paused,
            e.pause,
            e.period,
            e.think
        ),
        TraceEvent::BdiDirtyRatelimit(e) => format!(
            "{run},bdi_dirty_ratelimit,{},{},,,,,,,{},{},,,,,,,{},{},{},{}",
            e.at.0,
            e.bdi,
            e.dirty_ratelimit,
            e.task_ratelimit,
            e.write_bw,
            e.awrite_bw,
            e.dirty_rate,
            e.balanced_dirty_ratelimit
        ),
    }
}

#[cfg(test)]
mod tests {
    use headworks_core::Instant;
    use headworks_core::writeback::{BalanceDirtyPages, BdiDirtyRatelimit};

    use super::*;

    #[test]
    fn values_match_their_columns() {
        let event = BalanceDirtyPages { at: Instant(7), pause: -3, think: 9, ..Default::default() };
        let pauses = line("r", &TraceEvent::BalanceDirtyPages(event));
        let event = BdiDirtyRatelimit {
            task_ratelimit: 11,
            write_bw: 12,
            balanced_dirty_ratelimit: 13,
            ..Default::default()
        };
        let rates = line("r", &TraceEvent::BdiDirtyRatelimit(event));
        let cell = |line: &str, name: &str| {
            let place = HEADER.split(',').position(|known| known == name).unwrap();
            line.split(',').nth(place).unwrap().to_string()
        };
        assert_eq!(
            ["at_ns", "pause", "think", "write_bw"].map(|name| cell(&pauses, name)),
            ["7", "-3", "9", ""]
        );
        let names = ["task_ratelimit", "think", "write_bw", "balanced_dirty_ratelimit"];
        assert_eq!(names.map(|name| cell(&rates, name)), ["11", "", "12", "13"]);
        let columns = HEADER.split(',').count();
        assert!([&pauses, &rates].iter().all(|line| line.split(',').count() == columns));
    }
}
