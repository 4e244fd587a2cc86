//! Decoding allocates no more than a small multiple of what has arrived. A separate binary with one
//! test, as it counts what the whole process allocates.

use std::alloc::System;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use zookeeper_connection::codec::laws::decoders;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Allocations that do not depend on the frame: the first ones of vectors, and those of the test
/// harness.
const CONSTANT: usize = 8 << 10;

const FRAME: usize = 1 << 20;

/// Returns a frame of `start`, `count` and as many of `item` as fit.
fn repeated(start: &[u8], count: Option<i32>, item: &[u8]) -> Vec<u8> {
    let mut frame = start.to_vec();
    frame.extend(count.map(i32::to_be_bytes).into_iter().flatten());
    while frame.len() + item.len() <= FRAME {
        frame.extend(item);
    }
    frame
}

/// Requests and replies with huge counts and lengths, and with as many of the smallest items as
/// fit.
fn hostile_frames() -> Vec<Vec<u8>> {
    let fitting = i32::try_from((FRAME - 4) / 4).unwrap_or(i32::MAX);
    let mut frames = Vec::new();
    for count in [i32::MAX, i32::MIN, -1, fitting, fitting + 1, fitting / 2, fitting / 3] {
        // Of a reply's body, after a request's header, and within `SetWatches`.
        for start in [0, 8, 16] {
            frames.push(repeated(&vec![0; start], Some(count), &[0; 4]));
            frames.push(repeated(&vec![0; start], Some(count), &[0, 0, 0, 1, b'/']));
        }
        frames.push(repeated(b"\0\0\0\x01\0\0\0\x65\0\0\0\0\0\0\0\x01", Some(count), &[0; 4]));
        frames.push(repeated(b"\0\0\0\x01\0\0\0\x0f\0\0\0\x02/a\0\0\0\0", Some(count), &[0; 12]));
    }
    // The results and the steps of a multi, with and without its end.
    let end = b"\xff\xff\xff\xff\x01\xff\xff\xff\xff";
    let result = b"\0\0\0\x02\0\0\0\0\0";
    let step = b"\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0";
    for mut multi in [
        repeated(&[], None, result),
        repeated(&[], None, result).split_off(FRAME / 2 / 9 * 9),
        repeated(b"\0\0\0\x01\0\0\0\x0e", None, step),
    ] {
        frames.push(multi.clone());
        multi.extend(end);
        frames.push(multi);
    }
    frames
}

#[test]
fn decoding_allocates_a_small_multiple_of_the_frame() {
    let frames = hostile_frames();
    for (name, max_growth, decode) in decoders() {
        for frame in frames.iter().flat_map(|frame| [&frame[..], &frame[..200], &frame[..4], &[]]) {
            let region = Region::new(ALLOCATOR);
            decode(frame);
            let allocated = region.change().bytes_allocated;
            let max = max_growth * frame.len() + CONSTANT;
            let start = &frame[..frame.len().min(40)];
            assert!(allocated <= max, "{name}: {allocated} bytes for {} of {start:02x?}", frame.len());
        }
    }
}
