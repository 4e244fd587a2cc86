//! Two tokens of a server in a DIGEST-MD5 exchange, separated by a line break: the client's responses fit them, and no
//! exchange completes without a proof.

#![no_main]

use libfuzzer_sys::fuzz_target;
use zookeeper_connection::sasl::laws;

fuzz_target!(|input: &[u8]| {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (challenge, proof) = input.split_at(end);
    laws::check_tokens(challenge, proof.get(1..).unwrap_or_default());
});
