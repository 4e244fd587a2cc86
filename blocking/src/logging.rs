//! Logs on another thread, and contains panics in the logger.
//!
//! The logger belongs to the application. It may block, panic, or call into the library, and a worker that ended by
//! such a panic would be missing forever.

use std::fmt;

use log::Level;
use zookeeper_connection::support::logging;

/// Writes a line, unless lines of this level are disabled.
pub(crate) fn write(level: Level, line: fmt::Arguments<'_>) {
    if logging::is_enabled(level) {
        logging::deferring(|| logging::write(level, "zookeeper_recipes_lock_blocking", line));
    }
}
