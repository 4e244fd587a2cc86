//! A time limit for every test with a session: a call that never returns ends the run and names its
//! test.
//!
//! A lock's calls wait as long as the lock does, and no test asserts that each of them returns.

use std::cell::OnceCell;
use std::io::{self, Write};
use std::process;
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

struct Test {
    name: String,
    begun: Instant,
    limit: Duration,
}

static RUNNING: Mutex<Vec<Test>> = Mutex::new(Vec::new());

thread_local! {
    static OF_THIS_THREAD: OnceCell<Option<Registration>> = const { OnceCell::new() };
}

/// Watches the test on the calling thread until that thread ends. The limit is to be much longer than a
/// single wait, so that a wait fails first.
pub(crate) fn watch_this_test(limit: Duration) {
    static WATCHDOG: Once = Once::new();
    WATCHDOG.call_once(|| drop(thread::spawn(watch)));
    OF_THIS_THREAD.with(|of_this| {
        of_this.get_or_init(|| Registration::of_a_test(limit));
    });
}

/// Dropped when the thread ends.
struct Registration {
    name: String,
}

impl Registration {
    fn of_a_test(limit: Duration) -> Option<Registration> {
        // The test harness names a test's thread after the path of the test. Other threads have no
        // such names.
        let name = thread::current().name().filter(|name| name.contains("::"))?.to_owned();
        RUNNING.lock().push(Test { name: name.clone(), begun: Instant::now(), limit });
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
        thread::sleep(Duration::from_secs(1)); // only time can pass
        let running = RUNNING.lock();
        if let Some(test) = running.iter().find(|test| test.begun.elapsed() > test.limit) {
            // Not by a macro: its output would be held back until the end of the test.
            let _ = writeln!(io::stderr(), "\n{} hangs: it has not ended after {:?}", test.name, test.limit);
            process::abort();
        }
    }
}
