//! A monitor that fails the test run if a thread of the crate panics.
//!
//! The crate catches such a panic or loses a background thread, so no assertion in a test would notice. The
//! monitor therefore prints the panic's message and ends the process. A test that makes such a thread panic
//! on purpose includes `on purpose` in the message. A test that needs another payload uses
//! [`std::panic::resume_unwind`], which skips the panic hook.

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

/// Makes the process end if a thread of the crate panics, unless it does so on purpose.
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
    // Do not print with a macro: the test harness holds back a macro's output until the test ends.
    let _ = writeln!(
        io::stderr(),
        "\nthread '{thread}' {panic}\n{backtrace}\na panic on a thread of the crate fails the run"
    );
    process::abort()
}
