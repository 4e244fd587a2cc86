//! A queue near the end of its counter, with one step for each byte: no two owners exclude each other, there are no
//! more owners than permits, and no request waits forever.

#![no_main]

use std::num::NonZeroU32;

use libfuzzer_sys::fuzz_target;
use zookeeper_recipes_lock::laws;

/// A longer history takes seconds, and shows nothing that a shorter one does not.
const MAX_STEPS: usize = 100;

fuzz_target!(|input: (i8, bool, u8, &[u8])| {
    let (from_the_end, wraps, permits, steps) = input;
    let steps = steps.get(..MAX_STEPS).unwrap_or(steps);
    let start = i32::MAX.wrapping_add(i32::from(from_the_end));
    match NonZeroU32::new(u32::from(permits % 4)) {
        Some(permits) => laws::check_permit_history(start, wraps, permits, steps),
        None => laws::check_history(start, wraps, steps),
    }
});
