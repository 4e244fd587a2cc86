//! [`keeping_unpark_token`]: waits on channels that cost the thread no wake-up.

use std::thread;

/// Makes a wait that may park the calling thread, as the channels of crossbeam do, and gives the thread an unpark token.
///
/// Parking may take a token that belongs to other code on the thread, such as the waker of an executor, which would then
/// sleep forever. Whoever parks a thread expects that `park` sometimes returns early.
pub fn keeping_unpark_token<T>(wait: impl FnOnce() -> T) -> T {
    let outcome = wait();
    thread::current().unpark();
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::time::{Duration, Instant};

    #[test]
    fn wait_leaves_the_token_that_it_takes() {
        let (long, begun) = (Duration::from_secs(20), Instant::now());
        thread::current().unpark();
        keeping_unpark_token(thread::park);
        thread::park_timeout(long);
        assert!(begun.elapsed() < long);
    }
}
