//! What the unit tests share: waits with a deadline, and what ends the run when a test cannot say
//! so itself.
//!
//! The tests in `tests/` and the benchmarks share [`wait`] and [`panics`], through `tests/support`.

mod manual_runtime;
#[allow(unreachable_pub, reason = "shared with other binaries")]
mod panics;
mod tests;
#[allow(dead_code, unreachable_pub, reason = "shared with other binaries, of which each uses a part")]
pub(crate) mod wait;
mod watchdog;

use std::thread;

use crossbeam_channel::{Receiver, bounded};

pub(crate) use self::manual_runtime::{ManualRuntime, open_client_on_manual_runtime, open_on_manual_runtime};
pub(crate) use self::wait::{deadline, eventually};

/// To be called before threads of a session are started: ends the run where a test cannot fail by
/// itself.
pub(crate) fn begin() {
    panics::watch();
    watchdog::watch_this_test();
}

/// Makes a call on another thread, which may block for ever, and returns a channel for its outcome.
pub(crate) fn in_background<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (outcome, returned) = bounded(1);
    thread::spawn(move || drop(outcome.send(call())));
    returned
}

/// The next message on a channel, which must come before the deadline.
#[track_caller]
pub(crate) fn next<T>(channel: &Receiver<T>) -> T {
    match channel.recv_timeout(deadline()) {
        Ok(message) => message,
        Err(error) => panic!("no message within {:?}: {error}", deadline()),
    }
}
