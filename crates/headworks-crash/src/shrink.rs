//! Shrinking: of a state that fails, the smallest losses that still fail.
//!
//! Delta debugging over axes, then over the choice on each. Every candidate is a state of the model, because every choice is. The result is
//! 1-minimal: losing one change less on any axis does not fail, unless the checks ran out.

/// Shrinks choices that fail. `fails` checks a candidate; it is called at most `checks` times.
pub fn shrink(choices: &[u32], checks: u32, mut fails: impl FnMut(&[u32]) -> bool) -> Vec<u32> {
    let mut left = checks;
    let mut try_one = |candidate: &[u32]| {
        let may = left > 0;
        left = left.saturating_sub(1);
        may && fails(candidate)
    };
    let mut best = choices.to_vec();
    if best.iter().any(|choice| *choice > 0) && try_one(&vec![0; best.len()]) {
        return vec![0; best.len()];
    }
    loop {
        let before = best.clone();
        drop_axes(&mut best, &mut try_one);
        lower_choices(&mut best, &mut try_one);
        if best == before {
            return best;
        }
    }
}

/// Sets groups of axes to 0, in ever smaller groups.
fn drop_axes(best: &mut Vec<u32>, fails: &mut impl FnMut(&[u32]) -> bool) {
    let lost = |best: &[u32]| (0..best.len()).filter(|at| best[*at] > 0).collect::<Vec<_>>();
    let mut size = lost(best).len().div_ceil(2);
    while size > 0 {
        let axes = lost(best);
        let dropped =
            axes.chunks(size).filter(|group| group.len() < axes.len()).find_map(|group| {
                let mut candidate = best.clone();
                group.iter().for_each(|at| candidate[*at] = 0);
                fails(&candidate).then_some(candidate)
            });
        match dropped {
            Some(candidate) => {
                *best = candidate;
                size = size.min(lost(best).len().div_ceil(2));
            }
            None if size == 1 => return,
            None => size = size.div_ceil(2),
        }
    }
}

/// Lowers the choice on each axis: by halves first, then one by one.
fn lower_choices(best: &mut Vec<u32>, fails: &mut impl FnMut(&[u32]) -> bool) {
    for at in 0..best.len() {
        let mut step = best[at] / 2;
        while step > 0 {
            let mut candidate = best.clone();
            candidate[at] -= step;
            match candidate[at] > 0 && fails(&candidate) {
                true => {
                    *best = candidate;
                    step = step.min(best[at] / 2);
                }
                false => step /= 2,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::prng::Prng;

    #[test]
    fn planted_sets_are_found_and_minimal() {
        let mut prng = Prng::new(11);
        for _ in 0..200 {
            let most: Vec<u32> =
                (0..1 + prng.below(40)).map(|_| 1 + prng.below(9) as u32).collect();
            // A state fails if it loses at least this much on a few axes.
            let mut planted = vec![0; most.len()];
            for _ in 0..=prng.below(3) {
                let at = prng.below(most.len() as u64) as usize;
                planted[at] = 1 + prng.below(u64::from(most[at])) as u32;
            }
            let fails =
                |choices: &[u32]| choices.iter().zip(&planted).all(|(one, need)| one >= need);
            let mut checks = 0;
            let small = shrink(&most, 10_000, |choices| {
                checks += 1;
                assert!(choices.iter().zip(&most).all(|(one, most)| one <= most), "legal");
                fails(choices)
            });
            assert_eq!(small, planted);
            assert!(checks < 400, "{checks}");
        }
    }

    #[test]
    fn failures_without_a_loss_are_told_by_one_check() {
        let mut checks = 0;
        let small = shrink(&[3, 1, 4], 10, |_| {
            checks += 1;
            true
        });
        assert_eq!((small, checks), (vec![0; 3], 1));
    }

    #[test]
    fn checks_are_bounded_and_the_result_still_fails() {
        let fails = |choices: &[u32]| choices.iter().sum::<u32>() >= 20;
        let mut checks = 0;
        let small = shrink(&[5; 30], 7, |choices| {
            checks += 1;
            fails(choices)
        });
        assert!(fails(&small) && checks <= 7);
    }

    #[test]
    fn irregular_failures_end_one_minimal() {
        let mut prng = Prng::new(2);
        for _ in 0..100 {
            let salt = prng.next();
            let fails = |choices: &[u32]| {
                let hash =
                    choices.iter().fold(salt, |hash, one| hash.rotate_left(5) ^ u64::from(*one));
                choices.iter().sum::<u32>() > 4 || Prng::new(hash).next().is_multiple_of(5)
            };
            let first = [3, 3, 3, 3, 3];
            let small = shrink(&first, 10_000, fails);
            assert!(fails(&small));
            if small.iter().any(|one| *one > 0) {
                for at in (0..5).filter(|at| small[*at] > 0) {
                    let mut less = small.clone();
                    less[at] -= 1;
                    let dropped = less.iter().any(|one| *one > 0);
                    assert!(!dropped || !fails(&less), "{small:?} less one at {at} still fails");
                }
            }
        }
    }
}
