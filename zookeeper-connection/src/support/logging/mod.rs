//! Logs as [`log`](mod@log) does, with a panic of the logger contained.
//!
//! The logger belongs to the application. Like all external code, it is called under no lock. It
//! may panic (`println!` does when the pipe behind it is closed), which does not affect the locks.
//! It may also block, or call in here. On threads that must not block, lines are therefore
//! [deferred](defer_on_this_thread).

mod deferred;

use std::cell::Cell;
use std::fmt;

use log::{Level, Record};

use crate::support::panics::contain;

thread_local! {
    static DEFERS: Cell<bool> = const { Cell::new(false) };
}

/// Has another thread write what this thread logs.
pub fn defer_on_this_thread() {
    DEFERS.set(true);
}

/// Has another thread write what is logged meanwhile.
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
        // The line may have a value of the application's, which is formatted here.
        if DEFERS.get() {
            return deferred::push(level, target, line.to_string());
        }
        let mut record = Record::builder();
        record.level(level).target(target);
        log::logger().log(&record.args(line).build());
    };
    // A panic of the logger, or of a value, can be reported only by the panic hook, which has been called.
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
