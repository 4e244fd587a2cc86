//! The macros with which this crate logs, and the targets of its log lines.
//!
//! A line is formatted where it is logged, and written by the log's own thread. So a logger that blocks or panics holds
//! up no thread of a session and no caller.

pub(crate) use zookeeper_connection::support::logging::{await_written, never_wait_on_this_thread};
#[cfg(not(test))]
pub(crate) use zookeeper_connection::support::logging::{is_enabled, write, write_text};

/// A unit test sees the lines of its own thread only.
#[cfg(test)]
pub(crate) use crate::tests::{is_enabled, write, write_text};

/// The targets of the log lines. Users filter by them, so they stay the same when code moves.
pub(crate) const CONNECTION: &str = "zookeeper_recipes_lock::connection";
pub(crate) const SESSION: &str = "zookeeper_recipes_lock::session";
pub(crate) const LOCKS: &str = "zookeeper_recipes_lock::locks";

/// Returns the target for a module's log lines.
pub(crate) fn target_of(module: &str) -> &'static str {
    match module.split("::").nth(1) {
        Some("client") => CONNECTION,
        Some("session") => SESSION,
        _ => LOCKS,
    }
}

macro_rules! log_ {
    (target: $target:expr, $level:expr, $($arg:tt)+) => {
        if $crate::logging::is_enabled($level) {
            $crate::logging::write($level, $target, format_args!($($arg)+));
        }
    };
    ($level:expr, $($arg:tt)+) => {
        $crate::logging::log!(target: $crate::logging::target_of(module_path!()), $level, $($arg)+)
    };
}

macro_rules! error_ {
    ($($arg:tt)+) => { $crate::logging::log!(::log::Level::Error, $($arg)+) };
}

macro_rules! warn_ {
    ($($arg:tt)+) => { $crate::logging::log!(::log::Level::Warn, $($arg)+) };
}

macro_rules! info_ {
    ($($arg:tt)+) => { $crate::logging::log!(::log::Level::Info, $($arg)+) };
}

macro_rules! debug_ {
    ($($arg:tt)+) => { $crate::logging::log!(::log::Level::Debug, $($arg)+) };
}

pub(crate) use {debug_ as debug, error_ as error, info_ as info, log_ as log, warn_ as warn};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_those_that_the_docs_list() {
        let docs = include_str!("../../docs/operations.md");
        for (module, target) in [
            ("zookeeper_recipes_lock::client::contained", CONNECTION),
            ("zookeeper_recipes_lock::session::driver", SESSION),
            ("zookeeper_recipes_lock::locks::candidate", LOCKS),
            ("zookeeper_recipes_lock::directory", LOCKS),
        ] {
            assert_eq!(target_of(module), target);
            assert!(docs.contains(&format!("`{target}`")), "{target}");
        }
    }
}
