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
//! Two tables, each as long as its largest token: connections' slots, and places of devices (see [`place_token`]).
//!
//! Invariant: `generation` grows whenever an armed poll is given up; whatever still comes from it is told by the old number.

use std::os::fd::RawFd;

use headworks_core::DeviceId;

use super::{Event, Interest, PLACES};

/// Tokens below are small numbers (slots of a slab); those from here on are places of devices.
pub(super) const TOKENS_MAX: usize = 1 << 20;

/// The token of a device's place.
pub(super) fn place_token(device: DeviceId, place: u16) -> u32 {
    assert!(place < PLACES, "a device has {PLACES} places");
    TOKENS_MAX as u32 + u32::from(device.0) * u32::from(PLACES) + u32::from(place)
}

/// What the readiness of a token is to the user.
pub(super) fn event_of(token: u32) -> Event {
    match token.checked_sub(TOKENS_MAX as u32) {
        None => Event::Ready { token },
        Some(index) => {
            let places = u32::from(PLACES);
            let device = DeviceId((index / places) as u16);
            Event::Place { device, place: (index % places) as u16 }
        }
    }
}

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
    places: Vec<FdWatch>,
    changed: Vec<u32>,
}

/// The table of a token, and its index there.
fn table_of<'a>(
    table: &'a mut Vec<FdWatch>,
    places: &'a mut Vec<FdWatch>,
    token: u32,
) -> (&'a mut Vec<FdWatch>, usize) {
    match (token as usize).checked_sub(TOKENS_MAX) {
        None => (table, token as usize),
        Some(index) => (places, index),
    }
}

impl Watches {
    /// The token's state, if it was ever used.
    pub fn get(&mut self, token: u32) -> Option<&mut FdWatch> {
        let (table, index) = table_of(&mut self.table, &mut self.places, token);
        table.get_mut(index)
    }

    /// From now on `token` waits for `interest` on `fd`.
    pub fn want(&mut self, token: u32, fd: RawFd, interest: Interest) {
        let (table, index) = table_of(&mut self.table, &mut self.places, token);
        assert!(index < TOKENS_MAX, "tokens are slots of a slab or places of devices");
        if index >= table.len() {
            table.resize(index + 1, UNUSED);
        }
        let watch = &mut table[index];
        watch.fd = fd;
        watch.wanted = Some(interest);
        self.change(token);
    }

    /// The kernel does not watch for this token after all: on the list again.
    pub fn disarm(&mut self, token: u32) {
        let (table, index) = table_of(&mut self.table, &mut self.places, token);
        table[index].armed = None;
        self.change(token);
    }

    /// Puts the token on the list, if the two sides differ and it is not there.
    pub fn change(&mut self, token: u32) {
        let (table, index) = table_of(&mut self.table, &mut self.places, token);
        let watch = &mut table[index];
        if watch.wanted != watch.armed && !watch.changed {
            watch.changed = true;
            self.changed.push(token);
        }
    }

    /// The next token whose two sides differ. The caller makes them equal.
    pub fn next_changed(&mut self) -> Option<(u32, &mut FdWatch)> {
        while let Some(token) = self.changed.pop() {
            let (table, index) = table_of(&mut self.table, &mut self.places, token);
            table[index].changed = false;
            if table[index].wanted != table[index].armed {
                let (table, index) = table_of(&mut self.table, &mut self.places, token);
                return Some((token, &mut table[index]));
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
