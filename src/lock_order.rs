//! The order in which threads may take the crate's internal mutexes. Debug builds check it.
//!
//! A thread that holds a mutex may take only mutexes further down in [the list](rank), or those of the
//! connection, which come after the whole list. If a thread breaks the order, the panic message gives each
//! rank as its place in the list, counted from zero.
//!
//! Other mutexes have no rank. A thread takes the mutexes of a candidate, of a reentrant lock and of named locks before
//! all mutexes in the list. The mutex of a cancel token comes last: a thread that holds it takes no other.

pub(crate) use zookeeper_connection::support::lock_order::{Mutex, MutexGuard, assert_none_held};

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
