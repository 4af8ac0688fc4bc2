//! One level of deficit round robin: who shares something stands in a ring, and each turn brings a quantum.
//!
//! ```text
//!   head -> [ turn, deficit covers the cost: served, stays ]
//!           [ turn, it does not:  turn over, to the back   ]    the deficit is kept: what is dear is saved up for
//!           [ empty: the quantum repays an advance; none left: forgotten ]
//! ```
//!
//! A turn's quantum is given once, so looking who is next may be repeated. If a whole pass serves nobody, the least number of
//! rounds after which somebody can be served is added at once (a 32 MiB request of a share with weight 1 needs 25,600).
//!
//! Invariants: who rests has no deficit, at most a debt; a debt is an advance, never more than the caller allows; every
//! sharer with something to serve is served after finitely many turns of the others.

use super::pool::Pool;
use crate::slab::NIL;

/// A sharer's account and place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// Bytes that it may still spend in its turn; below 0: what it spent in advance.
    pub deficit: i64,
    pub quantum: i64,
    /// Its turn has begun and is not over.
    turn: bool,
    prev: u32,
    next: u32,
}

impl Share {
    pub fn new(quantum: i64) -> Self {
        Self { deficit: 0, quantum, turn: false, prev: NIL, next: NIL }
    }
}

/// What has a share.
pub(super) trait Sharer {
    fn share(&mut self) -> &mut Share;
}

/// What a sharer has to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing.
    Empty,
    /// Something that costs so many bytes.
    Wants(i64),
}

/// The sharers in the order of their turns.
#[derive(Debug)]
pub(super) struct Ring {
    head: u32,
    tail: u32,
    len: u32,
}

impl Ring {
    pub const fn new() -> Self {
        Self { head: NIL, tail: NIL, len: 0 }
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn push<T: Sharer>(&mut self, pool: &mut Pool<T>, id: u32) {
        let tail = self.tail;
        let share = pool[id].share();
        (share.prev, share.next, share.turn) = (tail, NIL, false);
        match tail {
            NIL => self.head = id,
            tail => pool[tail].share().next = id,
        }
        self.tail = id;
        self.len += 1;
    }

    pub fn remove<T: Sharer>(&mut self, pool: &mut Pool<T>, id: u32) {
        let &mut Share { prev, next, .. } = pool[id].share();
        match prev {
            NIL => self.head = next,
            _ => pool[prev].share().next = next,
        }
        match next {
            NIL => self.tail = prev,
            _ => pool[next].share().prev = prev,
        }
        self.len -= 1;
    }

    pub fn pop<T: Sharer>(&mut self, pool: &mut Pool<T>) -> Option<u32> {
        let id = self.head;
        (id != NIL).then(|| {
            self.remove(pool, id);
            id
        })
    }

    /// It has nothing left to serve: a turn is over, and no deficit is kept.
    pub fn rest<T: Sharer>(&mut self, pool: &mut Pool<T>, id: u32) {
        let share = pool[id].share();
        share.deficit = share.deficit.min(0);
        if share.turn {
            self.give_way(pool, id);
        }
    }

    fn give_way<T: Sharer>(&mut self, pool: &mut Pool<T>, id: u32) {
        self.remove(pool, id);
        self.push(pool, id);
    }

    /// Whose turn it is. Those who were empty when their turn came, and owe nothing, go to `gone`.
    pub fn next_turn<T: Sharer>(
        &mut self,
        pool: &mut Pool<T>,
        gone: &mut Ring,
        mut look: impl FnMut(&mut T) -> Look,
    ) -> Option<u32> {
        loop {
            let mut missing = i64::MAX;
            let mut id = self.head;
            for _ in 0..self.len {
                let seen = look(&mut pool[id]);
                let next = pool[id].share().next;
                match seen {
                    Look::Empty => self.pass_empty(pool, gone, id),
                    Look::Wants(cost) => match begin_turn(pool[id].share(), cost) {
                        0 => return Some(id),
                        rounds => {
                            missing = missing.min(rounds);
                            self.give_way(pool, id);
                        }
                    },
                }
                id = next;
            }
            if missing == i64::MAX {
                return None;
            }
            self.skip_rounds(pool, missing - 1, &mut look);
        }
    }

    fn pass_empty<T: Sharer>(&mut self, pool: &mut Pool<T>, gone: &mut Ring, id: u32) {
        let share = pool[id].share();
        share.deficit += share.quantum;
        let debt = share.deficit < 0;
        self.remove(pool, id);
        if debt { self.push(pool, id) } else { gone.push(pool, id) }
    }

    fn skip_rounds<T: Sharer>(
        &mut self,
        pool: &mut Pool<T>,
        rounds: i64,
        look: &mut impl FnMut(&mut T) -> Look,
    ) {
        let mut id = self.head;
        while rounds > 0 && id != NIL {
            let wants = matches!(look(&mut pool[id]), Look::Wants(_));
            let share = pool[id].share();
            share.deficit += if wants { rounds * share.quantum } else { 0 };
            id = share.next;
        }
    }
}

/// Begins a turn, or goes on with it; how many more it would need for `cost`.
fn begin_turn(share: &mut Share, cost: i64) -> i64 {
    if !share.turn {
        share.turn = true;
        share.deficit += share.quantum;
    }
    let missing = (cost - share.deficit).max(0);
    (missing + share.quantum - 1) / share.quantum
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Party {
        share: Share,
        costs: Vec<i64>,
    }

    impl Sharer for Party {
        fn share(&mut self) -> &mut Share {
            &mut self.share
        }
    }

    /// Parties with quanta of 100 and what they want to serve.
    fn parties(costs: &[&[i64]]) -> (Ring, Pool<Party>) {
        let (mut ring, mut pool) = (Ring::new(), Pool::new(costs.len()));
        for costs in costs {
            let id = pool.take(Party { share: Share::new(100), costs: costs.to_vec() });
            ring.push(&mut pool, id);
        }
        (ring, pool)
    }

    fn next(ring: &mut Ring, pool: &mut Pool<Party>, gone: &mut Ring) -> Option<u32> {
        ring.next_turn(pool, gone, |party| {
            party.costs.first().map_or(Look::Empty, |&c| Look::Wants(c))
        })
    }

    /// Serves until nobody wants anything; who was served, in order.
    fn serve(ring: &mut Ring, pool: &mut Pool<Party>) -> Vec<u32> {
        let mut served = Vec::new();
        while let Some(id) = next(ring, pool, &mut Ring::new()) {
            let again = next(ring, pool, &mut Ring::new());
            assert_eq!(again, Some(id), "looking takes no turn");
            served.push(id);
            pool[id].share.deficit -= pool[id].costs.remove(0);
            if pool[id].costs.is_empty() {
                ring.rest(pool, id);
            }
        }
        served
    }

    #[test]
    fn a_turn_is_a_quantum_and_what_is_left_of_it_is_saved_for_the_next() {
        let (mut ring, mut pool) = parties(&[&[60, 60, 60, 60], &[100, 100], &[30; 5]]);
        assert_eq!(serve(&mut ring, &mut pool), [0, 1, 2, 2, 2, 0, 0, 1, 2, 2, 0]);
        let (mut ring, mut pool) = parties(&[&[1_000_000], &[100; 12]]);
        assert_eq!(serve(&mut ring, &mut pool), [&[1; 12][..], &[0]].concat(), "dear is not never");
    }

    #[test]
    fn rounds_in_which_nobody_can_be_served_are_added_at_once_and_to_all() {
        let (mut ring, mut pool) = parties(&[&[1000], &[900], &[1100]]);
        assert_eq!(serve(&mut ring, &mut pool), [1, 0, 2]);
        // Nobody is passed by more than the order of turns says, however many rounds that were.
        let (mut ring, mut pool) = parties(&[&[i64::MAX / 4], &[i64::MAX / 4]]);
        assert_eq!(serve(&mut ring, &mut pool), [0, 1]);
    }

    #[test]
    fn who_rests_keeps_no_deficit_but_its_debt() {
        let (mut ring, mut pool) = parties(&[&[10], &[]]);
        assert_eq!(next(&mut ring, &mut pool, &mut Ring::new()), Some(0));
        pool[0].costs.clear();
        pool[0].share.deficit -= 10;
        ring.rest(&mut pool, 0);
        assert_eq!(pool[0].share.deficit, 0);
        pool[1].share.deficit = -350;
        ring.rest(&mut pool, 1);
        let (mut gone, mut rounds) = (Ring::new(), 0);
        while !ring.is_empty() {
            assert_eq!(next(&mut ring, &mut pool, &mut gone), None);
            rounds += 1;
            assert_eq!(gone.pop(&mut pool), [Some(0), None, None, Some(1)][rounds - 1]);
        }
        assert_eq!(rounds, 4, "three quanta and a half are repaid in four turns");
    }
}
