//! A panic on a thread of the crate fails the run.
//!
//! The crate catches such a panic, or loses a background thread, so no assertion of a test sees it.
//! So it ends the process, with its message. A test that makes such a thread panic marks the
//! message with `on purpose`. A test that needs another payload uses [`std::panic::resume_unwind`],
//! which calls no hook.

use std::any::Any;
use std::backtrace::Backtrace;
use std::io::{self, Write};
use std::panic::{self, PanicHookInfo};
use std::process;
use std::sync::Once;
use std::thread;

/// The prefix of the names of the crate's threads.
const CRATE_THREADS: &str = "zk-";

const ON_PURPOSE: &str = "on purpose";

/// From now on, ends the process at each panic on a thread of the crate.
pub fn watch() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            match thread::current().name().filter(|name| name.starts_with(CRATE_THREADS)) {
                Some(name) if !is_on_purpose(panic.payload()) => end_the_run(name, panic),
                _ => before(panic),
            }
        }));
    });
}

fn is_on_purpose(payload: &(dyn Any + Send)) -> bool {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.is_some_and(|text| text.contains(ON_PURPOSE))
}

fn end_the_run(thread: &str, panic: &PanicHookInfo<'_>) -> ! {
    let backtrace = Backtrace::force_capture();
    // Not by a macro: the test harness holds its output back until the end of the test.
    let _ = writeln!(
        io::stderr(),
        "\nthread '{thread}' {panic}\n{backtrace}\na panic on a thread of the crate fails the run"
    );
    process::abort()
}
