//! Points at which a test lets the process die: before each store that outlives it.
//!
//! In the product a point is nothing. In tests the store that was chosen panics, which unwinds to the test: everything of the process is
//! dropped, guest memory and the in-flight region stay. The exhaustive model in `recovery_tests` chooses every store in turn.

#[cfg(test)]
thread_local! {
    static LEFT: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// The payload of the panic by which a test's process dies.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Death;

/// A store that outlives the process follows.
#[inline]
pub(crate) fn point() {
    #[cfg(test)]
    LEFT.with(|left| match left.get() {
        Some(0) => {
            left.set(None);
            std::panic::resume_unwind(Box::new(Death));
        }
        Some(count) => left.set(Some(count - 1)),
        None => {}
    });
}

/// Dies at the store after `stores` more; none: never.
#[cfg(test)]
pub(crate) fn after(stores: Option<u64>) {
    LEFT.with(|left| left.set(stores));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::catch_unwind;

    #[test]
    fn process_dies_at_the_chosen_store_and_once() {
        after(Some(2));
        point();
        point();
        let death = catch_unwind(point).unwrap_err();
        assert!(death.is::<Death>());
        point();
    }
}
