//! When the requests of a connection are due that has a rate: at random, as from many independent users.
//!
//! The gaps are exponential with the mean of the rate (a Poisson process), drawn from a seed: the same run has the same arrivals.
//!
//! Invariant: arrivals never go back, and do not depend on what was answered.

use headworks_core::prng::Prng;

/// The arrivals of one connection.
#[derive(Debug)]
pub struct Arrivals {
    prng: Prng,
    /// Mean gap.
    gap_ns: f64,
    /// The next arrival after the start of the phase, in nanoseconds.
    next_ns: f64,
}

impl Arrivals {
    /// Arrivals of `rate` requests a second, above 0.
    pub fn new(rate: f64, prng: Prng) -> Self {
        assert!(rate > 0.0, "a rate is above 0");
        Self { prng, gap_ns: 1e9 / rate, next_ns: 0.0 }
    }

    /// Begins anew with the next draws.
    pub fn restart(&mut self) {
        self.next_ns = 0.0;
        self.advance();
    }

    /// Nanoseconds from the start of the phase to the next arrival.
    pub fn next(&self) -> u64 {
        self.next_ns as u64
    }

    /// Goes on to the arrival after the next.
    pub fn advance(&mut self) {
        // In (0, 1]: its logarithm is finite.
        let uniform = (self.prng.below(1 << 53) + 1) as f64 / (1u64 << 53) as f64;
        self.next_ns -= self.gap_ns * uniform.ln();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_their_rate_and_exponential_gaps() {
        let mut arrivals = Arrivals::new(50_000.0, Prng::new(3));
        arrivals.restart();
        let (mut count, mut short, mut before) = (0, 0, 0);
        while arrivals.next() < 1_000_000_000 {
            let gap = arrivals.next() - before;
            (count, short) = (count + 1, short + u32::from(gap < 20_000));
            before = arrivals.next();
            arrivals.advance();
        }
        assert!((49_000..51_000).contains(&count), "{count} in a second");
        // 1 - 1/e of them are shorter than the mean.
        let part = f64::from(short) / f64::from(count);
        assert!((0.62..0.645).contains(&part), "{part}");
    }
}
