//! What a thread sleeps on that has no engine: one word, a futex.
//!
//! ```text
//!   quiet (0) --make_noise: and a system call--> noise (1) --sleep: returns at once--> quiet
//! ```
//!
//! Noise made before the sleep ends it at once, so that with the ring's announcement (`ring.rs`) nothing is slept over.

use std::sync::atomic::{AtomicU32, Ordering};

const QUIET: u32 = 0;
const NOISE: u32 = 1;

/// One thread sleeps here at a time.
#[derive(Debug, Default)]
pub(super) struct Bed {
    state: AtomicU32,
}

impl Bed {
    /// Ends the sleep, or the next one.
    pub fn make_noise(&self) {
        // Release: pairs with the Acquire in `sleep`. Whoever made the first noise woke the sleeper.
        if self.state.swap(NOISE, Ordering::Release) == QUIET {
            self.futex(libc::FUTEX_WAKE, 1);
        }
    }

    /// Sleeps until there is noise.
    pub fn sleep(&self) {
        // Acquire: pairs with the Release in `make_noise`.
        while self.state.swap(QUIET, Ordering::Acquire) == QUIET {
            self.futex(libc::FUTEX_WAIT, QUIET);
        }
    }

    fn futex(&self, operation: i32, value: u32) {
        let no_timeout = std::ptr::null::<libc::timespec>();
        // SAFETY: the word lives as long as `self`. Whatever comes back, the caller looks at the word.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.state.as_ptr(),
                operation | libc::FUTEX_PRIVATE_FLAG,
                value,
                no_timeout,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_made_before_the_sleep_ends_it_once() {
        let bed = Bed::default();
        bed.make_noise();
        bed.make_noise();
        bed.sleep();
        assert_eq!(bed.state.load(Ordering::Relaxed), QUIET, "the noise is spent");
    }

    #[test]
    fn two_threads_wake_each_other_in_turn() {
        let beds = [Bed::default(), Bed::default()];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..1000 {
                    beds[0].sleep();
                    beds[1].make_noise();
                }
            });
            for _ in 0..1000 {
                beds[0].make_noise();
                beds[1].sleep();
            }
        });
    }
}
