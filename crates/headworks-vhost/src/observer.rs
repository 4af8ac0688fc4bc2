//! What is called before each store that outlives the process: rings, status bytes, the in-flight region.
//!
//! A process may die between any two of them (V5). In the product the call is nothing, and no instruction is left of it. Tests and the
//! world of the front door choose a store and let the process die there.

use std::fmt::Debug;

/// Is told of stores before they are made, on the thread that makes them.
pub trait StoreObserver: Clone + Debug + Default + 'static {
    /// A store that outlives the process follows.
    fn before_store();
}

/// Tells nothing of any store: that of the product.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl StoreObserver for NoObserver {
    #[inline(always)]
    fn before_store() {}
}
