//! Progress lines of a shutdown: bytes left, rate and estimated time, the exports that are waited for; and the loss if it was cut
//! short.

use headworks::house::display_size;
use headworks_server::{ActiveExport, VolumeStop};

/// Nanoseconds per second.
const SEC: u64 = 1_000_000_000;

/// Exports that a line names.
const NAMED: usize = 3;

/// Progress of one shutdown.
pub struct Progress {
    /// Time in nanoseconds and bytes left at the first sample.
    first: Option<(u64, u64)>,
    /// Bytes left at the last sample.
    last: Option<u64>,
}

impl Progress {
    /// Creates a progress without samples.
    pub fn new() -> Self {
        Self { first: None, last: None }
    }

    /// Returns the line for `left` bytes at `at` nanoseconds after the start, with what is waited for if nothing was written since the
    /// last one.
    pub fn line(&mut self, at: u64, left: u64, waits: Option<&str>) -> String {
        let line = self.line_of(at, left);
        let stands = left == 0 || self.last.is_some_and(|last| left >= last);
        self.last = Some(left);
        match waits {
            Some(waits) if stands => format!("{line}; waiting for {waits}"),
            None if left == 0 => format!("{line}, waiting for requests of devices"),
            _ => line,
        }
    }

    fn line_of(&mut self, at: u64, left: u64) -> String {
        let &mut (began, all) = self.first.get_or_insert((at, left));
        if left == 0 {
            return "stopping: nothing left to write".to_owned();
        }
        let shown = display_size(left);
        // The amount can grow only if the first sample was taken before the server stopped writers.
        let (took, written) = (at.saturating_sub(began), all.saturating_sub(left));
        if written == 0 || took == 0 {
            self.first = Some((began, all.max(left)));
            return format!("stopping: {shown} left to write");
        }
        let rate = (u128::from(written) * u128::from(SEC) / u128::from(took)).max(1);
        let seconds = u128::from(left).div_ceil(rate);
        let rate = display_size(u64::try_from(rate).unwrap_or(u64::MAX));
        format!("stopping: {shown} left to write, {rate}/s, about {seconds} s")
    }
}

/// What an export waits for during a stop; none when its stop has ended.
fn wait_of(export: &ActiveExport) -> Option<String> {
    let progress = export.progress;
    let what = match (progress.stop, progress.requests) {
        (VolumeStop::Closed | VolumeStop::Failed, _) => return None,
        (VolumeStop::Serving, _) => "has not begun to stop".to_owned(),
        (VolumeStop::Draining, 0) => "a client takes no replies".to_owned(),
        (VolumeStop::Draining, 1) => "1 request in flight".to_owned(),
        (VolumeStop::Draining, requests) => format!("{requests} requests in flight"),
        (VolumeStop::Flushing, _) => match progress.left.unwrap_or(0) {
            0 => "a flush in flight".to_owned(),
            left => format!("{} being written", display_size(left)),
        },
        (VolumeStop::Closing, _) => "its mark being removed".to_owned(),
    };
    Some(format!("export {} (device {}, {what})", export.name, export.device))
}

/// The exports whose stop has not ended, and what each waits for; none if there are none.
pub fn waits(exports: &[ActiveExport]) -> Option<String> {
    let all: Vec<String> = exports.iter().filter_map(wait_of).collect();
    let named = all.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match all.len() {
        0 => None,
        1..=NAMED => Some(named),
        count => Some(format!("{named} and {} more", count - NAMED)),
    }
}

/// Whether all that a stop waits for are reads of read-only exports: nothing of them can be lost.
pub fn waits_for_readers_only(exports: &[ActiveExport]) -> bool {
    let mut waited = exports.iter().filter(|export| !export.progress.stop.has_ended()).peekable();
    waited.peek().is_some()
        && waited.all(|export| export.read_only && export.progress.stop == VolumeStop::Draining)
}

/// Message about a shutdown that lost nothing: `dirty` bytes were in the cache when it began, and it took `took` nanoseconds.
pub fn completed(dirty: u64, took: u64) -> String {
    let seconds = took as f64 / SEC as f64;
    match dirty {
        0 => format!(
            "stopped: everything is written out; nothing was left to write ({seconds:.1} s)"
        ),
        _ => {
            format!("stopped: everything is written out; {} in {seconds:.1} s", display_size(dirty))
        }
    }
}

/// Message about the bytes of an export that were not written; `reason` says why the shutdown was cut short.
pub fn lost(export: &str, left: u64, reason: &str) -> String {
    format!("export {export}: {left} bytes ({}) were not written {reason}", display_size(left))
}

/// Message about the bytes of an export that were not written and outlive the server in `place`.
pub fn kept(export: &str, left: u64, place: &str) -> String {
    let size = display_size(left);
    format!(
        "export {export}: {left} bytes ({size}) are not written yet; the next start finds them in {place}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_server::VolumeProgress;

    #[test]
    fn rate_is_the_average_since_the_first_sample() {
        let mut progress = Progress::new();
        let mib = 1 << 20;
        assert_eq!(progress.line(SEC, 64 * mib, None), "stopping: 64 MiB left to write");
        let line = progress.line(3 * SEC, 48 * mib, None);
        assert_eq!(line, "stopping: 48 MiB left to write, 8 MiB/s, about 6 s");
        // Slower: the average of the whole stop, not of the last second.
        let line = progress.line(5 * SEC, 48 * mib, None);
        assert_eq!(line, "stopping: 48 MiB left to write, 4 MiB/s, about 12 s");
        assert!(progress.line(6 * SEC, 0, None).contains("waiting for requests"));
    }

    fn export(name: &str, stop: VolumeStop, requests: u64, left: u64) -> ActiveExport {
        let (left, unflushed) = (Some(left), Some(0));
        let progress = VolumeProgress { stop, requests, left, unflushed, suspect: false };
        let device = "hw3".into();
        ActiveExport { name: name.into(), device, read_only: false, volatile: true, progress }
    }

    #[test]
    fn hung_reads_of_read_only_exports_are_told_from_what_can_be_lost() {
        use VolumeStop::{Closed, Draining, Flushing};
        let reads = ActiveExport { read_only: true, ..export("ro", Draining, 1, 0) };
        let done = export("a", Closed, 0, 0);
        assert!(!waits_for_readers_only(std::slice::from_ref(&done)), "nothing is waited for");
        assert!(waits_for_readers_only(&[done.clone(), reads.clone()]));
        for other in [Draining, Flushing] {
            assert!(!waits_for_readers_only(&[reads.clone(), export("b", other, 0, 4096)]));
        }
    }

    #[test]
    fn exports_that_hold_the_stop_up_are_named() {
        use VolumeStop::{Closed, Closing, Draining, Failed, Flushing};
        assert_eq!(waits(&[export("a", Closed, 0, 0), export("b", Failed, 0, 4096)]), None);
        let waits_for = Progress::new().line(0, 0, Some("export x"));
        assert_eq!(waits_for, "stopping: nothing left to write; waiting for export x");
        let mut progress = Progress::new();
        assert_eq!(progress.line(SEC, 8192, Some("export x")), "stopping: 8 KiB left to write");
        assert!(!progress.line(2 * SEC, 4096, Some("export x")).contains("waiting"));
        let line = progress.line(3 * SEC, 4096, Some("export x"));
        assert!(line.ends_with("; waiting for export x"), "nothing was written: {line}");
        let mut all = vec![export("a", Closed, 0, 0), export("b", Draining, 1, 0)];
        assert_eq!(waits(&all).unwrap(), "export b (device hw3, 1 request in flight)");
        all.push(export("c", Flushing, 0, 4096));
        all.push(export("d", Flushing, 0, 0));
        let three = waits(&all).unwrap();
        assert!(
            three.contains(
                "c (device hw3, 4 KiB being written), export d (device hw3, a flush in flight)"
            ),
            "{three}"
        );
        all.push(export("e", Draining, 0, 0));
        all.push(export("f", Closing, 0, 0));
        assert!(waits(&all).unwrap().ends_with("a flush in flight) and 2 more"));
    }

    #[test]
    fn growing_amount_prints_no_rate() {
        let mut progress = Progress::new();
        assert!(progress.line(0, 0, None).starts_with("stopping: nothing left"));
        assert_eq!(progress.line(SEC, 4096, None), "stopping: 4 KiB left to write");
        assert!(progress.line(SEC, 0, None).starts_with("stopping: nothing left"));
        let mut slow = Progress::new();
        slow.line(0, u64::MAX, None);
        let line = slow.line(u64::MAX, u64::MAX - 1, None);
        assert!(line.contains("1 bytes/s"), "{line}");
    }

    #[test]
    fn completed_shutdown_names_bytes_and_time() {
        let line = completed(32 << 20, 380_000_000);
        assert_eq!(line, "stopped: everything is written out; 32 MiB in 0.4 s");
        assert_eq!(
            completed(0, 0),
            "stopped: everything is written out; nothing was left to write (0.0 s)"
        );
    }
}
