//! The lists on which operations wait for something shared: frames, bios, credit, caps, pauses, flushes, the next turn.
//!
//! Invariants: every list is first come, first served, but for flushes, which are in the order of their deadlines; `capped` is the
//! number of operations on the lists of `caps`.

use super::operation::Operation;
use crate::gauge::Gauge32;
use crate::list::Fifo;
use crate::slab::Slab;

/// The waiting lists of a cache.
#[derive(Debug)]
pub(super) struct WaitLists {
    /// Operations that can continue.
    pub ready: Fifo,
    /// Operations that used up their budget of this turn.
    pub next_turn: Fifo,
    /// Operations that wait for a frame.
    pub frames: Fifo,
    /// Operations that wait for a bio of the cache's own, by account.
    pub bios: Vec<Fifo>,
    /// Operations that wait for dirty credit, by device.
    pub credit: Vec<Fifo>,
    /// Operations that wait for room under a cap, by account.
    pub caps: Vec<Fifo>,
    /// Number of operations on these lists.
    pub capped: Gauge32,
    /// Whether the throttle has refused the head of the credit list, by device.
    pub refused: Vec<bool>,
    /// Operations that wait for the end of their writer's pause, by writer.
    pub paused: Vec<Fifo>,
    /// Flushes that wait, by volume.
    pub flushes: Vec<FlushLists>,
}

/// The flushes of a volume that wait.
#[derive(Debug, Default)]
pub(super) struct FlushLists {
    /// Flushes that wait for the write-out of a generation, oldest deadline first.
    pub generation: Fifo,
    /// Flushes that wait until a generation can be ended.
    pub start: Fifo,
}

impl FlushLists {
    /// Returns the list of the flushes that wait for a generation (`started`), or of the others.
    pub fn list(&mut self, started: bool) -> &mut Fifo {
        if started { &mut self.generation } else { &mut self.start }
    }
}

impl WaitLists {
    /// Creates the empty lists.
    pub fn new(devices: usize, writers: u32, volumes: usize, accounts: usize) -> Self {
        Self {
            ready: Fifo::new(),
            next_turn: Fifo::new(),
            frames: Fifo::new(),
            bios: (0..2 * devices).map(|_| Fifo::new()).collect(),
            credit: (0..devices).map(|_| Fifo::new()).collect(),
            caps: (0..accounts).map(|_| Fifo::new()).collect(),
            capped: Gauge32::default(),
            refused: vec![false; devices],
            paused: (0..=writers).map(|_| Fifo::new()).collect(),
            flushes: (0..volumes).map(|_| FlushLists::default()).collect(),
        }
    }

    /// Moves every operation of a list to the ready list.
    pub fn make_ready(&mut self, ops: &mut Slab<Operation>, mut list: Fifo) {
        self.ready.append(ops, &mut list);
    }
}
