//! Names, one a line: each splits, and they have an order. A number in front becomes part of a name as ZooKeeper prints it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use zookeeper_recipes_lock::laws;

/// The check of the order grows with the third power.
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
