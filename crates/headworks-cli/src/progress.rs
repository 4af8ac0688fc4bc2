//! Progress lines of a shutdown: bytes left, rate and estimated time; and the loss if it was cut short.

use headworks::display_size;

/// Nanoseconds per second.
const SEC: u64 = 1_000_000_000;

/// Progress of one shutdown.
pub struct Progress {
    /// Time in nanoseconds and bytes left at the first sample.
    first: Option<(u64, u64)>,
}

impl Progress {
    /// Creates a progress without samples.
    pub fn new() -> Self {
        Self { first: None }
    }

    /// Returns the line for `left` bytes at `at` nanoseconds after the start.
    pub fn line(&mut self, at: u64, left: u64) -> String {
        let &mut (began, all) = self.first.get_or_insert((at, left));
        if left == 0 {
            return "stopping: nothing left to write, waiting for requests and flushes of the devices"
                .to_owned();
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

    #[test]
    fn rate_is_the_average_since_the_first_sample() {
        let mut progress = Progress::new();
        let mib = 1 << 20;
        assert_eq!(progress.line(SEC, 64 * mib), "stopping: 64 MiB left to write");
        let line = progress.line(3 * SEC, 48 * mib);
        assert_eq!(line, "stopping: 48 MiB left to write, 8 MiB/s, about 6 s");
        // Slower: the average of the whole stop, not of the last second.
        let line = progress.line(5 * SEC, 48 * mib);
        assert_eq!(line, "stopping: 48 MiB left to write, 4 MiB/s, about 12 s");
        assert!(progress.line(6 * SEC, 0).contains("waiting for requests and flushes"));
    }

    #[test]
    fn growing_amount_prints_no_rate() {
        let mut progress = Progress::new();
        assert!(progress.line(0, 0).starts_with("stopping: nothing left"));
        assert_eq!(progress.line(SEC, 4096), "stopping: 4 KiB left to write");
        assert!(progress.line(SEC, 0).starts_with("stopping: nothing left"));
        let mut slow = Progress::new();
        slow.line(0, u64::MAX);
        let line = slow.line(u64::MAX, u64::MAX - 1);
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
