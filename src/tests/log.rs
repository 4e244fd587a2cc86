//! Captures the lines that a test's own thread logs. In unit tests, all other lines are left out.

use std::cell::RefCell;
use std::fmt;

use log::Level;

thread_local! {
    static LINES: RefCell<Option<Vec<(Level, String)>>> = const { RefCell::new(None) };
}

/// Replaces [`is_enabled`](zookeeper_connection::support::logging::is_enabled).
pub(crate) fn is_enabled(level: Level) -> bool {
    // A thread that ends may log after its values are gone.
    level <= Level::Debug && LINES.try_with(|lines| lines.borrow().is_some()).unwrap_or(false)
}

/// Replaces [`write`](zookeeper_connection::support::logging::write()).
pub(crate) fn write(level: Level, target: &'static str, line: fmt::Arguments<'_>) {
    write_text(level, target, line.to_string());
}

/// Replaces [`write_text`](zookeeper_connection::support::logging::write_text).
pub(crate) fn write_text(level: Level, _target: &'static str, text: String) {
    LINES.with_borrow_mut(|lines| {
        if let Some(lines) = lines {
            lines.push((level, text));
        }
    });
}

/// Returns the lines that this thread logs during the call, at `debug` and above.
pub(crate) fn logged(call: impl FnOnce()) -> Vec<String> {
    logged_down_to(Level::Debug, call)
}

/// Returns the lines that this thread logs during the call, at this level and above.
pub(crate) fn logged_down_to(least: Level, call: impl FnOnce()) -> Vec<String> {
    LINES.set(Some(Vec::new()));
    call();
    let lines = LINES.take().unwrap_or_default();
    lines.into_iter().filter(|(level, _)| *level <= least).map(|(_, line)| line).collect()
}
