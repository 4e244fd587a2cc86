//! How many blocks of memory this process has allocated and not freed.
//!
//! Blocks and not bytes: the client library replaces a receive buffer of 2 MiB now and then, and whether it has two of them
//! at some moment says nothing.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

pub(crate) fn allocated_blocks() -> usize {
    let stats = ALLOCATOR.stats();
    stats.allocations - stats.deallocations
}
