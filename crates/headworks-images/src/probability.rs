//! How often a simulated fault happens.

use headworks_core::prng::Prng;

/// One in a billion, the resolution of a [`Probability`].
const BILLION: u32 = 1_000_000_000;

/// A probability in parts of a billion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probability(u32);

impl Probability {
    /// The event happens every time.
    pub const ALWAYS: Self = Self(BILLION);
    /// The event never happens.
    pub const NEVER: Self = Self(0);

    /// Creates a probability of `parts` in a billion; none above a billion.
    #[must_use]
    pub const fn from_billionths(parts: u32) -> Option<Self> {
        if parts <= BILLION { Some(Self(parts)) } else { None }
    }

    /// Draws once: returns true when the event happens. A certain or impossible event draws no random number.
    pub fn draw(self, prng: &mut Prng) -> bool {
        self == Self::ALWAYS
            || (self != Self::NEVER && prng.below(u64::from(BILLION)) < u64::from(self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draw_frequency_matches_the_probability() {
        let mut prng = Prng::new(1);
        let tenth = Probability::from_billionths(BILLION / 10).unwrap();
        let hits = (0..10_000).filter(|_| tenth.draw(&mut prng)).count();
        assert!((900..1100).contains(&hits), "{hits}");
        assert!((0..1000).all(|_| Probability::ALWAYS.draw(&mut prng)));
        assert!((0..1000).all(|_| !Probability::NEVER.draw(&mut prng)));
        assert_eq!(Probability::from_billionths(BILLION + 1), None);
    }
}
