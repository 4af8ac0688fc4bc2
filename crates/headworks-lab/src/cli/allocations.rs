//! A counting allocator: lets an experiment report how many allocations a thread made. The program has it, and the tests.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator with a counter per thread.
#[derive(Debug)]
pub struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting touches a const thread local without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise, passed on.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of allocations of this thread so far.
pub fn count() -> u64 {
    COUNT.with(Cell::get)
}
