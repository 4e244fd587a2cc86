//! Two tokens of a server that authenticates a client by DIGEST-MD5, with a line break in between: the responses fit
//! them, and no exchange is complete without a proof.

#![no_main]

use libfuzzer_sys::fuzz_target;
use zookeeper_connection::sasl::laws;

fuzz_target!(|input: &[u8]| {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (challenge, proof) = input.split_at(end);
    laws::check_tokens(challenge, proof.get(1..).unwrap_or_default());
});
