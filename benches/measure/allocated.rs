//! How many bytes this process has allocated and not freed, besides the client library's receive buffers.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is as large as this is not counted: the client library replaces a receive buffer of 2 MiB now and then, and whether it
/// has two of them at some moment says nothing.
const LARGE: usize = 1 << 20;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

pub(crate) fn allocated() -> usize {
    ALLOCATED.load(Ordering::Relaxed)
}

fn counted(layout: Layout) -> usize {
    if layout.size() < LARGE { layout.size() } else { 0 }
}

struct Counting;

// SAFETY: each call goes on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(counted(layout), Ordering::Relaxed);
        // SAFETY: what the caller promises holds for the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(counted(layout), Ordering::Relaxed);
        // SAFETY: as above; the pointer came from there.
        unsafe { System.dealloc(pointer, layout) }
    }
}
