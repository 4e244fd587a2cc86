//! The state machine of a connection, with any history of requests, bytes, failures and moments.

#![no_main]

use libfuzzer_sys::fuzz_target;
use zookeeper_connection::machine::session::laws;

fuzz_target!(|history: &[u8]| laws::check_history(history));
