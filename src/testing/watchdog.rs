//! A limit for every test that has a session: a call that never returns ends the run and names its
//! test.
//!
//! The calls of a lock wait for as long as the lock does, and no test asserts that each of them
//! returns.

use std::io::{self, Write};
use std::process;
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::wait::deadline;

/// Many waits fit into it, so that one that fails by itself comes first.
fn limit() -> Duration {
    4 * deadline()
}

struct Test {
    name: String,
    begun: Instant,
}

static RUNNING: Mutex<Vec<Test>> = Mutex::new(Vec::new());

thread_local! {
    static OF_THIS_THREAD: Option<Registration> = Registration::of_a_test();
}

/// Watches the test that runs on the calling thread, until that thread ends.
pub(crate) fn watch_this_test() {
    static WATCHDOG: Once = Once::new();
    WATCHDOG.call_once(|| drop(thread::spawn(watch)));
    OF_THIS_THREAD.with(|_| {});
}

/// Goes with the thread.
struct Registration {
    name: String,
}

impl Registration {
    fn of_a_test() -> Option<Registration> {
        // The test harness gives a test a thread and its path as a name; threads of other kinds
        // have no such names.
        let name = thread::current().name().filter(|name| name.contains("::"))?.to_owned();
        RUNNING.lock().push(Test { name: name.clone(), begun: Instant::now() });
        Some(Registration { name })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        RUNNING.lock().retain(|test| test.name != self.name);
    }
}

fn watch() {
    loop {
        thread::sleep(Duration::from_secs(1)); // there is nothing to wait for but the time
        let running = RUNNING.lock();
        if let Some(test) = running.iter().find(|test| test.begun.elapsed() > limit()) {
            // Not by a macro, whose output would be kept for the end of the test.
            let _ = writeln!(io::stderr(), "\n{} hangs: it has not ended after {:?}", test.name, limit());
            process::abort();
        }
    }
}
