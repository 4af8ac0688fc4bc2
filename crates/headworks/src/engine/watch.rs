//! Which tokens wait for which sockets: what the user wants, against what the kernel was told.
//!
//! Both engines bring the two together once a turn, so that a change of mind within a turn costs no system call. Tokens whose
//! two sides differ are on the `changed` list.
//!
//! ```text
//!                 watch                        turn tells the kernel
//!    -- , --  ------------->  Read , --  --------------------------->  Read , Read      (wanted , armed)
//!       ^                                                                  |  readiness: an event for the user
//!       |            uring: the poll was one-shot                          v
//!       '----------------------------------------------------------  -- , -- | Read
//!                    threads: still armed; `watch` before the next turn   |  '--> Read , Read at no cost,
//!                    leaves it so, else the turn disarms it               '-----> else disarmed
//! ```
//!
//! Invariant: `generation` grows whenever an armed poll is given up; whatever still comes from it is told by the old number.

use std::os::fd::RawFd;

use super::Interest;

/// Tokens are small numbers (slots of a slab): the table is as long as the largest one.
pub(super) const TOKENS_MAX: usize = 1 << 20;

/// The watch of one file descriptor: what the user waits for, and what the kernel was told.
#[derive(Clone, Copy, Debug)]
pub(super) struct FdWatch {
    pub fd: RawFd,
    /// What the user waits for.
    pub wanted: Option<Interest>,
    /// What the kernel watches.
    pub armed: Option<Interest>,
    /// Which poll of this token is the present one.
    pub generation: u32,
    /// It is on the list.
    changed: bool,
}

const UNUSED: FdWatch =
    FdWatch { fd: -1, wanted: None, armed: None, generation: 0, changed: false };

/// All tokens of an engine.
#[derive(Debug, Default)]
pub(super) struct Watches {
    table: Vec<FdWatch>,
    changed: Vec<u32>,
}

impl Watches {
    /// The token's state, if it was ever used.
    pub fn get(&mut self, token: u32) -> Option<&mut FdWatch> {
        self.table.get_mut(token as usize)
    }

    /// From now on `token` waits for `interest` on `fd`.
    pub fn want(&mut self, token: u32, fd: RawFd, interest: Interest) {
        let index = token as usize;
        assert!(index < TOKENS_MAX, "tokens are slots of a slab");
        if index >= self.table.len() {
            self.table.resize(index + 1, UNUSED);
        }
        let watch = &mut self.table[index];
        watch.fd = fd;
        watch.wanted = Some(interest);
        self.change(token);
    }

    /// The kernel does not watch for this token after all: on the list again.
    pub fn disarm(&mut self, token: u32) {
        self.table[token as usize].armed = None;
        self.change(token);
    }

    /// Puts the token on the list, if the two sides differ and it is not there.
    pub fn change(&mut self, token: u32) {
        let watch = &mut self.table[token as usize];
        if watch.wanted != watch.armed && !watch.changed {
            watch.changed = true;
            self.changed.push(token);
        }
    }

    /// The next token whose two sides differ. The caller makes them equal.
    pub fn next_changed(&mut self) -> Option<(u32, &mut FdWatch)> {
        while let Some(token) = self.changed.pop() {
            let watch = &mut self.table[token as usize];
            watch.changed = false;
            if watch.wanted != watch.armed {
                return Some((token, &mut self.table[token as usize]));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_last_interest_within_a_turn_is_armed() {
        let mut watches = Watches::default();
        watches.want(3, 10, Interest::Read);
        watches.want(3, 10, Interest::ReadWrite);
        let (token, watch) = watches.next_changed().unwrap();
        assert_eq!((token, watch.wanted), (3, Some(Interest::ReadWrite)));
        watch.armed = watch.wanted;
        assert!(watches.next_changed().is_none());

        // The order of the threads engine after an event: not wanted, still armed, wanted again before the turn.
        watches.get(3).unwrap().wanted = None;
        watches.change(3);
        watches.want(3, 10, Interest::ReadWrite);
        assert!(watches.next_changed().is_none());
    }

    #[test]
    fn changed_token_is_listed_once() {
        let mut watches = Watches::default();
        for _ in 0..3 {
            watches.want(0, 10, Interest::Read);
            watches.want(1, 11, Interest::Write);
        }
        let mut tokens = vec![];
        while let Some((token, watch)) = watches.next_changed() {
            watch.armed = watch.wanted;
            tokens.push(token);
        }
        tokens.sort_unstable();
        assert_eq!(tokens, [0, 1]);
    }
}
