//! The number of memory blocks that this process has allocated and not freed.
//!
//! Blocks, not bytes: the client library occasionally replaces a receive buffer of 2 MiB, and it is
//! meaningless whether it has two of them at some moment.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

pub(crate) fn allocated_blocks() -> usize {
    let stats = ALLOCATOR.stats();
    stats.allocations - stats.deallocations
}
