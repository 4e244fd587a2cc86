//! [`Mailbox`]: delivers items in order, one at a time, outside every mutex.
//!
//! An item is posted under the mutex that decides its order, and delivered after that mutex is released. Delivering an
//! item may, for example, call a listener. A listener may post again, or make another thread post, without a deadlock,
//! because the delivering thread delivers the new item, too.

use std::collections::VecDeque;

#[cfg(loom)]
use loom::thread::{self, ThreadId};
#[cfg(not(loom))]
use std::thread::{self, ThreadId};

use crate::lock_order::{Mutex, MutexGuard, rank::MAILBOX};

#[derive(Debug)]
pub(crate) struct Mailbox<T> {
    state: Mutex<MAILBOX, Posted<T>>,
}

#[derive(Debug)]
struct Posted<T> {
    items: VecDeque<T>,
    /// The thread that is delivering, if there is one.
    deliverer: Option<ThreadId>,
}

impl<T> Mailbox<T> {
    pub(crate) fn new() -> Mailbox<T> {
        Mailbox { state: Mutex::new(Posted { items: VecDeque::new(), deliverer: None }) }
    }

    pub(crate) fn post(&self, item: T) {
        self.state.lock().items.push_back(item);
    }

    /// Posts an item. If `max` items are already waiting, `make_room` may remove some first.
    pub(crate) fn post_within(&self, max: usize, item: T, make_room: impl FnOnce(&mut VecDeque<T>)) {
        let mut state = self.state.lock();
        if state.items.len() >= max {
            make_room(&mut state.items);
        }
        state.items.push_back(item);
    }

    /// Returns whether items are waiting and no thread is delivering.
    pub(crate) fn is_waiting(&self) -> bool {
        let state = self.state.lock();
        state.deliverer.is_none() && !state.items.is_empty()
    }

    /// Returns whether the current thread is delivering.
    pub(crate) fn delivers_here(&self) -> bool {
        self.state.lock().deliverer == Some(thread::current().id())
    }

    /// Delivers all posted items. Returns immediately if a delivery is already under way, on another thread or further
    /// up the stack of this thread.
    ///
    /// If `handle` panics, the remaining items wait for the next call.
    pub(crate) fn deliver(&self, mut handle: impl FnMut(T)) {
        let mut state = self.state.lock();
        if state.deliverer.is_some() {
            return;
        }
        state.deliverer = Some(thread::current().id());
        let mut turn = Delivery(state);
        while let Some(item) = turn.0.items.pop_front() {
            turn.0.unlocked(|| handle(item));
        }
    }
}

/// A delivery by one thread. It ends when this is dropped, even during a panic.
struct Delivery<'a, T>(MutexGuard<'a, MAILBOX, Posted<T>>);

impl<T> Drop for Delivery<'_, T> {
    fn drop(&mut self) {
        self.0.deliverer = None;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

    #[test]
    fn items_come_in_order_one_at_a_time_even_when_a_delivery_posts_more() {
        let mailbox = Mailbox::new();
        let mut seen = Vec::new();
        mailbox.post(1);
        mailbox.post(2);
        mailbox.deliver(|item| {
            if item == 1 {
                mailbox.post(3);
                mailbox.deliver(|_| unreachable!("a second delivery during the first"));
            }
            seen.push(item);
        });
        assert_eq!(seen, [1, 2, 3]);
    }

    #[test]
    fn items_wait_until_a_delivery_has_begun() {
        let mailbox = Mailbox::new();
        assert!(!mailbox.is_waiting());
        mailbox.post(1);
        mailbox.post(2);
        assert!(mailbox.is_waiting());
        mailbox.deliver(|_| assert!(!mailbox.is_waiting(), "the delivery under way takes all items"));
        assert!(!mailbox.is_waiting());
    }

    #[test]
    fn mailbox_knows_whether_a_delivery_on_this_thread_is_the_caller() {
        let mailbox = Mailbox::new();
        mailbox.post(());
        assert!(!mailbox.delivers_here());
        mailbox.deliver(|()| {
            assert!(mailbox.delivers_here());
            thread::scope(|scope| scope.spawn(|| assert!(!mailbox.delivers_here())).join().unwrap());
        });
        assert!(!mailbox.delivers_here());
    }

    #[test]
    fn items_are_delivered_after_a_panic() {
        let mailbox = Mailbox::new();
        let mut seen = Vec::new();
        mailbox.post(1);
        mailbox.post(2);
        let panicking = || mailbox.deliver(|_| resume_unwind(Box::new("on purpose")));
        catch_unwind(AssertUnwindSafe(panicking)).unwrap_err();
        mailbox.deliver(|item| seen.push(item));
        assert_eq!(seen, [2]);
    }
}
