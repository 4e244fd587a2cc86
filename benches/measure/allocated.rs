//! What this process has allocated.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Stats, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

pub(crate) fn allocations() -> Stats {
    ALLOCATOR.stats()
}

/// Returns the number of memory blocks that this process has allocated and not freed.
///
/// This counts blocks, not bytes: the client library occasionally replaces a receive buffer of 2 MiB, and whether it
/// has two of them at some moment means nothing.
pub(crate) fn allocated_blocks() -> usize {
    let stats = allocations();
    stats.allocations - stats.deallocations
}
