//! The children of a lock directory, one per line: the decisions about them are consistent.

#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use zookeeper_recipes_lock::laws;

/// The cost of the check grows with the third power of this.
const MOST_CHILDREN: usize = 16;

fuzz_target!(|text: &str| {
    let names: HashSet<&str> = text.lines().take(MOST_CHILDREN).collect();
    let children: Vec<String> = names.into_iter().map(str::to_owned).collect();
    laws::check_listing(&children);
});
