//! The macros by which this crate logs: those of [`log`](mod@log), with a panic of the logger
//! contained.
//!
//! The logger belongs to the application. Like all external code, it is called under no lock. It
//! may panic (`println!` does when the pipe behind it is closed), which does not affect the locks.
//! It may also block, or call in here. On threads that must not block, lines are therefore
//! [deferred](defer_on_this_thread).

mod deferred;

use std::cell::Cell;
use std::fmt;

use log::{Level, Record};

use crate::panics::contain;

thread_local! {
    static DEFERS: Cell<bool> = const { Cell::new(false) };
}

/// Has another thread write what this thread logs.
pub(crate) fn defer_on_this_thread() {
    DEFERS.set(true);
}

/// Has another thread write what is logged meanwhile.
pub(crate) fn deferring(code: impl FnOnce()) {
    struct Former(bool);

    impl Drop for Former {
        fn drop(&mut self) {
            DEFERS.set(self.0);
        }
    }

    let _former = Former(DEFERS.replace(true));
    code();
}

pub(crate) fn is_enabled(level: Level) -> bool {
    level <= log::STATIC_MAX_LEVEL && level <= log::max_level()
}

/// The targets of the lines, for filters. They stay as they are when code moves.
pub(crate) const CONNECTION: &str = "zookeeper_recipes_lock::connection";
pub(crate) const SESSION: &str = "zookeeper_recipes_lock::session";
pub(crate) const LOCKS: &str = "zookeeper_recipes_lock::locks";

/// The target of the lines of a module.
pub(crate) fn target_of(module: &str) -> &'static str {
    match module.split("::").nth(1) {
        Some("client" | "connection") => CONNECTION,
        Some("session") => SESSION,
        _ => LOCKS,
    }
}

pub(crate) fn write(level: Level, target: &'static str, line: fmt::Arguments<'_>) {
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
            ("zookeeper_recipes_lock::connection::driver", CONNECTION),
            ("zookeeper_recipes_lock::client::adapter::connection_state", CONNECTION),
            ("zookeeper_recipes_lock::session::driver", SESSION),
            ("zookeeper_recipes_lock::locks::candidate", LOCKS),
            ("zookeeper_recipes_lock::directory", LOCKS),
        ] {
            assert_eq!(target_of(module), target);
            assert!(docs.contains(&format!("`{target}`")), "{target}");
        }
    }
}
