//! [`Latch`]: a flag that threads and tasks wait for. It is set once, and stays set.
//!
//! Every blocking call on a session waits for latches, in [`Runtime::wait`](super::Runtime::wait): for an outcome, a
//! cancellation, a close, the end of a session. A thread that must wait sleeps at once. It does not spin first, because
//! it waits for the answer of a server, and its processor has other threads to run meanwhile.
//!
//! Every future of the library waits for latches, too, in [`until`](super::until). A latch keeps the wakers of waiting
//! tasks beside the waiting threads. A waker is the executor's code, which may block, but a latch is often set under a
//! mutex. So setting a latch does not call the wakers; [`wake_tasks`](super::wake_tasks) wakes the tasks afterwards.

use std::collections::BTreeMap;
use std::mem;
use std::task::Waker;

#[cfg(loom)]
use loom::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
#[cfg(not(loom))]
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
#[cfg(not(loom))]
use std::thread::{self, Thread};

#[cfg(loom)]
use super::parking::{self as thread, Thread};
use crate::lock_order::{Mutex, rank::LATCH};

/// The waiting side of a flag that is set once. Clones share the flag.
#[derive(Clone, Debug)]
pub(crate) struct Latch {
    /// `None` for a latch that nobody can set.
    flag: Option<Arc<Flag>>,
}

/// The side that sets a latch. Dropping it also sets the latch, so nobody waits for what can no longer happen.
#[derive(Debug)]
pub(crate) struct Setter {
    latch: Latch,
}

#[derive(Debug)]
struct Flag {
    is_set: AtomicBool,
    waiting: Mutex<LATCH, Waiters>,
}

/// The threads and tasks to wake.
#[derive(Debug, Default)]
struct Waiters {
    threads: Vec<Thread>,
    /// The wakers of tasks, by the numbers of the waits.
    wakers: BTreeMap<u64, Waker>,
}

impl Setter {
    pub(crate) fn new() -> Setter {
        let flag = Flag { is_set: AtomicBool::new(false), waiting: Mutex::new(Waiters::default()) };
        Setter { latch: Latch { flag: Some(Arc::new(flag)) } }
    }

    pub(crate) fn latch(&self) -> &Latch {
        &self.latch
    }

    /// Sets the latch, and wakes the threads that wait for it. Idempotent; does not block.
    ///
    /// If tasks may wait for the latch, the caller must have them [woken](super::wake_tasks) when it holds no mutex.
    pub(crate) fn set(&self) {
        if let Some(flag) = self.latch.flag.as_ref().filter(|_| !self.latch.is_set()) {
            let threads = {
                let mut waiting = flag.waiting.lock();
                // Set the flag under the mutex, so a thread that registers later sees that the flag is set.
                flag.is_set.store(true, Ordering::Release);
                mem::take(&mut waiting.threads)
            };
            threads.iter().for_each(Thread::unpark);
        }
    }
}

impl Drop for Setter {
    fn drop(&mut self) {
        // If this is the last reference, nobody waits. A forked child then takes no mutex.
        if self.latch.flag.as_ref().is_some_and(|flag| Arc::strong_count(flag) > 1) {
            self.set();
        }
    }
}

impl Latch {
    /// Returns a latch that is never set.
    pub(crate) const fn never() -> Latch {
        Latch { flag: None }
    }

    /// Returns whether the latch is set. Takes no mutex.
    pub(crate) fn is_set(&self) -> bool {
        self.flag.as_ref().is_some_and(|flag| flag.is_set.load(Ordering::Acquire))
    }

    fn change_threads(&self, change: impl FnOnce(&mut Vec<Thread>)) {
        if let Some(flag) = &self.flag {
            change(&mut flag.waiting.lock().threads);
        }
    }

    // ---- tasks: no waker is cloned, woken or dropped under the mutex

    /// Registers the waker of a wait, in place of its former waker.
    pub(super) fn register(&self, wait: u64, waker: &Waker) {
        let Some(flag) = &self.flag else { return };
        let is_registered = {
            let waiting = flag.waiting.lock();
            waiting.wakers.get(&wait).is_some_and(|former| former.will_wake(waker))
        };
        if !is_registered {
            let waker = waker.clone();
            let former = flag.waiting.lock().wakers.insert(wait, waker);
            drop(former);
        }
    }

    /// Removes the waker of a wait.
    pub(super) fn deregister(&self, wait: u64) {
        let Some(flag) = &self.flag else { return };
        let waker = flag.waiting.lock().wakers.remove(&wait);
        drop(waker);
    }

    /// Returns whether the latch is set and there are tasks to wake.
    pub(crate) fn has_tasks_to_wake(&self) -> bool {
        let has_wakers = |flag: &Arc<Flag>| !flag.waiting.lock().wakers.is_empty();
        self.is_set() && self.flag.as_ref().is_some_and(has_wakers)
    }

    /// Takes the wakers of the tasks to wake. Takes none before the latch is set.
    pub(super) fn take_wakers(&self) -> Vec<Waker> {
        match self.flag.as_ref().filter(|_| self.is_set()) {
            Some(flag) => mem::take(&mut flag.waiting.lock().wakers).into_values().collect(),
            None => Vec::new(),
        }
    }
}

/// Parks the calling thread until one of the latches is set, or `park` returns `false`. Returns whether one of them is
/// set.
///
/// `park` may return early, because other code may unpark the thread, too. Such an unpark token is not ours: it may be
/// the only sign that wakes an executor on this thread. So the thread has a token again when this returns.
pub(crate) fn park_until_set(latches: &[&Latch], mut park: impl FnMut() -> bool) -> bool {
    let is_one_set = || latches.iter().any(|latch| latch.is_set());
    if is_one_set() {
        return true;
    }
    let _waiting = Waiting::of_this_thread(latches);
    // A latch that is set from here on unparks this thread, and a `park` that comes later returns at once.
    while !is_one_set() {
        if !park() {
            return is_one_set();
        }
    }
    true
}

/// The registration of the calling thread with some latches. Dropping it gives back the unpark token that a `park` may
/// have taken from other code on this thread.
struct Waiting<'a> {
    latches: &'a [&'a Latch],
}

impl<'a> Waiting<'a> {
    fn of_this_thread(latches: &'a [&'a Latch]) -> Waiting<'a> {
        for latch in latches {
            latch.change_threads(|waiting| waiting.push(thread::current()));
        }
        Waiting { latches }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let this = thread::current();
        for latch in self.latches {
            latch.change_threads(|waiting| waiting.retain(|thread| thread.id() != this.id()));
        }
        this.unpark();
    }
}

#[cfg(test)]
impl Latch {
    /// Returns the number of registrations of threads and tasks with the latch.
    pub(crate) fn waiting(&self) -> usize {
        self.flag.as_ref().map_or(0, |flag| {
            let waiting = flag.waiting.lock();
            waiting.threads.len() + waiting.wakers.len()
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::tests::{eventually, in_background, next};

    fn park() -> bool {
        thread::park();
        true
    }

    #[test]
    fn latch_that_is_set_before_ends_a_wait_without_parking() {
        let setter = Setter::new();
        setter.set();
        setter.set();
        assert!(park_until_set(&[&Latch::never(), setter.latch()], || unreachable!("it parks")));
        assert_eq!(setter.latch().waiting(), 0);
    }

    #[test]
    fn latch_that_is_set_just_before_a_thread_parks_wakes_it() {
        let setter = Setter::new();
        let waiting = in_background(move || {
            park_until_set(&[setter.latch()], || {
                setter.set();
                park()
            })
        });
        assert!(next(&waiting));
    }

    #[test]
    fn each_of_several_latches_ends_a_wait_and_its_setter_by_being_dropped() {
        for chosen in 0..3 {
            for is_dropped in [false, true] {
                let mut setters = [(); 3].map(|()| Setter::new());
                let latches = setters.each_ref().map(|setter| setter.latch().clone());
                let waiter = in_background(move || park_until_set(&latches.each_ref(), park));
                eventually("it waits", || setters.iter().all(|setter| setter.latch().waiting() == 1));
                match is_dropped {
                    true => setters[chosen] = Setter::new(),
                    false => setters[chosen].set(),
                }
                assert!(next(&waiter));
            }
        }
    }

    #[test]
    fn latch_wakes_all_who_wait_and_a_wait_leaves_nobody_registered() {
        let (set, other) = (Setter::new(), Setter::new());
        let waiters = [(); 3].map(|()| {
            let latches = [other.latch().clone(), set.latch().clone(), other.latch().clone()];
            in_background(move || park_until_set(&latches.each_ref(), park))
        });
        eventually("all wait", || (set.latch().waiting(), other.latch().waiting()) == (3, 6));
        set.set();
        assert!(waiters.iter().all(next));
        assert_eq!((set.latch().waiting(), other.latch().waiting()), (0, 0));
    }

    #[test]
    fn wait_that_is_given_up_leaves_nobody_registered() {
        let setter = Setter::new();
        let given_up = || {
            assert_eq!(setter.latch().waiting(), 1);
            false
        };
        assert!(!park_until_set(&[setter.latch()], given_up));
        assert_eq!(setter.latch().waiting(), 0);
    }

    #[test]
    fn latch_that_is_set_when_a_wait_is_given_up_counts() {
        let setter = Setter::new();
        let given_up = || {
            setter.set();
            false
        };
        assert!(park_until_set(&[setter.latch()], given_up));
    }

    #[test]
    fn thread_that_others_unpark_goes_on_waiting() {
        let setter = Setter::new();
        let mut unparked = 0;
        let unpark = || {
            thread::current().unpark();
            thread::park();
            unparked += 1;
            unparked < 3
        };
        assert!(!park_until_set(&[setter.latch()], unpark));
        assert_eq!(unparked, 3);
    }

    #[test]
    fn wait_leaves_the_thread_the_token_that_it_takes() {
        let setter = Setter::new();
        thread::current().unpark();
        let park = || {
            thread::park();
            false
        };
        assert!(!park_until_set(&[setter.latch()], park));
        let (long, begun) = (Duration::from_secs(20), Instant::now());
        thread::park_timeout(long);
        assert!(begun.elapsed() < long);
    }
}
