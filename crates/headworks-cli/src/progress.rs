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

    /// Returns the line for `left` bytes at `at` nanoseconds after the start; none if nothing is left.
    pub fn line(&mut self, at: u64, left: u64) -> Option<String> {
        let &mut (began, all) = self.first.get_or_insert((at, left));
        if left == 0 {
            return None;
        }
        let shown = display_size(left);
        // The amount can grow only if the first sample was taken before the server stopped writers.
        let (took, written) = (at.saturating_sub(began), all.saturating_sub(left));
        if written == 0 || took == 0 {
            self.first = Some((began, all.max(left)));
            return Some(format!("stopping: {shown} left to write"));
        }
        let rate = (u128::from(written) * u128::from(SEC) / u128::from(took)).max(1);
        let seconds = u128::from(left).div_ceil(rate);
        let rate = display_size(u64::try_from(rate).unwrap_or(u64::MAX));
        Some(format!("stopping: {shown} left to write, {rate}/s, about {seconds} s"))
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
        assert_eq!(progress.line(SEC, 64 * mib).unwrap(), "stopping: 64 MiB left to write");
        let line = progress.line(3 * SEC, 48 * mib).unwrap();
        assert_eq!(line, "stopping: 48 MiB left to write, 8 MiB/s, about 6 s");
        // Slower: the average of the whole stop, not of the last second.
        let line = progress.line(5 * SEC, 48 * mib).unwrap();
        assert_eq!(line, "stopping: 48 MiB left to write, 4 MiB/s, about 12 s");
        assert_eq!(progress.line(6 * SEC, 0), None);
    }

    #[test]
    fn growing_amount_prints_no_rate() {
        let mut progress = Progress::new();
        assert_eq!(progress.line(0, 0), None);
        assert_eq!(progress.line(SEC, 4096).unwrap(), "stopping: 4 KiB left to write");
        assert_eq!(progress.line(SEC, 0), None);
        let mut slow = Progress::new();
        slow.line(0, u64::MAX);
        let line = slow.line(u64::MAX, u64::MAX - 1).unwrap();
        assert!(line.contains("1 bytes/s"), "{line}");
    }
}
