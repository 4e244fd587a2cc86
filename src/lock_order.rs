//! The order in which threads may take the crate's internal mutexes. Debug builds check it.
//!
//! A thread that holds a mutex may take only mutexes further down in [the list](rank), or those of the
//! connection, which come after the whole list. If a thread breaks the order, the panic message gives each
//! rank as its place in the list, counted from zero.
//!
//! The mutex of a cancel token has no rank. It comes last: a thread that holds it takes no other.
//!
//! A forked child takes no mutex of its parent, because the thread that holds the mutex may not exist in the child.
//! Debug builds check that, too.

use std::fmt;

use zookeeper_connection::support::lock_order as base;
pub(crate) use zookeeper_connection::support::lock_order::{MutexGuard, assert_none_held};

/// A mutex with a place in the order.
#[derive(Default)]
pub(crate) struct Mutex<const RANK: u8, T> {
    inner: base::Mutex<RANK, T>,
    #[cfg(debug_assertions)]
    process: checked::OneProcess,
}

impl<const RANK: u8, T> Mutex<RANK, T> {
    pub(crate) fn new(value: T) -> Mutex<RANK, T> {
        Mutex {
            inner: base::Mutex::new(value),
            #[cfg(debug_assertions)]
            process: checked::OneProcess::default(),
        }
    }

    /// Takes the mutex. In a debug build, panics if the thread holds a mutex of the same rank or a higher one, or if
    /// another process has taken this mutex.
    ///
    /// Latches are exempt from the second check, because dropping a setter may take the latch's mutex, even in a forked
    /// child. No thread of the parent holds that mutex, because whoever waits for a latch keeps the setter alive.
    #[cfg_attr(debug_assertions, track_caller)]
    pub(crate) fn lock(&self) -> MutexGuard<'_, RANK, T> {
        #[cfg(debug_assertions)]
        if RANK != rank::LATCH {
            self.process.check();
        }
        self.inner.lock()
    }
}

impl<const RANK: u8, T: fmt::Debug> fmt::Debug for Mutex<RANK, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

#[cfg(debug_assertions)]
mod checked {
    use std::process;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// The id of the process that first took a mutex; zero before that.
    #[derive(Debug, Default)]
    pub(super) struct OneProcess(AtomicU32);

    impl OneProcess {
        #[track_caller]
        pub(super) fn check(&self) {
            let this = process::id();
            let first = self.0.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed);
            let is_this = first.map_or_else(|first| first == this, |_| true);
            debug_assert!(
                is_this,
                "a forked child takes a mutex of its parent, whose holder may not exist here"
            );
        }
    }
}

/// Marks types as unwind safe. The compiler cannot tell that they are, because they contain a mutex, a trait
/// object or a closure.
///
/// The types stay consistent when a panic unwinds. The crate runs no application code while it holds a mutex,
/// so a panic in application code never leaves guarded state half changed. Panics in listeners, hooks,
/// clients and jobs are caught where the crate calls them.
macro_rules! unwind_safe {
    ($($type:ty),+ $(,)?) => {$(
        impl std::panic::UnwindSafe for $type {}
        impl std::panic::RefUnwindSafe for $type {}
    )+};
}
pub(crate) use unwind_safe;

/// Defines a constant for each rank, numbered in the order of the list, and a list of the ranks' names.
macro_rules! ranks {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The ranks. A thread takes the mutexes at the top first.
        pub(crate) mod rank {
            #[allow(clippy::upper_case_acronyms, reason = "the names of the constants")]
            #[allow(non_camel_case_types, reason = "the names of the constants")]
            enum Order { $($name,)* }

            $($(#[$doc])* pub(crate) const $name: u8 = Order::$name as u8;)*

            #[cfg(test)]
            pub(super) const NAMES: &[&str] = &[$(stringify!($name),)*];
        }
    };
}

ranks! {
    /// The leadership of a candidate.
    CANDIDATE,
    /// The holds of a reentrant lock.
    HOLDS,
    /// The cohort locks among named locks.
    NAMED,
    /// The current request of a lock with a listener.
    LOCK,
    /// The current core of a session.
    SESSION,
    /// The subscribers and followers of a session that is replaced after a loss.
    REPLACEMENT,
    /// The state of a tracker: its session, its pending call, and what it has seen.
    TRACKER,
    /// The engine of a session.
    ENGINE,
    /// The state of a cohort lock. The driver reports events to it while it holds `ENGINE`.
    COHORT,
    /// The stage of a request that outlives its session.
    LASTING,
    /// What waits for delivery: the callbacks of a lock, the events for a hook, the calls to a client.
    MAILBOX,
    /// The listener of a lock.
    LISTENER,
    /// The znodes that a session could not delete.
    ORPHANS,
    /// The jobs that may block.
    POOL,
    /// The jobs of the timer.
    TIMER,
    /// The threads and tasks that wait for a latch, and the value of a slot.
    LATCH,
}

#[cfg(test)]
mod tests {
    use zookeeper_connection::support::lock_order::rank::CONNECTION;

    use super::rank::NAMES;

    #[test]
    fn connections_mutexes_come_last() {
        assert!(NAMES.len() <= usize::from(CONNECTION), "{NAMES:?}");
    }
}
