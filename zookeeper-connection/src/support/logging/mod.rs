//! Logs like [`log`](mod@log), but contains panics in the logger.
//!
//! The logger belongs to the application. Like all external code, it is called without any mutex held. It may panic, as
//! `println!` does when its output pipe is closed; such a panic does not affect the connection or the locks. The logger
//! may also block, or call into this crate. On threads that must not block, lines are therefore
//! [deferred](defer_on_this_thread).

mod deferred;

use std::cell::Cell;
use std::fmt;

use log::{Level, Record};

use crate::support::panics::contain;

thread_local! {
    static DEFERS: Cell<bool> = const { Cell::new(false) };
}

/// Makes another thread write everything that this thread logs from now on.
pub fn defer_on_this_thread() {
    DEFERS.set(true);
}

/// Runs code, and makes another thread write everything that the code logs.
pub fn deferring(code: impl FnOnce()) {
    struct Former(bool);

    impl Drop for Former {
        fn drop(&mut self) {
            DEFERS.set(self.0);
        }
    }

    let _former = Former(DEFERS.replace(true));
    code();
}

pub fn is_enabled(level: Level) -> bool {
    level <= log::STATIC_MAX_LEVEL && level <= log::max_level()
}

pub fn write(level: Level, target: &'static str, line: fmt::Arguments<'_>) {
    let log = || {
        // Formatting the line may run code of the application.
        if DEFERS.get() {
            return deferred::push(level, target, line.to_string());
        }
        let mut record = Record::builder();
        record.level(level).target(target);
        log::logger().log(&record.args(line).build());
    };
    // If the logger or the formatting panics, the panic hook has already reported it. Nothing else can.
    drop(contain(log));
}

/// Logs a line with this target at this level.
macro_rules! log_ {
    ($target:expr, $level:expr, $($arg:tt)+) => {
        if $crate::support::logging::is_enabled($level) {
            $crate::support::logging::write($level, $target, format_args!($($arg)+));
        }
    };
}

pub(crate) use log_ as log;
