//! A queue while its counter comes to its end, one step a byte: two owners never exclude each
//! other, and no request waits for ever.

#![no_main]

use libfuzzer_sys::fuzz_target;
use zookeeper_recipes_lock::laws;

fuzz_target!(|input: (i8, bool, &[u8])| {
    let (from_the_end, wraps, steps) = input;
    laws::check_history(i32::MAX.wrapping_add(i32::from(from_the_end)), wraps, steps);
});
