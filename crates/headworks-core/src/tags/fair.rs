//! `fair`, first form: one line, tickets in order, whole wants.

use std::collections::VecDeque;

use super::{Ask, Freed, Grant, Room, TagOptions, TagOwner, TagStats, want_max};
use crate::time::Instant;

/// One line for everybody.
#[derive(Debug)]
pub struct FairTags {
    depth: u32,
    free: u32,
    line: VecDeque<Ask>,
    stats: TagStats,
}

impl FairTags {
    /// `depth` free tags and room for `waiters_max` in line.
    #[must_use]
    pub fn new(options: TagOptions) -> Self {
        let TagOptions { depth, waiters_max, .. } = options;
        assert!(depth > 0, "a device without tags serves nobody");
        let line = VecDeque::with_capacity(waiters_max);
        Self { depth, free: depth, line, stats: TagStats::default() }
    }
}

impl TagOwner for FairTags {
    fn ask(&mut self, _now: Instant, asks: &[Ask], most: usize) -> usize {
        let mut granted = 0;
        self.stats.asks += asks.len() as u64;
        if self.line.is_empty() {
            for ask in &asks[..most.min(asks.len())] {
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

    fn put(&mut self, _now: Instant, freed: Freed) {
        self.free += freed.count;
        assert!(self.free <= self.depth, "a tag came back twice");
    }

    fn next_grant(&mut self, _now: Instant, room: Room) -> Option<Grant> {
        let head = *self.line.front()?;
        if u32::from(head.want) > self.free || room == Room::Light {
            return None;
        }
        self.free -= u32::from(head.want);
        self.line.pop_front();
        Some(Grant { who: head.who, tags: head.want })
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

    fn stats(&self) -> TagStats {
        self.stats
    }
}
