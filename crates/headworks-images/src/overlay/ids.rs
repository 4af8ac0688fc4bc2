//! Ids of the commands that an overlay gives to its file and to its base.
//!
//! The answer of a file operation names the id alone, so the id says which overlay of a device, and which device of which layer, is meant:
//!
//! ```text
//!   slot:  1:1 | layer:4, 0 is the lowest | of the base:1 | place:11 | index of the piece:15
//! ```
//!
//! The place is that of the overlay among those of one device (see [`FilesystemDevice`](crate::FilesystemDevice)); its layers share it. An
//! overlay that has its device alone is in place 0. Layers below choose ids with their own number; an id that is not of this layer's file
//! belongs below. Counted from the lowest, so that a snapshot changes no number. (All ones, which no layer has, is the id of other
//! wrappers; commands of queues have slots below 2^31.)

use headworks_core::RequestId;

const TAG: u32 = 1 << 31;
const OF_BASE: u32 = 1 << 26;
const PLACE_SHIFT: u32 = 15;
const INDEX: u32 = (1 << PLACE_SHIFT) - 1;
/// Most overlays on one device.
pub(crate) const PLACES_MAX: usize = 1 << 11;
/// Most overlays on top of one another.
pub(super) const LAYERS_MAX: u8 = 8;

const _: () = assert!(PLACES_MAX << PLACE_SHIFT == OF_BASE as usize);
const _: () = assert!(super::rows::pieces_most(super::PIECES_MAX) <= INDEX as usize + 1);

/// The place of the overlay whose id this is; `None` for a command of a queue.
pub(crate) fn place_of(id: RequestId) -> Option<usize> {
    let place = (id.slot & (OF_BASE - 1)) >> PLACE_SHIFT;
    (id.slot & TAG != 0).then_some(place as usize)
}

/// The ids of one layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ids {
    prefix: u32,
    generation: u32,
}

impl Ids {
    /// Ids of the layer with `layer` overlays below it, of the overlay in `place`.
    pub fn new(place: u16, layer: u8) -> Self {
        assert!(layer < LAYERS_MAX, "chains are checked when they are opened");
        assert!(usize::from(place) < PLACES_MAX, "places are checked when overlays are attached");
        let place = u32::from(place) << PLACE_SHIFT;
        Self { prefix: TAG | u32::from(layer) << 27 | place, generation: 0 }
    }

    /// An id for the piece, for the base's device or our file's.
    pub fn of(&mut self, index: u32, of_base: bool) -> RequestId {
        self.generation = self.generation.wrapping_add(1);
        let side = if of_base { OF_BASE } else { 0 };
        RequestId { slot: self.prefix | side | index, generation: self.generation }
    }

    /// Whether an operation is one of our file.
    pub fn is_own(self, id: RequestId) -> bool {
        id.slot & !INDEX == self.prefix
    }

    /// The piece of an id of this layer.
    pub fn index_of(self, id: RequestId) -> Option<u32> {
        (id.slot & !(INDEX | OF_BASE) == self.prefix).then_some(id.slot & INDEX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_lead_to_their_layer_and_device() {
        let places = [0, 1, 77, PLACES_MAX as u16 - 1];
        let all =
            || places.into_iter().flat_map(|at| (0..LAYERS_MAX).map(move |layer| (at, layer)));
        for (place, number) in all() {
            let mut ids = Ids::new(place, number);
            let (own, base) = (ids.of(77, false), ids.of(INDEX, true));
            assert_eq!([own, base].map(place_of), [Some(usize::from(place)); 2]);
            for (other_place, other) in all() {
                let (layer, is_it) =
                    (Ids::new(other_place, other), (other_place, other) == (place, number));
                assert_eq!(layer.is_own(own), is_it);
                assert!(!layer.is_own(base));
                assert_eq!(layer.index_of(own), is_it.then_some(77));
                assert_eq!(layer.index_of(base), is_it.then_some(INDEX));
            }
            let wrapper = RequestId { slot: u32::MAX, generation: 0 };
            assert!(!ids.is_own(wrapper) && ids.index_of(wrapper).is_none());
        }
        assert_eq!(place_of(RequestId { slot: TAG - 1, generation: 0 }), None);
    }
}
