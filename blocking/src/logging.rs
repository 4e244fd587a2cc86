//! Logs with the target of this crate.

use std::fmt;

use log::Level;
use zookeeper_connection::support::logging;

/// Writes a line, unless lines of this level are disabled.
pub(crate) fn write(level: Level, line: fmt::Arguments<'_>) {
    if logging::is_enabled(level) {
        logging::write(level, "zookeeper_recipes_lock_blocking", line);
    }
}
