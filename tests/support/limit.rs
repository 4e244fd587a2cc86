//! The end of a run that hangs.

use std::io::{self, Write};
use std::process;
use std::sync::Once;
use std::thread;
use std::time::Duration;

use super::wait::scaled;

/// Far longer than a run of all tests of a process.
const LIMIT: Duration = Duration::from_secs(15 * 60);

/// From now on, this process has this time. A call that never returns ends the run with its failure, and
/// does not occupy the machine until somebody looks. The harness has named the tests that are still running.
pub fn watch() {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| drop(thread::spawn(|| end_the_run(scaled(LIMIT)))));
}

fn end_the_run(limit: Duration) -> ! {
    thread::sleep(limit);
    // Not by a macro: the test harness holds its output back until the end of the test.
    let _ = writeln!(io::stderr(), "\nthe tests are not done after {limit:?}: see those that are running");
    process::abort()
}
