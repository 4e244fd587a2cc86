//! A time limit for every test that opens a session. If a call never returns, this ends the run and names the
//! test.
//!
//! The calls of a lock wait for as long as the lock is held, and no test asserts that every such call
//! returns.

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

/// Watches the test on the calling thread until that thread ends. The limit should be much longer than any
/// single wait, so that the wait fails first.
pub(crate) fn watch_this_test(limit: Duration) {
    static WATCHDOG: Once = Once::new();
    WATCHDOG.call_once(|| drop(thread::spawn(watch)));
    OF_THIS_THREAD.with(|of_this| {
        of_this.get_or_init(|| Registration::of_a_test(limit));
    });
}

/// The entry of a test. Dropped when the test's thread ends.
struct Registration {
    name: String,
}

impl Registration {
    fn of_a_test(limit: Duration) -> Option<Registration> {
        // The test harness names the thread of a test after the path of the test. No other thread has such a
        // name.
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
        thread::sleep(Duration::from_secs(1)); // nothing to wait for but time
        let running = RUNNING.lock();
        if let Some(test) = running.iter().find(|test| test.begun.elapsed() > test.limit) {
            // Do not print with a macro: the test harness holds back a macro's output until the test ends.
            let _ = writeln!(io::stderr(), "\n{} hangs: it has not ended after {:?}", test.name, test.limit);
            process::abort();
        }
    }
}
