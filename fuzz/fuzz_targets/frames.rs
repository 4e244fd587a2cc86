//! The bytes of a connection, split anywhere: the frames are the same, and what can be decoded
//! survives a copy.

#![no_main]

use libfuzzer_sys::fuzz_target;
use zookeeper_connection::codec::laws;

fuzz_target!(|input: (u64, &[u8])| {
    let (cuts, bytes) = input;
    laws::check_stream(cuts, bytes);
    // As one frame too: mutation seldom keeps the length of a frame right.
    laws::check_frame(bytes);
});
