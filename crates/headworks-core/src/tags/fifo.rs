//! `fair`, first form: one line, tickets in order, whole wants.

use std::collections::VecDeque;

use super::{Ask, TagOwner, want_max};

/// One line for everybody.
#[derive(Debug)]
pub struct FifoTags {
    depth: u32,
    free: u32,
    line: VecDeque<Ask>,
}

impl FifoTags {
    /// `depth` free tags and room for `waiters_max` in line.
    #[must_use]
    pub fn new(depth: u32, waiters_max: usize) -> Self {
        assert!(depth > 0, "a device without tags serves nobody");
        Self { depth, free: depth, line: VecDeque::with_capacity(waiters_max) }
    }
}

impl TagOwner for FifoTags {
    fn ask(&mut self, asks: &[Ask]) -> usize {
        let mut granted = 0;
        if self.line.is_empty() {
            for ask in asks {
                assert!(
                    ask.want >= 1 && ask.want <= want_max(self.depth),
                    "a want that never fits"
                );
                if u32::from(ask.want) > self.free {
                    break;
                }
                self.free -= u32::from(ask.want);
                granted += 1;
            }
        }
        let waiting = &asks[granted..];
        assert!(
            self.line.len() + waiting.len() <= self.line.capacity(),
            "more waiters than slots exist"
        );
        self.line.extend(waiting);
        granted
    }

    fn put(&mut self, count: u32) {
        self.free += count;
        assert!(self.free <= self.depth, "a tag came back twice");
    }

    fn next_grant(&mut self) -> Option<Ask> {
        let head = *self.line.front()?;
        if u32::from(head.want) > self.free {
            return None;
        }
        self.free -= u32::from(head.want);
        self.line.pop_front()
    }

    fn free(&self) -> u32 {
        self.free
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn waiters(&self) -> u32 {
        self.line.len() as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;
    use crate::tags::Who;

    fn ask(slot: u32, want: u16) -> Ask {
        Ask { who: Who::Request(slot), want }
    }

    #[test]
    fn nobody_passes_a_waiter_even_when_a_small_want_would_fit() {
        let mut tags = FifoTags::new(8, 8);
        assert_eq!(tags.ask(&[ask(0, 4), ask(1, 2), ask(2, 4), ask(3, 1)]), 2);
        assert_eq!(tags.ask(&[ask(4, 1)]), 0, "2 tags are free, but 2 and 3 wait before it");
        assert_eq!(tags.next_grant(), None);
        tags.put(2);
        assert_eq!(tags.next_grant(), Some(ask(2, 4)));
        assert_eq!(tags.next_grant(), None);
        tags.put(4);
        assert_eq!(tags.next_grant(), Some(ask(3, 1)));
        assert_eq!(tags.next_grant(), Some(ask(4, 1)));
        assert_eq!((tags.free(), tags.waiters()), (2, 0));
    }

    #[test]
    #[should_panic(expected = "came back twice")]
    fn a_double_put_is_our_bug() {
        FifoTags::new(4, 1).put(1);
    }

    /// Random asks and puts against a naive line: order, conservation, and no waiter left while its want is free.
    #[test]
    fn agrees_with_a_naive_line_for_every_small_depth() {
        for depth in 1..=40 {
            let mut tags = FifoTags::new(depth, 64);
            let mut prng = Prng::new(u64::from(depth));
            let (mut line, mut held) = (VecDeque::new(), Vec::new());
            for slot in 0..2_000 {
                if prng.below(2) == 0 && line.len() < 60 {
                    let new = ask(slot, prng.between(1, want_max(depth).into()) as u16);
                    let free = depth - held.iter().map(|a: &Ask| u32::from(a.want)).sum::<u32>();
                    let fits = line.is_empty() && u32::from(new.want) <= free;
                    assert_eq!(tags.ask(&[new]), usize::from(fits));
                    if fits { held.push(new) } else { line.push_back(new) }
                } else if !held.is_empty() {
                    let gone = held.swap_remove(prng.below(held.len() as u64) as usize);
                    tags.put(gone.want.into());
                    while let Some(grant) = tags.next_grant() {
                        assert_eq!(Some(grant), line.pop_front());
                        held.push(grant);
                    }
                }
                let used: u32 = held.iter().map(|a| u32::from(a.want)).sum();
                assert_eq!(tags.free(), depth - used);
                assert!(line.front().is_none_or(|a| u32::from(a.want) > tags.free()));
                assert!(!held.is_empty() || line.is_empty(), "waiters but nothing in flight");
            }
        }
    }
}
