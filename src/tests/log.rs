//! Captures the lines that a test's own thread logs.

use std::cell::RefCell;

use log::{Level, LevelFilter, Log, Metadata, Record};

thread_local! {
    static LINES: RefCell<Option<Vec<(Level, String)>>> = const { RefCell::new(None) };
}

struct Logger;

impl Log for Logger {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        LINES.with_borrow_mut(|lines| {
            if let Some(lines) = lines {
                lines.push((record.level(), record.args().to_string()));
            }
        });
    }

    fn flush(&self) {}
}

/// Returns the lines that this thread logs during the call, at `debug` and above.
pub(crate) fn logged(call: impl FnOnce()) -> Vec<String> {
    logged_down_to(Level::Debug, call)
}

/// Returns the lines that this thread logs during the call, at this level and above.
pub(crate) fn logged_down_to(least: Level, call: impl FnOnce()) -> Vec<String> {
    // The logger can be installed only once; later calls fail.
    let _ = log::set_logger(&Logger);
    log::set_max_level(LevelFilter::Debug);
    LINES.set(Some(Vec::new()));
    call();
    let lines = LINES.take().unwrap_or_default();
    lines.into_iter().filter(|(level, _)| *level <= least).map(|(_, line)| line).collect()
}
