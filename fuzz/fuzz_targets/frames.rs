//! The bytes of a connection, split anywhere: the frames are the same, and what can be decoded
//! survives a copy.

#![no_main]

use libfuzzer_sys::fuzz_target;
use zookeeper_recipes_lock::codec_laws;

fuzz_target!(|input: (u64, &[u8])| {
    let (cuts, bytes) = input;
    codec_laws::check_stream(cuts, bytes);
    // As one frame too: mutation seldom keeps the length of a frame right.
    codec_laws::check_frame(bytes);
});
