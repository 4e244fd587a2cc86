//! The macros by which this crate logs: those of [`log`](mod@log), with a panic of the logger
//! contained.
//!
//! The logger belongs to the application. Like all external code, it is called under no lock. It
//! may panic (`println!` does when the pipe behind it is closed), which does not affect the locks.

macro_rules! log_ {
    ($($arg:tt)+) => {
        // A panic of the logger can be reported only by the panic hook, which has been called.
        drop($crate::panics::contain(|| ::log::log!($($arg)+)))
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
