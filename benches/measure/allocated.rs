//! The number of memory blocks that this process has allocated and not freed.
//!
//! This counts blocks, not bytes: the client library occasionally replaces a receive buffer of 2 MiB, and
//! whether it has two of them at some moment means nothing.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

pub(crate) fn allocated_blocks() -> usize {
    let stats = ALLOCATOR.stats();
    stats.allocations - stats.deallocations
}
