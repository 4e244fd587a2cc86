//! Logs like [`log`](mod@log), on a thread of its own.
//!
//! The logger belongs to the application. It may block, call into this crate, or panic, as `println!` does when its
//! output pipe is closed. So no other thread ever runs it: whoever logs formats the line and adds it to a queue, and the
//! log's own thread passes the lines on, in order. The queue is bounded, and what does not fit is counted.
//!
//! What ends a session or a process [waits](await_written) for the lines, for a moment, because they may say why.

mod queue;

use std::cell::Cell;
use std::fmt;

use log::{Level, Record};

use self::queue::{Line, Queue};
use crate::support::panics::contain;
use crate::support::text::OneLine;

thread_local! {
    static NEVER_WAITS: Cell<bool> = const { Cell::new(false) };
}

/// Makes [`await_written`] return immediately on this thread, which must not block.
pub fn never_wait_on_this_thread() {
    NEVER_WAITS.set(true);
}

/// Waits until the logger has written the lines of this process that were logged so far, for at most 100 ms.
///
/// A logger that has been busy with one line for that long is not waited for at all. The caller must hold no mutex.
pub fn await_written() {
    if !NEVER_WAITS.get() {
        Queue::get().await_written();
    }
}

/// Returns whether lines of this level are logged. Does not ask the logger, which might block.
pub fn is_enabled(level: Level) -> bool {
    level <= log::STATIC_MAX_LEVEL && level <= log::max_level()
}

/// Logs a line. Formatting it may run code of the application, so the caller must hold no mutex.
pub fn write(level: Level, target: &'static str, line: fmt::Arguments<'_>) {
    // If the formatting panics, the panic hook has already reported it. Nothing else can.
    if let Ok(text) = contain(|| line.to_string()) {
        write_text(level, target, text);
    }
}

/// Logs a line. The caller may hold mutexes, and lines that are logged under one mutex keep their order.
pub fn write_text(level: Level, target: &'static str, text: String) {
    Queue::get().add(Line { level, target, text });
}

/// Passes a line to the logger. What could disturb a terminal or forge other lines is [escaped](OneLine), because a line
/// may show the text of others.
fn pass_on(line: &Line) {
    let Line { level, target, text } = line;
    let log = || {
        let mut record = Record::builder();
        record.level(*level).target(target);
        log::logger().log(&record.args(format_args!("{}", OneLine(text))).build());
    };
    // If the logger panics, the panic hook has already reported it.
    drop(contain(log));
}

/// Where the lines of this crate go.
#[cfg(not(test))]
pub(crate) mod own {
    pub(crate) use super::{is_enabled, write};
}

/// A unit test sees the lines of its own thread only.
#[cfg(test)]
pub(crate) use crate::tests::log as own;

/// Logs a line with this target at this level.
macro_rules! log_ {
    ($target:expr, $level:expr, $($arg:tt)+) => {
        if $crate::support::logging::own::is_enabled($level) {
            $crate::support::logging::own::write($level, $target, format_args!($($arg)+));
        }
    };
}

pub(crate) use log_ as log;
