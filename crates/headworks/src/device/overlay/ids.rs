//! Ids of the commands that an overlay gives to its file and to its base.
//!
//! The answer of a file operation names the id alone, so the id says which device of which layer is meant:
//!
//! ```text
//!   slot:  1:1 | layer:4, 0 is the lowest | of the base:1 | index of the piece:26
//! ```
//!
//! Layers below choose ids with their own number; an id that is not of this layer's file belongs below. Counted from the lowest, so that a
//! snapshot changes no number. (All ones, which no layer has, is
//! the id of other wrappers.)

use headworks_core::RequestId;

const TAG: u32 = 1 << 31;
const OF_BASE: u32 = 1 << 26;
const INDEX: u32 = OF_BASE - 1;
/// Most overlays on top of one another.
pub(super) const LAYERS_MAX: u8 = 8;

/// The ids of one layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ids {
    prefix: u32,
    generation: u32,
}

impl Ids {
    /// Ids of the layer with `layer` overlays below it.
    pub fn new(layer: u8) -> Self {
        assert!(layer < LAYERS_MAX, "chains are checked when they are opened");
        Self { prefix: TAG | u32::from(layer) << 27, generation: 0 }
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
        for number in 0..LAYERS_MAX {
            let mut ids = Ids::new(number);
            let (own, base) = (ids.of(77, false), ids.of(INDEX, true));
            for other in 0..LAYERS_MAX {
                let layer = Ids::new(other);
                assert_eq!(layer.is_own(own), other == number);
                assert!(!layer.is_own(base));
                assert_eq!(layer.index_of(own), (other == number).then_some(77));
                assert_eq!(layer.index_of(base), (other == number).then_some(INDEX));
            }
            let wrapper = RequestId { slot: u32::MAX, generation: 0 };
            assert!(!ids.is_own(wrapper) && ids.index_of(wrapper).is_none());
        }
    }
}
