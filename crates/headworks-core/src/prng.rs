//! SplitMix64: pseudo-random numbers from a seed, equal on every machine.
//!
//! `split` derives independent streams, so that a new draw in one component does not shift those of another.

/// A stream of pseudo-random numbers, not for secrets.
#[derive(Clone, Debug)]
pub struct Prng {
    state: u64,
}

impl Prng {
    /// Creates the stream of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Derives the independent stream of the component `name`.
    #[must_use]
    pub fn split(&self, name: &str) -> Self {
        let mut child = Self::new(self.state ^ 0x5851_f42d_4c95_7f2d);
        for byte in name.bytes() {
            child.state = child.state.wrapping_add(u64::from(byte));
            child.next();
            child.state ^= mix(child.state);
        }
        child
    }

    /// Draws the next 64 bits.
    #[allow(clippy::should_implement_trait)] // An endless stream: an iterator's `Option` would only be in the way.
    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Draws uniformly from `0..bound`; 0 for a bound of 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Draws uniformly from `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns true with a probability of `part` in a million.
    pub fn per_million(&mut self, part: u32) -> bool {
        self.below(1_000_000) < u64::from(part)
    }
}

/// SplitMix64's finaliser (Steele, Lea, Flood 2014).
const fn mix(state: u64) -> u64 {
    let mut z = state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_stream() {
        // The reference implementation's first outputs for seed 1234567.
        let mut prng = Prng::new(1_234_567);
        assert_eq!(prng.next(), 6_457_827_717_110_365_317);
        assert_eq!(prng.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn split_streams_differ_and_repeat() {
        let root = Prng::new(7);
        let (mut a, mut b, mut again) =
            (root.split("disk"), root.split("jobs"), root.split("disk"));
        let first = a.next();
        assert_ne!(first, b.next());
        assert_eq!(first, again.next());
        assert!((0..1000).all(|_| a.below(10) < 10));
    }
}
