//! Which states are looked at: draws by number, and all states of a place.
//!
//! A draw is decided by the seed and its number alone, so it does not matter how many jobs share them. A place of the record has each draw
//! in turn if there are enough. An eighth of the draws loses all that is pending, an eighth nothing, the rest a part.

use headworks_core::prng::Prng;

use crate::model::Axis;

/// Probabilities, in a million, that an axis loses something.
const PARTS: [u32; 3] = [150_000, 500_000, 850_000];

/// Draws of a test: so many states of so many places.
#[derive(Clone, Copy, Debug)]
pub struct Draws {
    /// Seed of places and losses.
    pub seed: u64,
    /// Number of draws in all.
    pub count: u64,
    /// Number of places: one more than the record has steps.
    pub places: u64,
}

impl Draws {
    /// Draws at a place, by their numbers.
    pub fn at(self, place: u64) -> impl Iterator<Item = u64> {
        let Self { count, places, .. } = self;
        // Enough: each place in turn. Too few: each has a stretch of places, and a random one in it.
        let enough = (count >= places).then(|| (place..count).step_by(places.max(1) as usize));
        let around = place * count / places.max(1);
        let few = (around.saturating_sub(1)..(around + 2).min(count))
            .filter(move |number| self.place(*number) == place);
        enough.into_iter().flatten().chain(few.filter(move |_| count < places))
    }

    /// The place of a draw.
    #[must_use]
    pub fn place(self, number: u64) -> u64 {
        let Self { count, places, .. } = self;
        if count >= places {
            return number % places.max(1);
        }
        let edge =
            |number: u64| (u128::from(number) * u128::from(places) / u128::from(count)) as u64;
        let (from, to) = (edge(number), edge(number + 1));
        from + self.prng(number).below((to - from).max(1))
    }

    /// What a draw loses, a choice for each axis.
    #[must_use]
    pub fn choices(self, number: u64, axes: &[Axis]) -> Vec<u32> {
        let mut prng = self.prng(number);
        prng.next();
        match prng.below(8) {
            0 => axes.iter().map(Axis::nothing_kept).collect(),
            1 => vec![0; axes.len()],
            _ => {
                let part = PARTS[prng.below(3) as usize];
                axes.iter().map(|axis| choice(&mut prng, axis, part)).collect()
            }
        }
    }

    fn prng(self, number: u64) -> Prng {
        Prng::new(Prng::new(self.seed).next() ^ Prng::new(!number).next())
    }
}

fn choice(prng: &mut Prng, axis: &Axis, part: u32) -> u32 {
    match axis {
        // How far the journal came has nothing to do with how much of the bytes was written.
        Axis::Sequence(_) => prng.below(u64::from(axis.most()) + 1) as u32,
        _ if prng.per_million(part) => 1 + prng.below(u64::from(axis.most())) as u32,
        _ => 0,
    }
}

/// Goes on to the next choices of a place; false behind the last. They begin with zeros.
pub fn next_choices(axes: &[Axis], choices: &mut [u32]) -> bool {
    for (axis, choice) in axes.iter().zip(choices) {
        if *choice < axis.most() {
            *choice += 1;
            return true;
        }
        *choice = 0;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_draw_is_at_one_place() {
        for (count, places) in
            [(1000, 7), (7, 1000), (10, 10), (1, 1), (3, 1), (999, 1000), (500, 501)]
        {
            let draws = Draws { seed: 5, count, places };
            let mut found: Vec<u64> = (0..places).flat_map(|place| draws.at(place)).collect();
            found.sort_unstable();
            assert_eq!(found, (0..count).collect::<Vec<_>>(), "{count} of {places}");
            for place in 0..places {
                assert!(draws.at(place).all(|number| draws.place(number) == place));
            }
        }
    }

    #[test]
    fn draws_depend_on_seed_and_number_alone() {
        let axes = [Axis::Sequence(vec![1, 2, 3]), Axis::Single(4), Axis::Single(5)];
        let draws = Draws { seed: 1, count: 500, places: 9 };
        let all: Vec<_> = (0..500).map(|number| draws.choices(number, &axes)).collect();
        assert_eq!(all, (0..500).map(|number| draws.choices(number, &axes)).collect::<Vec<_>>());
        let share = |choices: &[u32]| all.iter().filter(|one| **one == choices).count();
        assert!(share(&[0, 0, 0]) > 60 && share(&[3, 1, 1]) > 60);
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), 16, "each of the legal states is drawn");
    }

    #[test]
    fn all_choices_are_met_once() {
        let axes = [Axis::Sequence(vec![1, 2]), Axis::Single(3)];
        let (mut choices, mut all) = (vec![0, 0], vec![vec![0, 0]]);
        while next_choices(&axes, &mut choices) {
            all.push(choices.clone());
        }
        assert_eq!(all, [[0, 0], [1, 0], [2, 0], [0, 1], [1, 1], [2, 1]]);
    }
}
