//! Names, one per line: each can be split, and they are ordered. The number in front is the sequence number that is
//! appended to each name as ZooKeeper prints it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use zookeeper_recipes_lock::laws;

/// The cost of checking the order grows with the third power of this.
const MOST_NAMES: usize = 10;

fuzz_target!(|input: (i32, &str)| {
    let (sequence, text) = input;
    let names: Vec<&str> = text.lines().take(MOST_NAMES).collect();
    for name in &names {
        laws::check_name(name);
        laws::check_generated(name, sequence);
    }
    laws::check_order(&names);
});
