//! The bytes of a connection: the frames are the same wherever the bytes are split, and a frame that can be decoded
//! stays the same when it is encoded and decoded again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use zookeeper_connection::codec::laws;

fuzz_target!(|input: (u64, &[u8])| {
    let (cuts, bytes) = input;
    laws::check_stream(cuts, bytes);
    // Also check the bytes as a single frame, because mutation seldom keeps the length of a frame right.
    laws::check_frame(bytes);
});
