//! The order in which internal mutexes may be taken; debug builds check it.
//!
//! A thread that holds a mutex takes only mutexes of a higher rank, so two threads cannot wait for each other's
//! mutexes. The rank of a [`Mutex`] is part of its type. In a debug build, each thread records the ranks that it holds,
//! and panics if it takes a mutex whose rank is not higher. In a release build, a [`Mutex`] costs no more than
//! parking_lot's.
//!
//! No mutex is held while external code runs (continuations, event sinks, the logger), because that code may call back
//! into the crate, and may block. [`assert_none_held`] checks this before such calls.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use parking_lot::{Condvar, WaitTimeoutResult};

/// The ranks of this crate. A crate built on this one takes its own mutexes first, so it gives them lower ranks.
pub mod rank {
    /// The queues of calls for Kerberos tickets.
    pub const TICKETS: u8 = 28;
    /// The state and the transport of a connection.
    pub const CONNECTION: u8 = 29;
    /// What connections have learnt of servers.
    pub const SERVERS: u8 = 30;
    /// The queue of lines for the logger.
    pub const LOG: u8 = 31;
}

/// A mutex with a place in the order.
#[derive(Default)]
pub struct Mutex<const RANK: u8, T> {
    inner: parking_lot::Mutex<T>,
}

impl<const RANK: u8, T> Mutex<RANK, T> {
    pub const fn new(value: T) -> Mutex<RANK, T> {
        Mutex { inner: parking_lot::Mutex::new(value) }
    }

    /// Takes the mutex. In a debug build, panics if the thread holds a mutex of the same rank or a higher one.
    #[cfg_attr(debug_assertions, track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, RANK, T> {
        let held = Held::take();
        MutexGuard { inner: self.inner.lock(), _held: held }
    }
}

impl<const RANK: u8, T: fmt::Debug> fmt::Debug for Mutex<RANK, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// The guard of a [`Mutex`].
pub struct MutexGuard<'a, const RANK: u8, T> {
    inner: parking_lot::MutexGuard<'a, T>,
    _held: Held<RANK>,
}

impl<const RANK: u8, T> MutexGuard<'_, RANK, T> {
    /// Runs code without the mutex, then takes it again.
    pub fn unlocked<R>(&mut self, code: impl FnOnce() -> R) -> R {
        let _released = Unheld::<RANK>::release();
        parking_lot::MutexGuard::unlocked(&mut self.inner, code)
    }

    /// Waits for a signal. The mutex is released during the wait.
    pub fn wait(&mut self, condition: &Condvar) {
        let _released = Unheld::<RANK>::release();
        assert_none_held();
        condition.wait(&mut self.inner);
    }

    /// Waits for a signal, for at most this time. The mutex is released during the wait.
    pub fn wait_for(&mut self, condition: &Condvar, time: Duration) -> WaitTimeoutResult {
        let _released = Unheld::<RANK>::release();
        assert_none_held();
        condition.wait_for(&mut self.inner, time)
    }
}

impl<const RANK: u8, T: fmt::Debug> fmt::Debug for MutexGuard<'_, RANK, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl<const RANK: u8, T> Deref for MutexGuard<'_, RANK, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<const RANK: u8, T> DerefMut for MutexGuard<'_, RANK, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// In a debug build, panics if the calling thread holds a [`Mutex`].
#[cfg_attr(debug_assertions, track_caller)]
pub fn assert_none_held() {
    #[cfg(debug_assertions)]
    checked::assert_none_held();
}

/// Records that the calling thread holds the mutex of this rank.
struct Held<const RANK: u8>;

impl<const RANK: u8> Held<RANK> {
    #[cfg_attr(debug_assertions, track_caller)]
    fn take() -> Held<RANK> {
        #[cfg(debug_assertions)]
        checked::take(RANK);
        Held
    }
}

#[cfg(debug_assertions)]
impl<const RANK: u8> Drop for Held<RANK> {
    fn drop(&mut self) {
        checked::release(RANK);
    }
}

/// Removes the record of a held mutex, and restores it when dropped.
struct Unheld<const RANK: u8>;

impl<const RANK: u8> Unheld<RANK> {
    fn release() -> Unheld<RANK> {
        #[cfg(debug_assertions)]
        checked::release(RANK);
        Unheld
    }
}

#[cfg(debug_assertions)]
impl<const RANK: u8> Drop for Unheld<RANK> {
    fn drop(&mut self) {
        checked::retake(RANK);
    }
}

#[cfg(debug_assertions)]
mod checked {
    use std::cell::Cell;

    thread_local! {
        /// The ranks that the thread holds, one bit each.
        static HELD: Cell<u32> = const { Cell::new(0) };
    }

    /// Returns the highest rank that the thread holds.
    fn last() -> Option<u32> {
        HELD.get().checked_ilog2()
    }

    #[track_caller]
    pub(super) fn take(rank: u8) {
        let later = HELD.get() >> rank;
        let last = last().unwrap_or_default();
        debug_assert!(later == 0, "the mutex of rank {rank} is taken while that of rank {last} is held");
        retake(rank);
    }

    pub(super) fn retake(rank: u8) {
        HELD.set(HELD.get() | 1 << rank);
    }

    pub(super) fn release(rank: u8) {
        HELD.set(HELD.get() & !(1 << rank));
    }

    #[track_caller]
    pub(super) fn assert_none_held() {
        let held = last();
        debug_assert!(held.is_none(), "code that may block runs while the mutex of rank {held:?} is held");
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::tests::in_background;

    const FIRST: u8 = 0;
    const SECOND: u8 = 9;
    const ONLY: u8 = 31;

    #[test]
    fn mutexes_are_taken_in_order_and_released_in_any_order() {
        let first: Mutex<FIRST, u8> = Mutex::default();
        let second: Mutex<SECOND, u8> = Mutex::new(1);
        for _ in 0..2 {
            let mut held = first.lock();
            let then = second.lock();
            *held += *then;
            drop(held);
            drop(then);
        }
        assert_eq!(*first.lock(), 2);
    }

    #[test]
    #[should_panic(expected = "rank 0 is taken while that of rank 9")]
    fn taking_an_earlier_mutex_panics() {
        let first: Mutex<FIRST, u8> = Mutex::default();
        let second: Mutex<SECOND, u8> = Mutex::default();
        let _second = second.lock();
        let _first = first.lock();
    }

    #[test]
    #[should_panic(expected = "rank 31 is taken while that of rank 31")]
    fn taking_a_mutex_of_the_same_rank_panics() {
        let (one, other): (Mutex<ONLY, u8>, Mutex<ONLY, u8>) = Default::default();
        let _one = one.lock();
        let _other = other.lock();
    }

    #[test]
    #[should_panic(expected = "while the mutex of rank Some(31) is held")]
    fn blocking_code_under_a_mutex_panics() {
        let engine: Mutex<ONLY, u8> = Mutex::default();
        let _engine = engine.lock();
        assert_none_held();
    }

    #[test]
    fn unlocked_guard_holds_nothing_meanwhile() {
        let engine: Mutex<ONLY, u8> = Mutex::default();
        let mut guard = engine.lock();
        guard.unlocked(|| {
            assert_none_held();
            *engine.lock() += 1;
        });
        assert_eq!(*guard, 1);
    }

    #[test]
    fn mutexes_of_other_threads_do_not_count() {
        let engine: Arc<Mutex<ONLY, u8>> = Arc::default();
        let _guard = engine.lock();
        let lock: Mutex<FIRST, u8> = Mutex::default();
        let background = in_background(move || *lock.lock());
        assert_eq!(crate::tests::next(&background), 0);
    }
}
